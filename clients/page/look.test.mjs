// Appearance and use: colours, widths, keyboard, accessible names.

import assert from "node:assert/strict";
import { after, test } from "node:test";

import {
  PHONE,
  answerWith,
  answered,
  ask,
  closeBrowser,
  open,
  overflow,
  ready,
  screenshot,
  sse,
} from "./browser.mjs";

after(closeBrowser);

const LONG = `${"word".repeat(80)}\n\n| ${"wide | ".repeat(12)}\n|${"---|".repeat(12)}\n| ${"cell | ".repeat(12)}\n\n\`\`\`\n${"code ".repeat(60)}\n\`\`\`\n\n- https://example.org/${"long/".repeat(40)}`;
const VIEWS = [
  ["desktop-light", undefined, "light"],
  ["desktop-dark", undefined, "dark"],
  ["phone-light", PHONE, "light"],
  ["phone-dark", PHONE, "dark"],
];

const ground = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);

for (const [name, viewport, colorScheme] of VIEWS) {
  test(`nothing is cut off: ${name}`, async (t) => {
    const page = await open(t, { viewport, colorScheme });
    await ready(page);
    assert.equal(await overflow(page), 0);
    await screenshot(page, `look-${name}-welcome`);
    await answerWith(page, sse([{ reasoning_content: "Hm. ".repeat(40) }, { content: LONG }]));
    await ask(page, "w".repeat(300));
    await (await answered(page)).locator("summary").click();
    assert.equal(await overflow(page), 0);
    const wide = await page.locator("#scroller").evaluate((node) => node.scrollWidth - node.clientWidth);
    assert.equal(wide, 0);
    await screenshot(page, `look-${name}-reply`);
    await page.locator("#open-settings").click();
    assert.equal(await overflow(page), 0);
    await screenshot(page, `look-${name}-settings`);
    await page.keyboard.press("Escape");
    await page.getByRole("tab", { name: "Server" }).click();
    await page.locator(".card").first().waitFor();
    assert.equal(await overflow(page), 0);
    await screenshot(page, `look-${name}-server`);
    await page.goto("/docs");
    await page.locator("details.operation").first().waitFor();
    await page.getByText("/v1/chat/completions", { exact: true }).first().click();
    await page.locator("details[open] .property").first().waitFor();
    assert.equal(await overflow(page), 0);
    await screenshot(page, `look-${name}-docs`);
  });
}

test("colours follow the system until they are chosen, and the choice is kept", async (t) => {
  const page = await open(t, { colorScheme: "dark" });
  const dark = await ground(page);
  await page.emulateMedia({ colorScheme: "light" });
  const light = await ground(page);
  assert.notEqual(light, dark);
  await page.locator("#theme").click();
  assert.equal(await ground(page), light);
  await page.locator("#theme").click();
  assert.equal(await ground(page), dark);
  await page.reload();
  assert.equal(await ground(page), dark);
  assert.match(await page.locator("#theme").getAttribute("aria-label"), /dark/);
});

test("everything can be done with the keyboard", async (t) => {
  const page = await open(t);
  await ready(page);
  await answerWith(page, sse([{ content: "Yes." }]));
  const focused = () => page.evaluate(() => document.activeElement.id);
  await page.locator("#theme").focus();
  await page.keyboard.press("/");
  assert.equal(await focused(), "question");
  await page.keyboard.type("one/two");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("three");
  assert.equal(await page.locator("#question").inputValue(), "one/two\nthree");
  await page.keyboard.press("Enter");
  await answered(page);
  assert.equal(await page.locator(".bubble").textContent(), "one/two\nthree");
  assert.equal(await page.locator("#question").inputValue(), "");

  await page.locator("#tab-chat").focus();
  await page.keyboard.press("ArrowRight");
  assert.equal(await focused(), "tab-server");
  assert.ok(await page.locator("#server").isVisible());
  await page.keyboard.press("Control+k");
  assert.equal(await focused(), "question");
  assert.ok(await page.locator("#chat").isVisible());

  await page.locator("#theme").focus();
  await page.keyboard.press("Tab");
  assert.equal(await focused(), "open-settings");
  const ring = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.equal(ring, "solid");
  await page.keyboard.press("Enter");
  assert.equal(await focused(), "set-system");
  await page.keyboard.press("Escape");
  assert.equal(await focused(), "open-settings");
});

test("every control has an accessible name", async (t) => {
  const page = await open(t);
  await ready(page);
  await answerWith(
    page,
    sse([
      { content: "```\ncode\n```" },
      { tool_calls: [{ index: 0, id: "c", function: { name: "f", arguments: "{}" } }] },
    ]),
  );
  await ask(page, "Hello");
  await answered(page);
  await page.locator("#open-settings").click();
  const nameless = await page.evaluate(() => {
    const named = (node) => node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.length;
    const all = [...document.querySelectorAll("button, input, select, textarea, a")];
    return all.filter((node) => !named(node)).map((node) => node.outerHTML);
  });
  assert.deepEqual(nameless, []);
  assert.equal(await page.locator("#status").getAttribute("aria-live"), "polite");
  assert.equal(await page.locator("#status").textContent(), "The reply is complete");
});

test("reduced motion stops animations", async (t) => {
  const page = await open(t, { reducedMotion: "reduce" });
  await ready(page);
  await page.route("**/v1/chat/completions", () => {});
  await ask(page, "Hello");
  const animation = await page
    .locator(".reply.live .body")
    .evaluate((node) => getComputedStyle(node, "::after").animationName);
  assert.equal(animation, "none");
});

test("the API's description can be read, filtered and copied", async (t) => {
  const page = await open(t, { path: "/docs" });
  await page.locator("details.operation").first().waitFor();
  const all = await page.locator("details.operation:visible").count();
  await page.locator("#filter").fill("messages");
  const some = await page.locator("details.operation:visible").count();
  assert.ok(some > 0 && some < all, `${some} of ${all}`);
  await page.getByText("/v1/messages", { exact: true }).click();
  await page.getByRole("button", { name: "Copy code" }).first().click();
  const curl = await page.evaluate(() => navigator.clipboard.readText());
  assert.match(curl, /^curl http.*\/v1\/messages -X POST/);
  await page.locator("details[open] .type a").first().click();
  await page.locator("details.schema[open]").first().waitFor();
});
