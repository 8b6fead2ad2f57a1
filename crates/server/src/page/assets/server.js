// The server view, updated once a second while it is visible.

import { getJson } from "./api.js";
import { Tile, bar } from "./charts.js";
import { el } from "./dom.js";
import { troubleView } from "./message.js";

const EVERY = 1000;
const SAMPLES = 60;

export class ServerView {
  constructor(root) {
    this.tiles = {
      pace: new Tile({ label: "Tokens/s", kind: "warm", samples: SAMPLES }),
      prompt: new Tile({ label: "Prompt tokens/s", kind: "cool", samples: SAMPLES }),
      running: new Tile({ label: "Running", kind: "green", samples: SAMPLES }),
      waiting: new Tile({ label: "Waiting", kind: "plum", samples: SAMPLES }),
      kv: new Tile({ label: "KV in use", kind: "warm", samples: SAMPLES, ceiling: 1 }),
      cache: new Tile({ label: "Prompt tokens from cache", kind: "green", samples: SAMPLES, ceiling: 1 }),
    };
    this.line = el("p", { class: "server-line" }, "Waiting for the server…");
    this.trouble = el("div");
    this.models = el("div", { class: "cards" });
    this.requests = el("div", { class: "requests" });
    root.append(
      el(
        "div",
        { class: "server-body" },
        el("header", null, el("h2", null, "Server"), this.line),
        this.trouble,
        el(
          "div",
          { class: "tiles" },
          Object.values(this.tiles).map((tile) => tile.node),
        ),
        el("h3", null, "Models"),
        this.models,
        el("h3", null, "Requests"),
        legend(),
        this.requests,
      ),
    );
    this.shown = false;
    document.addEventListener("visibilitychange", () => this.poll());
  }

  show(shown) {
    this.shown = shown;
    this.poll();
  }

  get watched() {
    return this.shown && document.visibilityState === "visible";
  }

  async poll() {
    clearTimeout(this.timer);
    if (!this.watched || this.asking) return;
    this.asking = true;
    try {
      // Asks for a key only once, not every second.
      this.draw(await getJson("/stats", {}, !this.refused));
      this.trouble.replaceChildren();
      this.refused = false;
    } catch (error) {
      this.refused = error.status === 401 || error.status === 403;
      const again = () => {
        this.refused = false;
        this.poll();
      };
      this.trouble.replaceChildren(troubleView(error, this.refused ? again : undefined));
    } finally {
      this.asking = false;
    }
    if (this.watched && !this.refused) this.timer = setTimeout(() => this.poll(), EVERY);
  }

  draw(stats) {
    const sum = (pick) => stats.models.reduce((total, model) => total + pick(model), 0);
    const { pace, prompt, running, waiting, kv, cache } = this.tiles;
    const generated = sum((model) => model.generation_tokens_per_second);
    pace.add(generated, figure(generated));
    const read = sum((model) => model.prompt_tokens_per_second);
    prompt.add(read, figure(read));
    const runs = sum((model) => model.running);
    running.add(runs, String(runs));
    const waits = sum((model) => model.waiting);
    const paused = sum((model) => model.paused);
    waiting.add(waits, String(waits), paused ? `${paused} paused` : "");
    const used = sum((model) => model.kv_used_tokens);
    const room = sum((model) => model.kv_capacity_tokens);
    kv.add(share(used, room), percent(used, room), room ? `${whole(used)} of ${whole(room)} tokens` : "");
    const cached = sum((model) => model.totals.cached_tokens);
    const prompts = sum((model) => model.totals.prompt_tokens);
    cache.add(
      share(cached, prompts),
      percent(cached, prompts),
      prompts ? `${whole(cached)} of ${whole(prompts)}` : "",
    );
    this.line.textContent = `Loquat ${stats.version} · up ${lasting(stats.uptime_seconds)}${stats.resident_bytes ? ` · ${bytes(stats.resident_bytes)} resident` : ""}`;
    this.models.replaceChildren(...stats.models.map(modelCard));
    this.requests.replaceChildren(...requestRows(stats.requests));
  }
}

function modelCard(model) {
  const { id, state, totals, kv_cached_bytes: kept, step_seconds: step, memory_bytes: memory } = model;
  const facts = [
    ["Finished", whole(totals.finished)],
    ["Failed", whole(totals.failed + totals.refused)],
    ["Cancelled", whole(totals.cancelled)],
    ["Tokens generated", whole(totals.generation_tokens)],
    ["Prefixes", kept ? bytes(kept) : "–"],
    ["Step", step ? milliseconds(step) : "–"],
    ["Memory", memory ? bytes(memory) : "–"],
  ];
  return el(
    "section",
    { class: "card" },
    el("header", null, el("h4", null, id), el("span", { class: `state ${state}` }, state)),
    el(
      "dl",
      null,
      facts.map(([name, value]) => el("div", null, el("dt", null, name), el("dd", null, value))),
    ),
  );
}

function legend() {
  const parts = [
    ["t-queue", "waiting"],
    ["t-prompt", "prompt"],
    ["t-reply", "reply"],
  ];
  return el(
    "p",
    { class: "legend" },
    parts.map(([kind, label]) => el("span", null, el("i", { class: kind }), label)),
  );
}

function requestRows(requests) {
  if (!requests.length) return [el("p", { class: "note" }, "None yet.")];
  const longest = Math.max(...requests.map(({ seconds }) => seconds), 0.001);
  return requests.map((request) => requestRow(request, longest));
}

function requestRow(request, longest) {
  const {
    route,
    model,
    outcome,
    finish_reason: why,
    seconds,
    prompt_tokens: prompt,
    cached_tokens: cached,
    generation_tokens: given,
  } = request;
  const queued = request.queue_seconds ?? 0;
  const first = Math.max(request.first_token_seconds ?? seconds, queued);
  const parts = [
    ["t-queue", queued, `waiting ${milliseconds(queued)}`],
    ["t-prompt", first - queued, `prompt ${milliseconds(first - queued)}`],
    ["t-reply", seconds - first, `reply ${milliseconds(seconds - first)}`],
  ];
  const words = [
    `${whole(prompt)}${cached ? ` (${whole(cached)} cached)` : ""} → ${whole(given)} tokens`,
    request.first_token_seconds !== null && `first ${milliseconds(request.first_token_seconds)}`,
    milliseconds(seconds),
    request.tokens_per_second && `${figure(request.tokens_per_second)} tokens/s`,
  ].filter(Boolean);
  const when = new Date(request.started_at * 1000).toLocaleTimeString();
  return el(
    "article",
    { class: `request ${outcome}` },
    el(
      "div",
      { class: "request-what" },
      el("code", null, route),
      el("span", { class: "request-model" }, model),
      el("span", { class: "space" }),
      el("span", { class: `state ${outcome}` }, outcome === "finished" && why ? why : outcome),
    ),
    bar(parts, longest, words.join(", ")),
    el("div", { class: "request-words" }, el("time", null, when), el("span", null, words.join(" · "))),
  );
}

const share = (part, all) => (all ? part / all : 0);
const percent = (part, all) => (all ? `${((100 * part) / all).toFixed(part / all < 0.1 ? 1 : 0)} %` : "–");
const whole = (value) => value.toLocaleString("en");
const figure = (value) => (value < 100 ? value.toFixed(1) : whole(Math.round(value)));
const milliseconds = (seconds) =>
  seconds < 1 ? `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms` : `${seconds.toFixed(1)} s`;

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const step = Math.min(Math.floor(Math.log2(Math.max(count, 1)) / 10), units.length - 1);
  return `${(count / 1024 ** step).toFixed(step > 1 ? 1 : 0)} ${units[step]}`;
}

function lasting(seconds) {
  const [days, hours, minutes] = [
    Math.floor(seconds / 86400),
    Math.floor(seconds / 3600) % 24,
    Math.floor(seconds / 60) % 60,
  ];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}
