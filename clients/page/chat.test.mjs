// Talking to the real model.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, test } from "node:test";

import {
  BASE,
  MODEL,
  answered,
  ask,
  asked,
  closeBrowser,
  open,
  ready,
  screenshot,
  withSettings,
} from "./browser.mjs";

const SHORT = { limit: "24", values: { temperature: "0", seed: "7" } };
// Runs until it is stopped, also if the browser is slow to look.
const LONG = { limit: "2000", values: { temperature: "0", min_tokens: "1900" } };

after(closeBrowser);

async function chat(t, settings = SHORT) {
  const page = await open(t);
  await withSettings(page, settings);
  return { page, bodies: asked(page) };
}

test("a reply is measured", async (t) => {
  const { page } = await chat(t);
  await ask(page, "What is the capital of France?");
  const reply = await answered(page);
  assert.match(
    await reply.locator(".measured").textContent(),
    /\d+ tokens · [\d.,]+ tokens\/s · first after [\d.]+ s/,
  );
  assert.ok((await reply.locator(".body").textContent()).trim());
  await screenshot(page, "chat-reply");
});

test("a reply grows until Esc stops it, keeps its text, and the server is idle", async (t) => {
  const { page } = await chat(t, LONG);
  await ask(page, "Count from one to one thousand in words.");
  const grown = (least) => document.querySelector(".reply.live .body")?.textContent.length > least;
  for (const least of [0, 10, 50]) await page.waitForFunction(grown, least);
  assert.equal(await page.locator("#send").getAttribute("aria-label"), "Stop");
  await page.keyboard.press("Escape");
  const reply = await answered(page);
  assert.match(await reply.locator(".measured").textContent(), /stopped/);
  assert.ok((await reply.locator(".body").textContent()).length > 10);
  assert.equal(await page.locator("#send").getAttribute("aria-label"), "Send");
  for (let tries = 0; ; tries += 1) {
    const { models } = await (await fetch(`${BASE}/stats`)).json();
    if (models.every((model) => model.running + model.waiting === 0)) break;
    assert.ok(tries < 3000, "a stopped reply still runs");
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
});

test("regenerating repeats the request", async (t) => {
  const { page, bodies } = await chat(t);
  await ask(page, "Name a colour.");
  const first = await (await answered(page)).locator(".body").textContent();
  await page.getByRole("button", { name: "Regenerate" }).click();
  const second = await (await answered(page)).locator(".body").textContent();
  assert.equal(bodies.length, 2);
  assert.deepEqual(bodies[1], bodies[0]);
  assert.equal(second, first);
  assert.equal(await page.locator(".message.reply").count(), 1);
});

test("only what is set is sent", async (t) => {
  const { page, bodies } = await chat(t, {});
  await page.locator("#open-settings").click();
  await page.getByLabel("System prompt").fill("Answer in one word.");
  await page.getByLabel("Temperature", { exact: true }).fill("0.3");
  await page.getByLabel("Top k", { exact: true }).fill("5");
  await page.getByLabel("Longest reply").fill("8");
  await page.getByLabel("Stop sequences").fill("END");
  assert.equal(await page.locator("#set").textContent(), "5 set");
  await page.keyboard.press("Escape");
  assert.ok(await page.locator("#settings").isHidden());
  await page.locator("#model").selectOption(MODEL);
  await ask(page, "Hello");
  await answered(page);
  assert.deepEqual(bodies[0], {
    model: MODEL,
    messages: [
      { role: "system", content: "Answer in one word." },
      { role: "user", content: "Hello" },
    ],
    temperature: 0.3,
    top_k: 5,
    max_completion_tokens: 8,
    stop: ["END"],
    stream: true,
    stream_options: { include_usage: true },
  });
});

test("the settings list the engine's parameters with their ranges", async (t) => {
  const { page } = await chat(t, {});
  await page.locator("#open-settings").click();
  await page.getByText(/^\d+ more parameters$/).click();
  const field = page.getByLabel("Typical p", { exact: true });
  await field.fill("7");
  assert.match(await field.getAttribute("title"), /From 0.* to 1/);
  assert.equal(await field.evaluate((node) => node.checkValidity()), false);
});

test("an answer by a schema is shown as JSON", async (t) => {
  const schema = {
    type: "object",
    properties: { city: { enum: ["Paris"] }, rainy: { type: "boolean" } },
    required: ["city", "rainy"],
    additionalProperties: false,
  };
  const { page } = await chat(t, { ...SHORT, format: "schema", schema: JSON.stringify(schema) });
  await ask(page, "Is it rainy in Paris?");
  const code = (await answered(page)).locator(".code code");
  assert.equal(JSON.parse(await code.textContent()).city, "Paris");
  assert.equal(await code.locator(".j-name").first().textContent(), '"city"');
  await screenshot(page, "chat-json");
});

test("the last question can be edited, and the conversation cleared and restored", async (t) => {
  const { page, bodies } = await chat(t);
  await ask(page, "Hello");
  await answered(page);
  await page.getByRole("button", { name: "Edit question" }).click();
  assert.equal(await page.locator("#question").inputValue(), "Hello");
  assert.ok(await page.locator("#editing").isVisible());
  await ask(page, "Hello there");
  await answered(page);
  assert.equal(await page.locator(".message.user").count(), 1);
  assert.deepEqual(bodies[1].messages, [{ role: "user", content: "Hello there" }]);

  await page.getByRole("button", { name: "New conversation" }).click();
  assert.equal(await page.locator(".message").count(), 0);
  assert.equal(await page.evaluate(() => localStorage.getItem("loquat.conversation")), null);
  await page.getByRole("button", { name: "Restore" }).click();
  assert.equal(await page.locator(".message").count(), 2);
});

test("the conversation survives a reload, can be exported, and is sent whole", async (t) => {
  const { page, bodies } = await chat(t);
  await ask(page, "My name is Ada.");
  const said = await (await answered(page)).locator(".body").textContent();
  await page.reload();
  await ready(page);
  assert.equal(await page.locator(".message.reply .body").textContent(), said);
  await ask(page, "What is my name?");
  await answered(page);
  assert.deepEqual(
    bodies[1].messages.map(({ role }) => role),
    ["user", "assistant", "user"],
  );

  await page.locator("#open-settings").click();
  const download = page.waitForEvent("download");
  await page.getByRole("button", { name: "Export conversation" }).click();
  const exported = JSON.parse(await readFile(await (await download).path(), "utf8"));
  assert.deepEqual(
    exported.messages.map(({ role }) => role),
    ["user", "assistant", "user", "assistant"],
  );
});

test("a refusal is shown in plain words", async (t) => {
  const { page } = await chat(t, { values: { temperature: "-5" } });
  await ask(page, "Hello");
  const trouble = (await answered(page)).locator(".trouble");
  assert.match(await trouble.textContent(), /The request was not accepted\..*temperature.*Try again/);
});

test("the live view updates, and polls only while it is visible", async (t) => {
  const { page } = await chat(t, LONG);
  let polls = 0;
  page.on("request", (request) => (polls += request.url().endsWith("/stats")));
  await ask(page, "Tell me a long story about a fox.");
  await page.waitForFunction(() => document.querySelector(".reply.live .body")?.textContent);
  await page.getByRole("tab", { name: "Server" }).click();
  await page.waitForFunction(() => document.querySelector(".request.running"));
  const points = () => page.locator(".tile .line").first().getAttribute("d");
  const before = await points();
  await page.waitForFunction(
    (drawn) => document.querySelector(".tile .line").getAttribute("d") !== drawn,
    before,
  );
  const pace = page.getByRole("region", { name: "Tokens/s", exact: true }).locator(".tile-value");
  while (!(Number.parseFloat(await pace.textContent()) > 0)) await page.waitForTimeout(50);
  assert.equal(await page.locator(".card h4").first().textContent(), MODEL);
  assert.equal(await page.locator(".card .state").first().textContent(), "ready");
  await screenshot(page, "server");
  await page.getByRole("tab", { name: "Chat" }).click();
  const stopped = polls;
  await page.waitForTimeout(2500);
  assert.ok(polls <= stopped + 1, "the live view keeps polling");
  await page.keyboard.press("Escape");
  await answered(page);
});
