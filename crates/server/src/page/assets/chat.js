// The conversation and its actions.

import { PageError } from "./api.js";
import { announce, byId, download, el } from "./dom.js";
import { imagesOf } from "./images.js";
import { replyView, troubleView, userView } from "./message.js";
import { blank, stream, wireMessages } from "./reply.js";
import { keep, recall } from "./store.js";

const EXAMPLES = [
  "Explain how rainbows form, in three sentences.",
  "Write a haiku about the sea.",
  "List five uses for a paper clip.",
];

export class Chat {
  /** `ask` fills in the question field; `running` is called when a reply starts and ends. */
  constructor({ settings, model, ask, running }) {
    this.settings = settings;
    this.model = model;
    this.ask = ask;
    this.running = running;
    this.messages = recall("conversation") ?? [];
    this.stopper = null;
    this.scroller = byId("scroller");
    this.thread = byId("thread");
    this.following = true;
    this.watchScroll();
    this.draw();
  }

  get busy() {
    return this.stopper !== null;
  }

  /** Sends a question with images. An edited one replaces the messages from index `instead` on. */
  send({ content, images }, instead) {
    if (instead !== undefined) this.messages.length = instead;
    this.messages.push({ role: "user", content, ...(images.length ? { images } : {}) });
    this.cleared = null;
    this.following = true;
    return this.reply();
  }

  stop() {
    this.stopper?.abort();
  }

  /**
   * Starts a new conversation. The old one can be restored until the next question or until the page
   * is closed.
   */
  clear() {
    this.stop();
    if (this.messages.length) this.cleared = this.messages;
    this.messages = [];
    keep("conversation", null);
    this.draw();
  }

  bringBack() {
    this.messages = this.cleared;
    this.cleared = null;
    this.save();
    this.draw();
  }

  export() {
    const { system, body } = this.settings.lenient();
    const whole = {
      exported: new Date().toISOString(),
      model: this.model(),
      settings: { system, ...body },
      messages: this.messages,
    };
    download("conversation.json", JSON.stringify(whole, null, 2));
  }

  /** The index of the last question, or -1. */
  lastQuestion() {
    return this.messages.findLastIndex((message) => message.role === "user");
  }

  again() {
    const last = this.messages.at(-1);
    if (last?.role === "assistant") this.messages.pop();
    return this.reply();
  }

  /** Adds a tool's result. Continues once every call of the reply has its result. */
  answerTool(call, content) {
    this.messages.push({ role: "tool", callId: call.id, content });
    const reply = this.messages.findLast((message) => message.role === "assistant");
    const results = this.results();
    keep("conversation", this.messages);
    if (reply.calls.every((one) => results.has(one.id))) return this.reply();
    this.draw();
  }

  results() {
    const given = this.messages.filter((message) => message.role === "tool");
    return new Map(given.map(({ callId, content }) => [callId, content]));
  }

  async reply() {
    if (this.busy) return;
    const reply = blank(this.model());
    const { signal } = (this.stopper = new AbortController());
    const history = this.messages.slice();
    this.messages.push(reply);
    this.running(true);
    this.draw();
    announce("Waiting for the reply");
    try {
      const { system, body } = this.settings.request();
      const whole = { model: reply.model, messages: wireMessages(system, history), ...body };
      await stream(whole, reply, signal, () => this.refresh());
      announce("The reply is complete");
    } catch (error) {
      this.broken(reply, error);
    } finally {
      this.stopper = null;
      reply.calls = reply.calls.filter(Boolean);
      this.save();
      this.running(false);
      this.draw();
    }
  }

  broken(reply, error) {
    if (error.name === "AbortError") {
      reply.finish = "stopped";
      announce("Stopped");
      return;
    }
    const known = error instanceof PageError;
    const { message, detail } = known ? error : new PageError("The reply was interrupted.", error.message);
    reply.failed = { message, detail };
    announce(message);
  }

  save() {
    // The conversation may have been cleared meanwhile.
    if (!this.messages.length) return;
    if (keep("conversation", this.messages)) return;
    const text = this.messages.map(({ images, ...message }) => message);
    const saved = keep("conversation", text) ? "its images are" : "this conversation is";
    announce(`The browser's storage is full; ${saved} not saved`);
  }

  /** Redraws the streaming reply, at most once per frame. */
  refresh() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      if (!this.busy) return;
      this.views.at(-1)?.update(true);
      this.follow();
    });
  }

  draw() {
    const shown = this.messages
      .map((message, at) => ({ message, at }))
      .filter(({ message }) => message.role !== "tool");
    const results = this.results();
    this.views = shown.map(({ message, at }) => this.view(message, at, results));
    const nodes = this.views.map((view) => view.node);
    if (!nodes.length) nodes.push(this.welcome());
    if (!this.busy && this.messages.at(-1)?.role === "user") {
      nodes.push(troubleView({ message: "This question was not answered." }, () => this.reply()));
    }
    this.thread.replaceChildren(...nodes);
    this.follow();
  }

  view(message, at, results) {
    if (message.role === "user") {
      const editable = !this.busy && at === this.lastQuestion();
      return userView(message, { edit: editable && (() => this.ask(message.content, at, imagesOf(message))) });
    }
    const last = at === this.messages.length - 1;
    const open = !this.busy && this.messages.slice(at + 1).every((later) => later.role === "tool");
    const again = last && !this.busy ? () => this.again() : undefined;
    return replyView(message, {
      again,
      retry: again,
      answer: open ? (call, content) => this.answerTool(call, content) : undefined,
      results,
      running: last && this.busy,
    });
  }

  welcome() {
    const examples = EXAMPLES.map((text) =>
      el("button", { type: "button", class: "example", on: { click: () => this.ask(text) } }, text),
    );
    return el(
      "div",
      { class: "welcome" },
      el("img", { src: "/page/icon.svg", alt: "", width: "56", height: "56" }),
      el("h1", null, "What would you like to know?"),
      el("p", null, "The model runs on this server. The conversation stays in this browser."),
      el("div", { class: "examples" }, examples),
      this.cleared &&
        el(
          "button",
          { type: "button", class: "quiet", on: { click: () => this.bringBack() } },
          "Restore the conversation",
        ),
    );
  }

  watchScroll() {
    const latest = byId("latest");
    this.scroller.addEventListener(
      "scroll",
      () => {
        const { scrollHeight, scrollTop, clientHeight } = this.scroller;
        this.following = scrollHeight - scrollTop - clientHeight < 60;
        latest.hidden = this.following;
      },
      { passive: true },
    );
    latest.addEventListener("click", () => {
      this.following = true;
      this.follow();
    });
  }

  follow() {
    if (this.following) this.scroller.scrollTop = this.scroller.scrollHeight;
  }
}
