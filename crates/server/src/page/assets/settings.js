// Settings: system prompt, sampling, reply format, tools. Empty fields use the server's defaults.

import { PageError, getJson } from "./api.js";
import { byId, el, iconButton } from "./dom.js";
import { forgetKey, key } from "./key.js";
import { keep, recall } from "./store.js";
import { parseTools } from "./tools.js";

const FIRST = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed"];
const EMPTY = {
  system: "",
  format: "text",
  schema: "",
  tools: "",
  effort: "",
  limit: "",
  stop: "",
  values: {},
};
const SCHEMA =
  '{\n  "type": "object",\n  "properties": { "answer": { "type": "string" } },\n  "required": ["answer"]\n}';
const TOOLS =
  '[{\n  "name": "get_weather",\n  "description": "The weather in a city",\n  "parameters": {\n    "type": "object",\n    "properties": { "city": { "type": "string" } }\n  }\n}]';

export class Settings {
  constructor({ clear, exportAll, keyChanged }) {
    this.doing = { clear, exportAll, keyChanged };
    this.state = { ...EMPTY, ...recall("settings") };
    this.panel = byId("settings");
    this.parameters = FIRST.map((name) => ({ name }));
    this.draw();
    this.count();
  }

  toggle(open = this.panel.hidden) {
    if (open === !this.panel.hidden) return;
    this.panel.hidden = !open;
    byId("open-settings").setAttribute("aria-expanded", String(open));
    if (open) {
      this.describe();
      this.panel.querySelector("textarea, input").focus();
    } else {
      byId("open-settings").focus();
    }
  }

  /** The settings as request fields. Throws a `PageError` if a field is invalid. */
  request() {
    const { system, format, schema, tools, effort, limit, stop, values } = this.state;
    const body = {};
    for (const [name, text] of Object.entries(values)) {
      if (text !== "") body[name] = number(name, text);
    }
    if (limit !== "") body.max_completion_tokens = number("longest_reply", limit);
    if (effort) body.reasoning_effort = effort;
    const stops = stop.split("\n").filter(Boolean);
    if (stops.length) body.stop = stops;
    if (format === "json") body.response_format = { type: "json_object" };
    if (format === "schema")
      body.response_format = {
        type: "json_schema",
        json_schema: { name: "reply", schema: parsed(schema), strict: true },
      };
    if (tools.trim()) body.tools = wanted(tools);
    return { system, body };
  }

  /** As `request`, but only the system prompt if a field is invalid. */
  lenient() {
    try {
      return this.request();
    } catch {
      return { system: this.state.system, body: {} };
    }
  }

  set(name, value) {
    this.state[name] = value;
    this.changed();
  }

  changed() {
    keep("settings", this.state);
    this.count();
  }

  /** Shows how many settings differ from the server's defaults. */
  count() {
    const { system, format, tools, effort, limit, stop, values } = this.state;
    const numbers = Object.values(values).filter((text) => text !== "").length;
    const others = [system.trim(), format !== "text", tools.trim(), effort, limit, stop.trim()].filter(
      Boolean,
    ).length;
    const chip = byId("set");
    chip.hidden = numbers + others === 0;
    chip.textContent = `${numbers + others} set`;
    chip.title = "Settings that differ from the server's";
  }

  /** Reads ranges and descriptions of the parameters from the server's API description. */
  async describe() {
    if (this.described) return;
    this.described = true;
    try {
      const { components } = await getJson("/openapi.json", {}, false);
      const properties = Object.entries(components.schemas.ChatCompletionRequest.properties);
      const numbers = properties.filter(
        ([, { "x-sampling": sampling, type }]) =>
          sampling && [type].flat().some((one) => one === "number" || one === "integer"),
      );
      if (!numbers.length) return;
      const place = ({ name }) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
      this.parameters = numbers
        .map(([name, schema]) => ({ name, ...schema }))
        .sort((a, b) => place(a) - place(b));
      this.sampling.replaceChildren(...this.fields());
    } catch {
      // Without the API description the fields have no ranges; the server still checks them.
    }
  }

  draw() {
    const { state } = this;
    this.sampling = el("div", null, ...this.fields());
    const schema = this.area("schema", "JSON schema", 6, SCHEMA, "code-box");
    schema.hidden = state.format !== "schema";
    const format = this.choice(
      "format",
      "Reply",
      [
        ["text", "Text"],
        ["json", "JSON"],
        ["schema", "JSON with a schema"],
      ],
      () => (schema.hidden = state.format !== "schema"),
    );
    this.panel.replaceChildren(
      el(
        "header",
        null,
        el("h2", null, "Settings"),
        iconButton("close", "Close settings", () => this.toggle(false)),
      ),
      el(
        "div",
        { class: "panel-body" },
        this.area("system", "System prompt", 4, "You are a helpful assistant."),
        group("Sampling", this.sampling),
        group(
          "Reply",
          el(
            "div",
            { class: "pair" },
            this.line("limit", "Longest reply", { inputmode: "numeric", placeholder: "tokens" }),
            this.choice("effort", "Reasoning", [
              ["", "Default"],
              ["none", "None"],
              ["low", "Low"],
              ["medium", "Medium"],
              ["high", "High"],
            ]),
          ),
          this.area("stop", "Stop sequences (one per line)", 1, ""),
          format,
          schema,
        ),
        group("Tools", this.area("tools", "Functions the model may call, as JSON", 4, TOOLS, "code-box")),
        group(
          "This browser",
          el(
            "div",
            { class: "row" },
            el(
              "button",
              { type: "button", class: "button", on: { click: () => this.doing.exportAll() } },
              "Export conversation",
            ),
            el(
              "button",
              { type: "button", class: "button", on: { click: () => this.reset() } },
              "Reset settings",
            ),
            el(
              "button",
              { type: "button", class: "button danger", on: { click: () => this.doing.clear() } },
              "Delete conversation",
            ),
            key() &&
              el(
                "button",
                { type: "button", class: "button", on: { click: () => this.dropKey() } },
                "Forget the key",
              ),
          ),
          el(
            "p",
            { class: "note" },
            "Conversation and settings are kept in this browser until you delete them; a key only until this tab is closed.",
          ),
        ),
      ),
    );
  }

  reset() {
    this.state = { ...EMPTY, values: {} };
    this.changed();
    this.draw();
  }

  dropKey() {
    forgetKey();
    this.draw();
    this.doing.keyChanged();
  }

  fields() {
    const first = this.parameters.filter(({ name }) => FIRST.includes(name));
    const more = this.parameters.filter(({ name }) => !FIRST.includes(name));
    const pairs = el(
      "div",
      { class: "pair" },
      first.map((one) => this.parameter(one)),
    );
    if (!more.length) return [pairs];
    return [
      pairs,
      el(
        "details",
        { class: "more" },
        el("summary", null, `${more.length} more parameters`),
        el(
          "div",
          { class: "pair" },
          more.map((one) => this.parameter(one)),
        ),
      ),
    ];
  }

  parameter({ name, description, minimum, maximum }) {
    const id = `set-${name}`;
    const about =
      description &&
      `${description}.${minimum !== undefined && maximum !== undefined ? ` From ${minimum} to ${maximum}.` : ""}`;
    const input = (event) => {
      this.state.values[name] = event.target.value.trim();
      event.target.setCustomValidity(outside(event.target.value.trim(), minimum, maximum));
      this.changed();
    };
    const field = el("input", {
      id,
      inputmode: "decimal",
      autocomplete: "off",
      placeholder: "default",
      title: about,
      on: { input },
    });
    field.value = this.state.values[name] ?? "";
    return el("div", { class: "field" }, el("label", { for: id, title: about }, worded(name)), field);
  }

  line(name, label, attributes) {
    const id = `set-${name}`;
    const field = el("input", {
      id,
      autocomplete: "off",
      ...attributes,
      on: { input: (event) => this.set(name, event.target.value.trim()) },
    });
    field.value = this.state[name];
    return el("div", { class: "field" }, el("label", { for: id }, label), field);
  }

  area(name, label, rows, placeholder, kind) {
    const id = `set-${name}`;
    const field = el("textarea", {
      id,
      rows,
      placeholder,
      class: kind,
      spellcheck: kind ? "false" : null,
      on: { input: (event) => this.set(name, event.target.value) },
    });
    field.value = this.state[name];
    return el("div", { class: "field" }, el("label", { for: id }, label), field);
  }

  choice(name, label, options, then = () => {}) {
    const id = `set-${name}`;
    const change = (event) => {
      this.set(name, event.target.value);
      then();
    };
    const field = el(
      "select",
      { id, on: { change } },
      options.map(([value, text]) => el("option", { value, selected: value === this.state[name] }, text)),
    );
    return el("div", { class: "field" }, el("label", { for: id }, label), field);
  }
}

const worded = (name) => (name[0].toUpperCase() + name.slice(1)).replaceAll("_", " ");

function group(title, ...children) {
  return el("section", { class: "group" }, el("h3", null, title), ...children);
}

function outside(text, minimum, maximum) {
  const value = Number(text);
  if (text === "" || (value >= (minimum ?? -Infinity) && value <= (maximum ?? Infinity))) return "";
  return minimum === undefined ? "A number" : `A number from ${minimum} to ${maximum}`;
}

function number(name, text) {
  const value = Number(text);
  if (Number.isFinite(value)) return value;
  throw new PageError(`The setting “${worded(name)}” is not a number.`, `It is “${text}”.`);
}

function parsed(schema) {
  try {
    return JSON.parse(schema);
  } catch (error) {
    throw new PageError("The JSON schema in the settings is not valid JSON.", error.message);
  }
}

function wanted(tools) {
  try {
    return parseTools(tools);
  } catch (error) {
    throw new PageError("The tools in the settings cannot be used.", error.message);
  }
}
