// Where questions are written: Enter sends, Esc stops, an edited question replaces the last.

import { byId, icon } from "./dom.js";

/** Joins the form to a chat, which `chat()` gives once there is one. */
export function startComposer(chat) {
  const field = byId("question");
  const send = byId("send");
  const banner = byId("editing");
  let instead;
  let running = false;

  const grow = () => {
    field.style.height = "auto";
    field.style.height = `${field.scrollHeight}px`;
  };
  const show = () => {
    const label = running ? "Stop" : "Send";
    send.replaceChildren(icon(running ? "stop" : "send"));
    send.setAttribute("aria-label", label);
    send.title = running ? "Stop (Esc)" : "Send (Enter)";
    send.disabled = !running && !field.value.trim();
  };
  const put = (text, at) => {
    instead = at;
    banner.hidden = at === undefined;
    field.value = text;
    grow();
    show();
    field.focus();
    field.setSelectionRange(text.length, text.length);
  };
  const submit = () => {
    if (running) return chat().stop();
    const text = field.value.trim();
    if (!text) return;
    const at = instead;
    put("");
    chat().send(text, at);
  };

  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!running) submit();
  });
  field.addEventListener("input", () => {
    grow();
    show();
  });
  byId("leave-editing").addEventListener("click", () => put(""));
  show();

  return {
    put,
    focus: () => field.focus(),
    /** Whether there was an edit to leave. */
    leaveEditing() {
      if (instead === undefined) return false;
      put("");
      return true;
    },
    running(now) {
      running = now;
      show();
    },
  };
}
