// Renders `/openapi.json`: each operation with its fields, its responses and a `curl` command.

import { byId, el } from "./dom.js";
import { inline } from "./inline.js";
import { codeBlock } from "./markdown.js";
import { startTheme } from "./theme.js";

const VERBS = ["get", "post", "put", "patch", "delete"];

startTheme(byId("theme"));
start();

async function start() {
  try {
    const response = await fetch("/openapi.json", { credentials: "omit" });
    show(await response.json());
  } catch {
    byId("about").textContent = "The server cannot be reached. Is it still running?";
  }
}

function show(api) {
  byId("title").textContent = `${api.info.title} ${api.info.version}`;
  byId("about").replaceChildren(...inline(api.info.description ?? ""));
  const known = api.tags ?? [];
  const groups = new Map(known.map(({ name }) => [name, []]));
  for (const [path, item] of Object.entries(api.paths)) {
    for (const verb of VERBS.filter((one) => item[one])) {
      const tag = item[verb].tags?.[0] ?? "other";
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operationView(api, path, verb, item[verb]));
    }
  }
  const sections = [...groups]
    .filter(([, list]) => list.length)
    .map(([tag, list]) => {
      const about = known.find(({ name }) => name === tag)?.description;
      return el("section", null, el("h2", null, about ?? tag), list);
    });
  byId("operations").replaceChildren(...sections);
  const schemas = Object.entries(api.components?.schemas ?? {});
  byId("schemas").replaceChildren(...schemas.map(([name, schema]) => schemaView(name, schema)));
  byId("filter").addEventListener("input", (event) => filter(event.target.value.toLowerCase()));
  openNamed();
  window.addEventListener("hashchange", openNamed);
}

function filter(words) {
  for (const one of document.querySelectorAll("details.operation, details.schema")) {
    one.hidden = !one.dataset.words.includes(words);
  }
  for (const section of document.querySelectorAll("#operations section")) {
    section.hidden = ![...section.querySelectorAll("details.operation")].some((one) => !one.hidden);
  }
}

function openNamed() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!named?.matches("details")) return;
  named.hidden = false;
  named.open = true;
  named.scrollIntoView();
}

/** A `details` element whose content is created when it is first opened, because there are many. */
function lazy(attributes, summary, inside) {
  const node = el("details", attributes, el("summary", null, ...summary));
  node.addEventListener("toggle", () => {
    if (node.open && node.childElementCount === 1) node.append(el("div", { class: "inside" }, ...inside()));
  });
  return node;
}

function operationView(api, path, verb, operation) {
  const { summary = "", description } = operation;
  const title = [
    el("span", { class: `verb ${verb}` }, verb),
    el("code", { class: "path" }, path),
    el("span", { class: "summary" }, summary),
  ];
  const words = `${verb} ${path} ${summary} ${operation.tags?.join(" ")}`.toLowerCase();
  return lazy({ class: "operation", "data-words": words }, title, () => {
    const content = operation.requestBody?.content?.["application/json"];
    const parts = [description && said(description)];
    if (operation.parameters?.length)
      parts.push(el("h4", null, "Parameters"), ...operation.parameters.map(parameterView));
    if (content) parts.push(el("h4", null, "Body"), ...propertiesOf(api, content.schema));
    parts.push(el("h4", null, "Responses"), ...Object.entries(operation.responses).map(responseView));
    parts.push(el("h4", null, "With curl"), codeBlock(curl(api, path, verb, content), "sh"));
    return parts.filter(Boolean);
  });
}

function parameterView({ name, in: place, required, description, schema }) {
  return property(name, { ...schema, description }, required, place);
}

function responseView([status, { description, content }]) {
  const bodies = Object.entries(content ?? {}).map(([kind, { schema }]) =>
    [kind, " ", typeOf(schema ?? {})].flat(),
  );
  return el(
    "div",
    { class: "response" },
    el("span", { class: "status" }, status),
    said(description ?? ""),
    bodies.map((body) => el("span", { class: "type" }, ...body)),
  );
}

const resolve = (api, schema) =>
  schema?.$ref ? api.components.schemas[schema.$ref.split("/").at(-1)] : schema;

function propertiesOf(api, schema) {
  const whole = resolve(api, schema) ?? {};
  const required = new Set(whole.required);
  const named = Object.entries(whole.properties ?? {});
  if (!named.length)
    return [el("div", { class: "property" }, el("span", { class: "type" }, ...typeOf(whole)))];
  return named
    .sort(([a], [b]) => required.has(b) - required.has(a))
    .map(([name, one]) => property(name, one, required.has(name)));
}

function property(name, schema, required, place) {
  const { minimum, maximum, default: usual } = schema;
  const description = schema.description ?? alternatives(schema)?.find((one) => one.description)?.description;
  const range = minimum !== undefined && maximum !== undefined ? `${minimum} to ${maximum}` : "";
  return el(
    "div",
    { class: "property" },
    el(
      "div",
      null,
      el("code", null, name),
      el("span", { class: "type" }, ...typeOf(schema)),
      required && el("span", { class: "must" }, "required"),
      el(
        "span",
        { class: "note" },
        [place, range, usual !== undefined && `default ${JSON.stringify(usual)}`].filter(Boolean).join(" · "),
      ),
    ),
    description && said(description),
  );
}

const said = (text) => el("div", { class: "said" }, ...inline(text));

/** The alternatives of a schema without null, which clients send for omitted fields. */
const alternatives = (schema) =>
  (schema.oneOf ?? schema.anyOf ?? schema.allOf)?.filter((one) => one.type !== "null");

/** A short description of a type, as nodes. Names of schemas are links. */
function typeOf(schema, depth = 0) {
  if (depth > 4) return ["…"];
  if (schema.$ref) {
    const name = schema.$ref.split("/").at(-1);
    return [el("a", { href: `#${name}` }, name)];
  }
  const either = alternatives(schema);
  if (either) return either.flatMap((one, at) => [at ? " | " : "", ...typeOf(one, depth + 1)]);
  if (schema.enum) return [schema.enum.map((one) => JSON.stringify(one)).join(" | ")];
  const type = [schema.type ?? "any"]
    .flat()
    .filter((one) => one !== "null")
    .join(" | ");
  if (type === "array") return ["list of ", ...typeOf(schema.items ?? {}, depth + 1)];
  return [type];
}

function schemaView(name, schema) {
  return lazy(
    { class: "schema", id: name, "data-words": name.toLowerCase() },
    [el("code", { class: "path" }, name)],
    () => [schema.description && said(schema.description), ...schemaBody(schema)].filter(Boolean),
  );
}

function schemaBody(schema) {
  if (schema.properties) return propertiesOf({}, schema);
  const either = alternatives(schema);
  if (!either) return propertiesOf({}, schema);
  return either.map((one) =>
    el(
      "div",
      { class: "property" },
      one.description && said(one.description),
      ...(one.properties ? propertiesOf({}, one) : [el("span", { class: "type" }, ...typeOf(one))]),
    ),
  );
}

function curl(api, path, verb, content) {
  const lines = [`curl ${location.origin}${path}`];
  if (verb !== "get") lines[0] += ` -X ${verb.toUpperCase()}`;
  if (content) {
    const body = JSON.stringify(content.example ?? example(api, content.schema), null, 2);
    lines.push("-H 'content-type: application/json'", `-d '${body.replaceAll("'", "'\\''")}'`);
  }
  return lines.join(" \\\n  ");
}

/** An example with only the required fields. */
function example(api, schema, depth = 0) {
  const whole = resolve(api, schema) ?? {};
  if (whole.example !== undefined) return whole.example;
  if (whole.default !== undefined) return whole.default;
  if (whole.enum) return whole.enum[0];
  const either = alternatives(whole);
  if (either?.length) return example(api, either[0], depth + 1);
  if (depth > 6) return null;
  switch ([whole.type].flat()[0]) {
    case "object":
      return Object.fromEntries(
        (whole.required ?? []).map((name) => [name, example(api, whole.properties?.[name], depth + 1)]),
      );
    case "array":
      return [example(api, whole.items, depth + 1)];
    case "integer":
    case "number":
      return whole.minimum ?? 1;
    case "boolean":
      return true;
    default:
      return "…";
  }
}
