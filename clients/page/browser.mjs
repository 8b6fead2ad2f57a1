// A browser on the page of the server at LOQUAT_URL, and replies that a test defines.

import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import packed from "@sparticuz/chromium";
import { chromium } from "playwright-core";

export const BASE = process.env.LOQUAT_URL ?? "http://127.0.0.1:8080";
export const MODEL = process.env.LOQUAT_MODEL ?? "smollm2:135m";
/** Where screenshots go. */
export const ARTEFACTS =
  process.env.LOQUAT_ARTEFACTS ?? fileURLToPath(new URL("../../target/clients/page", import.meta.url));

// A server that was built without optimisation is slow.
export const PATIENCE = 60_000;

const DESKTOP = { width: 1280, height: 860 };
export const PHONE = { width: 360, height: 740 };

let browser;

async function launch() {
  const executablePath = process.env.LOQUAT_CHROMIUM ?? (await packed.executablePath());
  // Containers and CI runners have no user namespaces for its sandbox.
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--no-zygote", "--disable-gpu"] });
}

export async function closeBrowser() {
  await browser?.close();
}

/**
 * Opens the page for a test. At the test's end the page must not have thrown or violated the content
 * policy; with `violates` it must have.
 */
export async function open(t, { path = "/", viewport = DESKTOP, violates = false, ...options } = {}) {
  browser ??= await launch();
  const context = await browser.newContext({
    viewport,
    baseURL: BASE,
    permissions: ["clipboard-read", "clipboard-write"],
    ...options,
  });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  const trouble = [];
  page.on("pageerror", (error) => trouble.push(`threw: ${error.message}`));
  page.on("console", (message) => {
    if (/Content Security Policy|Trusted ?Type/i.test(message.text())) trouble.push(message.text());
  });
  await page.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) =>
      console.error(`Content Security Policy: ${event.violatedDirective} ${event.blockedURI}`),
    );
  });
  t.after(async () => {
    await context.close();
    if (violates) assert.notDeepEqual(trouble, []);
    else assert.deepEqual(trouble, []);
  });
  await page.goto(path);
  return page;
}

/** Waits until the page has listed the models. */
export async function ready(page) {
  await page.locator("#model option").first().waitFor({ state: "attached" });
}

/** Stores settings as if a user had made them. */
export async function withSettings(page, settings) {
  await page.evaluate((kept) => {
    const empty = {
      system: "",
      format: "text",
      schema: "",
      tools: "",
      effort: "",
      limit: "",
      stop: "",
      values: {},
    };
    localStorage.setItem("loquat.settings", JSON.stringify({ ...empty, ...kept }));
  }, settings);
  await page.reload();
  await ready(page);
}

export async function ask(page, question) {
  await page.locator("#question").fill(question);
  await page.locator("#question").press("Enter");
}

/** Waits for the last reply's end. */
export async function answered(page) {
  const reply = page.locator(".message.reply").last();
  await page.locator(".message.reply:last-child:not(.live) .foot > *").first().waitFor();
  return reply;
}

/** Collects the bodies of the page's requests for replies. */
export function asked(page) {
  const bodies = [];
  page.on("request", (request) => {
    if (request.url().endsWith("/v1/chat/completions")) bodies.push(request.postDataJSON());
  });
  return bodies;
}

/** A stream of these deltas, as the server would send it. */
export function sse(
  deltas,
  {
    finish = "stop",
    usage = { prompt_tokens: 9, completion_tokens: deltas.length, total_tokens: 9 + deltas.length },
  } = {},
) {
  const chunk = (choice) => ({
    id: "chatcmpl-1",
    object: "chat.completion.chunk",
    created: 1,
    model: MODEL,
    choices: choice ? [{ index: 0, ...choice }] : [],
  });
  const frames = deltas.map((delta) => chunk({ delta, finish_reason: null }));
  frames.push(chunk({ delta: {}, finish_reason: finish }), { ...chunk(), usage });
  return frames.map((frame) => `data: ${JSON.stringify(frame)}\n\n`).join("") + "data: [DONE]\n\n";
}

/** Gives these answers to requests for replies, one after the other. */
export async function answerWith(page, ...answers) {
  const left = [...answers];
  await page.route("**/v1/chat/completions", (route) => {
    const answer = left.length > 1 ? left.shift() : left[0];
    if (answer === "abort") return route.abort();
    const whole =
      typeof answer === "string" ? { status: 200, contentType: "text/event-stream", body: answer } : answer;
    return route.fulfill(whole);
  });
}

export async function screenshot(page, name) {
  await mkdir(ARTEFACTS, { recursive: true });
  await page.screenshot({ path: join(ARTEFACTS, `${name}.png`) });
}

/** How much wider the page is than its window. */
export const overflow = (page) =>
  page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
