// Small charts, drawn as SVG.

import { el, svg } from "./dom.js";

const WIDTH = 240;
const HEIGHT = 56;

/** A tile with the current value and a chart of its history. `kind` selects its colour. */
export class Tile {
  constructor({ label, kind, samples, ceiling }) {
    this.ceiling = ceiling;
    this.samples = samples;
    this.history = [];
    this.value = el("span", { class: "tile-value" }, "–");
    this.note = el("span", { class: "tile-note" });
    this.area = svg("path", { class: "area" });
    this.line = svg("path", { class: "line" });
    const chart = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      this.area,
      this.line,
    );
    this.node = el(
      "section",
      { class: `tile ${kind}`, "aria-label": label },
      el("h3", null, label),
      el("p", null, this.value, " ", this.note),
      chart,
    );
  }

  /** Adds a sample, and shows `value` and `note` as its text. */
  add(sample, value, note = "") {
    this.history.push(Number.isFinite(sample) ? sample : 0);
    if (this.history.length > this.samples) this.history.shift();
    this.value.textContent = value;
    this.note.textContent = note;
    this.draw();
  }

  draw() {
    const top = this.ceiling ?? Math.max(...this.history, 1) * 1.15;
    const step = WIDTH / (this.samples - 1);
    const left = WIDTH - step * (this.history.length - 1);
    const y = (sample) => (HEIGHT - 2 - (Math.min(sample, top) / top) * (HEIGHT - 6)).toFixed(1);
    const points = this.history.map((sample, at) => `${(left + at * step).toFixed(1)} ${y(sample)}`);
    this.line.setAttribute("d", `M${points.join("L")}`);
    this.area.setAttribute("d", `M${left.toFixed(1)} ${HEIGHT}L${points.join("L")}L${WIDTH} ${HEIGHT}Z`);
  }
}

/** A stacked bar. Each part is `[class, amount, label]`; `whole` is the amount of the full width. */
export function bar(parts, whole, label) {
  let at = 0;
  const rectangles = parts
    .filter(([, amount]) => amount > 0)
    .map(([kind, amount, title]) => {
      const x = (at / whole) * 100;
      at += amount;
      return svg(
        "rect",
        {
          class: kind,
          x: x.toFixed(2),
          y: 0,
          width: Math.max((amount / whole) * 100, 0.4).toFixed(2),
          height: 10,
        },
        svg("title", null, title),
      );
    });
  return svg(
    "svg",
    {
      class: "bar-chart",
      viewBox: "0 0 100 10",
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    ...rectangles,
  );
}
