// JSON for reading: indented and coloured.

import { el } from "./dom.js";

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|\b(true|false|null)\b/g;

/** The value of a text that is JSON's object or list as a whole. */
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

/** As `pretty` where it is JSON, as it stands otherwise. */
export function readable(text) {
  try {
    return pretty(JSON.parse(text));
  } catch {
    return text;
  }
}

/** The text's nodes, with names, strings, numbers and words told apart. */
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
