// The question form: Enter sends, Esc stops, and an edited question replaces the last one.

import { byId, icon } from "./dom.js";

/** Connects the form to a chat. `chat()` returns it; it is created later. */
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
    /** Cancels editing; returns whether a question was being edited. */
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
