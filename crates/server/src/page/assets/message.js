// Renders one message of the conversation.

import { copyButton, el, iconButton } from "./dom.js";
import { imagesOf, picture } from "./images.js";
import { pretty, wholeJson } from "./json.js";
import { codeBlock, renderMarkdown } from "./markdown.js";
import { measured, seconds } from "./reply.js";
import { toolCall } from "./tools.js";

export function userView(message, { edit }) {
  const images = imagesOf(message);
  const actions = el(
    "div",
    { class: "actions" },
    message.content && copyButton("Copy question", () => message.content),
    edit && iconButton("edit", "Edit question", edit),
  );
  const node = el(
    "article",
    { class: "message user", "aria-label": "You" },
    images.length > 0 && el("div", { class: "pictures" }, images.map(picture)),
    message.content && el("div", { class: "bubble" }, message.content),
    actions,
  );
  return { node, update() {} };
}

/**
 * A reply. `again`, `retry` and `answer` are the actions of its buttons; each may be omitted.
 * `results` maps ids of tool calls to their results.
 */
export function replyView(message, { again, retry, answer, results, running }) {
  const thinking = thinkingView();
  const body = el("div", { class: "body" });
  const calls = el("div", { class: "calls" });
  const foot = el("div", { class: "foot" });
  const node = el(
    "article",
    { class: "message reply", "aria-label": message.model || "Reply" },
    thinking.node,
    body,
    calls,
    foot,
  );
  const update = (live) => {
    node.classList.toggle("live", live);
    node.classList.toggle("waiting", live && !message.content && !message.calls.length);
    thinking.update(message, live);
    drawBody(body, message.content, live);
    // Arguments grow while they stream. After that, the forms below them must not be redrawn.
    if (live || calls.childElementCount === 0) {
      calls.replaceChildren(
        ...message.calls.map((call) => toolCall(call, results.get(call.id), live ? undefined : answer)),
      );
    }
    if (!live) foot.replaceChildren(...footOf(message, again, retry));
  };
  update(running);
  return { node, update };
}

function thinkingView() {
  const label = el("span");
  const text = el("div", { class: "thought" });
  const node = el("details", { class: "thinking" }, el("summary", null, label), text);
  const update = ({ reasoning, timing = {} }, live) => {
    node.hidden = !reasoning;
    if (!reasoning) return;
    const spent = timing.thought ?? timing.last - timing.first;
    const over = !live || timing.thought !== undefined;
    const time = spent < 50 ? "a moment" : seconds(spent);
    label.textContent = over ? `Thought for ${time}` : `Thinking… ${time}`;
    node.classList.toggle("going", !over);
    renderMarkdown(text, reasoning);
  };
  return { node, update };
}

function drawBody(body, content, live) {
  const json = live ? undefined : wholeJson(content);
  if (json !== undefined) {
    body.drawn = undefined;
    body.replaceChildren(codeBlock(pretty(json), "json"));
  } else if (live && /^\s*[{[]\s*("|\{|\[|$)/.test(content)) {
    body.drawn = undefined;
    body.replaceChildren(el("pre", { class: "growing" }, content));
  } else {
    if (!body.drawn) body.replaceChildren();
    renderMarkdown(body, content);
  }
}

function footOf(message, again, retry) {
  const line = el(
    "div",
    { class: "measured" },
    [message.model, measured(message)].filter(Boolean).join(" · "),
  );
  const actions = el(
    "div",
    { class: "actions" },
    message.content && copyButton("Copy reply", () => message.content),
    again && !message.failed && iconButton("again", "Regenerate", again),
  );
  const failure = message.failed && troubleView(message.failed, retry);
  return [failure, message.failed ? null : line, actions].filter(Boolean);
}

/** An error message with an optional retry button. */
export function troubleView({ message, detail }, retry) {
  return el(
    "div",
    { class: "trouble", role: "alert" },
    el("p", null, message),
    detail && el("p", { class: "detail" }, detail),
    retry && el("button", { type: "button", class: "button", on: { click: retry } }, "Try again"),
  );
}
