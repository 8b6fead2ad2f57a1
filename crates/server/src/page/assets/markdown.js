// Converts Markdown to DOM nodes. Blocks that did not change since the last call keep their nodes, so
// that a long reply is not redrawn while it streams.

import { copyButton, el } from "./dom.js";
import { inline } from "./inline.js";
import { colouredJson } from "./json.js";

// Only hostile text is nested deeper.
const DEEPEST = 8;

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const DELIMITERS = /^ *\|?(?: *:?-+:? *\|)+ *:?-*:? *$/;

/** Renders a text into an element. Redraws only what changed since the last call. */
export function renderMarkdown(into, text) {
  const blocks = parse(text);
  const drawn = into.drawn ?? [];
  let same = 0;
  while (same < blocks.length && drawn[same]?.source === blocks[same].source) same += 1;
  drawn.splice(same).forEach(({ node }) => node.remove());
  for (const block of blocks.slice(same)) {
    const node = draw(block, 0);
    into.append(node);
    drawn.push({ source: block.source, node });
  }
  into.drawn = drawn;
}

function parse(text) {
  const lines = text.split("\n");
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const block =
      fence(lines, at) ??
      heading(lines, at) ??
      rule(lines, at) ??
      quote(lines, at) ??
      list(lines, at) ??
      table(lines, at) ??
      paragraph(lines, at);
    block.source = `${block.kind}\n${lines.slice(at, block.end).join("\n")}`;
    blocks.push(block);
    at = block.end;
  }
  return blocks;
}

function fence(lines, at) {
  const opening = lines[at].match(FENCE);
  if (!opening) return null;
  const [, mark, info] = opening;
  const closes = (line) => line.trim().startsWith(mark) && !line.trim().replaceAll(mark[0], "");
  let end = at + 1;
  while (end < lines.length && !closes(lines[end])) end += 1;
  const text = lines.slice(at + 1, end).join("\n");
  return { kind: "code", language: info.trim().split(/\s+/)[0], text, end: Math.min(end + 1, lines.length) };
}

function heading(lines, at) {
  const found = lines[at].match(HEADING);
  return found && { kind: "heading", level: found[1].length, text: found[2], end: at + 1 };
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? { kind: "rule", end: at + 1 } : null;
}

function quote(lines, at) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  if (end === at) return null;
  return {
    kind: "quote",
    text: lines
      .slice(at, end)
      .map((line) => line.replace(QUOTE, ""))
      .join("\n"),
    end,
  };
}

function list(lines, at) {
  const first = lines[at].match(ITEM);
  if (!first || first[1].length > 3) return null;
  const ordered = /\d/.test(first[2]);
  const items = [];
  let end = at;
  let within = 0;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    const item = line.match(ITEM);
    const indent = line.match(/^ */)[0].length;
    if (item && indent < Math.max(within, 1) && indent <= first[1].length + 1) {
      if (/\d/.test(item[2]) !== ordered || RULE.test(line)) break;
      within = item[0].length;
      items.push([line.slice(item[0].length)]);
    } else if (!line.trim()) {
      const next = lines.slice(end + 1).find((one) => one.trim());
      if (next === undefined || (!ITEM.test(next) && !next.startsWith("  "))) break;
      items.at(-1).push("");
    } else if (indent >= 2) {
      items.at(-1).push(line.slice(Math.min(indent, within)));
    } else if (lines[end - 1].trim() && !begins(lines, end)) {
      items.at(-1).push(line.trim());
    } else {
      break;
    }
  }
  const start = ordered ? Number.parseInt(first[2], 10) : undefined;
  return { kind: "list", ordered, start, items: items.map((item) => item.join("\n")), end };
}

const cells = (line) =>
  line
    .trim()
    .replace(/^\||\|$/g, "")
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim().replaceAll("\\|", "|"));

function table(lines, at) {
  if (!lines[at].includes("|") || !DELIMITERS.test(lines[at + 1] ?? "")) return null;
  const head = cells(lines[at]);
  const sides = cells(lines[at + 1]).map((cell) =>
    /^:-*:$/.test(cell) ? "center" : /-:$/.test(cell) ? "right" : "left",
  );
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end += 1;
  return { kind: "table", head, sides, rows: lines.slice(at + 2, end).map(cells), end };
}

const begins = (lines, at) =>
  Boolean(
    FENCE.test(lines[at]) ||
    HEADING.test(lines[at]) ||
    RULE.test(lines[at]) ||
    QUOTE.test(lines[at]) ||
    ITEM.test(lines[at]),
  );

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !begins(lines, end)) end += 1;
  return {
    kind: "paragraph",
    text: lines
      .slice(at, end)
      .map((line) => line.trim())
      .join("\n"),
    end,
  };
}

function draw(block, depth) {
  switch (block.kind) {
    case "code":
      return codeBlock(block.text, block.language);
    case "heading":
      // The page itself uses the first two levels.
      return el(`h${Math.min(block.level + 2, 6)}`, null, ...inline(block.text));
    case "rule":
      return el("hr");
    case "quote":
      return el("blockquote", null, ...nested(block.text, depth));
    case "list":
      return el(
        block.ordered ? "ol" : "ul",
        { start: block.start },
        block.items.map((item) => listItem(item, depth)),
      );
    case "table":
      return drawTable(block);
    default:
      return el("p", null, ...inline(block.text));
  }
}

function nested(text, depth) {
  if (depth >= DEEPEST) return [text];
  return parse(text).map((block) => draw(block, depth + 1));
}

function listItem(text, depth) {
  const tight = !text.includes("\n\n");
  const nodes = nested(text, depth);
  return el(
    "li",
    null,
    ...(tight && nodes[0]?.tagName === "P" ? [...nodes[0].childNodes, ...nodes.slice(1)] : nodes),
  );
}

function drawTable({ head, sides, rows }) {
  const row = (name, list) =>
    el(
      "tr",
      null,
      head.map((_, at) => el(name, { class: `to-${sides[at] ?? "left"}` }, ...inline(list[at] ?? ""))),
    );
  const body = rows.map((cellsOf) => row("td", cellsOf));
  return el(
    "div",
    { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
    el("table", null, el("thead", null, row("th", head)), el("tbody", null, body)),
  );
}

/** A code block with its language and a copy button. */
export function codeBlock(text, language) {
  const shown = language === "json" ? colouredJson(text) : [text];
  return el(
    "div",
    { class: "code" },
    el(
      "div",
      { class: "code-bar" },
      el("span", null, language || "text"),
      copyButton("Copy code", () => text),
    ),
    el("pre", { tabindex: "0" }, el("code", null, ...shown)),
  );
}
