// Formats JSON: indented, with syntax colours.

import { el } from "./dom.js";

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|\b(true|false|null)\b/g;

/** Parses a text that is a JSON object or array; undefined otherwise. */
export function wholeJson(text) {
  const trimmed = text.trim();
  if (!/^[{[]/.test(trimmed)) return undefined;
  try {
    return JSON.parse(trimmed);
  } catch {
    return undefined;
  }
}

export const pretty = (value) => JSON.stringify(value, null, 2);

/** Formatted if it is JSON, else unchanged. */
export function readable(text) {
  try {
    return pretty(JSON.parse(text));
  } catch {
    return text;
  }
}

/** The text as nodes, with classes for names, strings, numbers and literals. */
export function colouredJson(text) {
  const nodes = [];
  let at = 0;
  for (const found of text.matchAll(TOKEN)) {
    const [whole, string, colon, number] = found;
    nodes.push(text.slice(at, found.index));
    if (colon) nodes.push(el("span", { class: "j-name" }, string), colon);
    else nodes.push(el("span", { class: string ? "j-string" : number ? "j-number" : "j-word" }, whole));
    at = found.index + whole.length;
  }
  nodes.push(text.slice(at));
  return nodes;
}
