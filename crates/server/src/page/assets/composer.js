// The question form: Enter sends, Esc stops, and an edited question replaces the last one.

import { byId, icon } from "./dom.js";
import { startImages } from "./images.js";

/**
 * Connects the form to a chat. `chat()` returns it; it is created later. `refusal(kind)` says why
 * the model takes no images or videos, if it does not.
 */
export function startComposer(chat, refusal) {
  const field = byId("question");
  const send = byId("send");
  const banner = byId("editing");
  let images;
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
    const empty = !field.value.trim() && !images.all().length;
    send.disabled = !running && (empty || images.blocked());
  };
  const put = (text, at, attached) => {
    instead = at;
    banner.hidden = at === undefined;
    field.value = text;
    grow();
    images.put(attached);
    field.focus();
    field.setSelectionRange(text.length, text.length);
  };
  const submit = () => {
    if (running) return chat().stop();
    if (send.disabled) return;
    const question = { content: field.value.trim(), images: images.all() };
    const at = instead;
    put("");
    chat().send(question, at);
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
  byId("attach").append(icon("image"));
  images = startImages({ refusal, changed: show });
  show();

  return {
    put,
    focus: () => field.focus(),
    /** The model has changed. */
    modelChanged: () => images.check(),
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
