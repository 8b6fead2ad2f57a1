// Tool calls: shows their arguments, and a form for their results.

import { copyButton, el, icon } from "./dom.js";
import { colouredJson, readable } from "./json.js";

/**
 * A tool call. Shows `result` if it is defined. Otherwise, if `answer` is given, shows a form that
 * calls `answer` with the result.
 */
export function toolCall(call, result, answer) {
  const text = readable(call.arguments || "{}");
  return el(
    "section",
    { class: "call", "aria-label": `Tool call ${call.name}` },
    el(
      "header",
      null,
      icon("tool"),
      el("code", { class: "call-name" }, call.name || "…"),
      el("span", { class: "space" }),
      copyButton("Copy arguments", () => text),
    ),
    el("pre", { tabindex: "0" }, el("code", null, ...colouredJson(text))),
    result !== undefined ? shownResult(result) : answer && resultForm(call, answer),
  );
}

function shownResult(result) {
  const text = readable(result);
  return el(
    "details",
    { class: "result" },
    el("summary", null, "Result"),
    el("pre", { tabindex: "0" }, el("code", null, ...colouredJson(text))),
  );
}

function resultForm(call, answer) {
  const field = el("textarea", {
    rows: "2",
    placeholder: "The tool's result, as text or JSON",
    "aria-label": `Result of ${call.name}`,
  });
  const submit = (event) => {
    event.preventDefault();
    answer(call, field.value);
  };
  const keydown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
  field.addEventListener("keydown", keydown);
  return el(
    "form",
    { class: "result-form", on: { submit } },
    field,
    el("button", { type: "submit", class: "button primary" }, "Send result"),
  );
}

/**
 * Parses tools: a list in OpenAI's format, or of bare functions, or a single one. The message of an
 * error is for the user.
 */
export function parseTools(text) {
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`The tools are not valid JSON: ${error.message}`);
  }
  const list = Array.isArray(tools) ? tools : [tools];
  return list.map((tool) => {
    const whole = tool?.type === "function" ? tool : { type: "function", function: tool };
    if (typeof whole.function?.name !== "string")
      throw new Error("Each tool needs a `name`, and may have a `description` and `parameters`.");
    return whole;
  });
}
