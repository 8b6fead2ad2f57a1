// Inline Markdown: code, emphasis and links, as DOM nodes.

import { el } from "./dom.js";

// Only hostile text is nested deeper.
const DEEPEST = 6;

const EMPHASIS = [
  { mark: "**", name: "strong" },
  { mark: "__", name: "strong" },
  { mark: "~~", name: "s" },
  { mark: "*", name: "em" },
  { mark: "_", name: "em" },
];

const LINK = /!?\[([^\[\]\n]{0,500})\]\(\s*<?([^\s<>()]{1,2000})>?(?:\s+"[^"\n]{0,200}")?\s*\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`()\[\]{}|\\^]{1,2000}/y;
const ESCAPED = /\\([!-/:-@[-`{-~])/y;
const CODE = /(`{1,4})(?!`)/y;

/** Converts a text to nodes. */
export function inline(text, depth = 0) {
  const nodes = [];
  // Marks without a closing mark in the rest of the text; they are not searched for again.
  const unclosed = new Set();
  let plain = "";
  const push = (node) => {
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(node);
  };
  for (let at = 0; at < text.length;) {
    const found = depth < DEEPEST ? special(text, at, depth, unclosed) : null;
    if (!found) {
      plain += text[at];
      at += 1;
    } else {
      if (typeof found.node === "string") plain += found.node;
      else push(found.node);
      at = found.end;
    }
  }
  if (plain) nodes.push(plain);
  return nodes;
}

/** The construct that starts at `at`, as its node and its end; null if none does. */
function special(text, at, depth, unclosed) {
  switch (text[at]) {
    case "\\": {
      const escaped = match(ESCAPED, text, at);
      return escaped && { node: escaped[1], end: at + 2 };
    }
    case "\n":
      // Line breaks in model output are intentional.
      return { node: el("br"), end: at + 1 };
    case "`":
      return code(text, at, unclosed);
    case "!":
    case "[":
      return link(text, at, depth);
    case "h":
      return address(text, at);
    case "*":
    case "_":
    case "~":
      return emphasis(text, at, depth, unclosed);
    default:
      return null;
  }
}

function match(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

function code(text, at, unclosed) {
  const opening = match(CODE, text, at);
  if (!opening || unclosed.has(opening[1])) return null;
  const [, mark] = opening;
  const begin = at + mark.length;
  const end = text.indexOf(mark, begin);
  if (end < 0) {
    unclosed.add(mark);
    return null;
  }
  const inside = text.slice(begin, end).replace(/\n/g, " ");
  const trimmed = /^ .*[^ ].* $/.test(inside) ? inside.slice(1, -1) : inside;
  return { node: el("code", null, trimmed), end: end + mark.length };
}

function link(text, at, depth) {
  const found = match(LINK, text, at);
  if (!found) return null;
  const [whole, label, target] = found;
  return { node: anchor(label, target, depth) ?? whole, end: at + whole.length };
}

function address(text, at) {
  if (/\w/.test(text[at - 1] ?? "")) return null;
  const found = match(ADDRESS, text, at);
  const target = found?.[0].replace(/[.,;:!?*_~]+$/, "");
  const node = target && anchor(target, target, DEEPEST);
  return node ? { node, end: at + target.length } : null;
}

/** A link, or null if the address is unsafe or misleading; the text is then shown unchanged. */
function anchor(label, target, depth) {
  const url = safeUrl(target);
  if (!url || misleads(label, url)) return null;
  const inside = label.trim() ? inline(label, depth + 1) : [url.href];
  return el(
    "a",
    { href: url.href, title: url.href, target: "_blank", rel: "noopener noreferrer nofollow" },
    ...inside,
  );
}

export function safeUrl(target) {
  try {
    const url = new URL(target);
    const plain = (url.protocol === "https:" || url.protocol === "http:") && !url.username && !url.password;
    return plain && /^https?:\/\//i.test(target) ? url : null;
  } catch {
    return null;
  }
}

// Whether the label looks like the address of another host.
function misleads(label, url) {
  const shown = label.trim().match(/^(?:https?:\/\/)?((?:[\w-]+\.)+[a-z]{2,})(?:[/:?#]|$)/i);
  return (
    shown !== null &&
    shown[1].toLowerCase() !== url.hostname &&
    `www.${shown[1].toLowerCase()}` !== url.hostname
  );
}

function emphasis(text, at, depth, unclosed) {
  for (const { mark, name } of EMPHASIS) {
    if (!text.startsWith(mark, at) || unclosed.has(mark)) continue;
    const begin = at + mark.length;
    if (!opens(text, at, begin, mark)) continue;
    const end = closing(text, begin, mark);
    if (end < 0) {
      unclosed.add(mark);
      continue;
    }
    return { node: el(name, null, ...inline(text.slice(begin, end), depth + 1)), end: end + mark.length };
  }
  return null;
}

const word = (character) => character !== undefined && /[\p{L}\p{N}_]/u.test(character);
const blank = (character) => character === undefined || /\s/.test(character);

function opens(text, at, begin, mark) {
  // `snake_case` is not emphasis.
  if (mark[0] === "_" && word(text[at - 1])) return false;
  return !blank(text[begin]) && text[begin] !== mark[0];
}

function closing(text, begin, mark) {
  let end = begin;
  for (let tries = 0; tries < 20; tries += 1) {
    end = text.indexOf(mark, end + 1);
    if (end < 0) return -1;
    const after = text[end + mark.length];
    const doubled = mark.length === 1 && (after === mark || text[end - 1] === mark);
    const within = mark[0] === "_" && word(after);
    if (!blank(text[end - 1]) && !doubled && !within) return end;
    if (doubled) end += 1;
  }
  return -1;
}
