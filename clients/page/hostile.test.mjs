// Output of a model, a tool or a server is only ever text.

import assert from "node:assert/strict";
import { after, test } from "node:test";

import { answerWith, answered, ask, closeBrowser, open, ready, screenshot, sse } from "./browser.mjs";

after(closeBrowser);

const RUN = "window.ran=1";
const HOSTILE = [
  `<script>${RUN}</script>`,
  `<img src=x onerror="${RUN}">`,
  `<svg onload="${RUN}"><animate onbegin="${RUN}"></svg>`,
  `<iframe srcdoc="<script>parent.${RUN}</script>"></iframe>`,
  `<a href="javascript:${RUN}">click</a>`,
  `[click](javascript:${RUN})`,
  `[click](JaVaScRiPt:${RUN})`,
  `[click](java\nscript:${RUN})`,
  `[click](data:text/html,<script>${RUN}</script>)`,
  `[click](//evil.example/a)`,
  `[click](https://user:secret@evil.example/)`,
  `[https://good.example/login](https://evil.example/login)`,
  `![x](https://evil.example/track.png)`,
  `![x](x"onerror="${RUN})`,
  `[a](https://example.org/"onmouseover="${RUN})`,
  "```html\n<script>" + RUN + "</script>\n```",
  '```"><img/src/onerror=' + RUN + ">\ncode\n```",
  `<style>* { display: none !important }</style>`,
  `<meta http-equiv="refresh" content="0;url=https://evil.example/">`,
  `<form action="https://evil.example/"><button>OK</button></form>`,
  `<base href="https://evil.example/">`,
  `| <img src=x onerror=${RUN}> | b |\n|---|---|\n| <script>${RUN}</script> | 2 |`,
  `{"a": "<img src=x onerror=${RUN}>"}`,
  `{{constructor.constructor('${RUN}')()}}`,
  "\u202Egnp.exe \u0000 \uFFFF \uD800",
].map((text) => text.replaceAll("\uD800", "\uFFFD"));

// Elements that only hostile text would create. The page itself draws icons as SVG.
const NEVER =
  "script, iframe, img, style, meta, base, object, embed, form[action], svg:not(.glyph), [onerror], [onload], [onmouseover], [srcdoc]";

async function unharmed(page) {
  assert.equal(await page.evaluate(() => window.ran), undefined);
  assert.equal(await page.locator("#thread").locator(NEVER).count(), 0);
  const links = await page
    .locator("#thread a")
    .evaluateAll((all) =>
      all.map((link) => [link.protocol, link.username, link.rel, link.textContent, link.hostname]),
    );
  for (const [protocol, username, rel, label, host] of links) {
    assert.match(protocol, /^https?:$/);
    assert.equal(username, "");
    assert.match(rel, /noopener/);
    assert.ok(!label.includes("good.example"), `${label} leads to ${host}`);
  }
}

test("hostile replies stay text, before and after a reload", async (t) => {
  const page = await open(t);
  await ready(page);
  for (const text of HOSTILE) {
    await page.unroute("**/v1/chat/completions").catch(() => {});
    const call = { index: 0, id: "c", function: { name: text, arguments: text } };
    await answerWith(page, sse([{ reasoning_content: text }, { content: text }, { tool_calls: [call] }]));
    await ask(page, text);
    const reply = await answered(page);
    await reply.locator("summary").first().click();
    await unharmed(page);
  }
  await page.reload();
  await ready(page);
  assert.equal(await page.locator(".message.reply").count(), HOSTILE.length);
  for (const link of await page.locator("#thread a").all())
    assert.equal(await link.getAttribute("target"), "_blank");
  await unharmed(page);
  await screenshot(page, "hostile");
});

test("hostile refusals stay text", async (t) => {
  const page = await open(t);
  await ready(page);
  await answerWith(page, { status: 400, json: { error: { message: HOSTILE.join("\n") } } });
  await ask(page, "Hello");
  await answered(page);
  await unharmed(page);
});

test("the browser's storage is not trusted either", async (t) => {
  const page = await open(t);
  await page.evaluate((texts) => {
    const messages = texts.flatMap((text) => [
      { role: "user", content: text },
      {
        role: "assistant",
        model: text,
        content: text,
        reasoning: text,
        calls: [{ id: text, name: text, arguments: text }],
        timing: {},
      },
    ]);
    localStorage.setItem("loquat.conversation", JSON.stringify(messages));
  }, HOSTILE);
  await page.reload();
  await ready(page);
  await unharmed(page);
});

test("the policy stops even the page's own mistakes", async (t) => {
  const page = await open(t, { violates: true });
  const outcomes = await page.evaluate((code) => {
    const attempt = (act) => {
      try {
        act();
        return "done";
      } catch (error) {
        return error.name;
      }
    };
    const script = document.createElement("script");
    return [
      attempt(() => (document.querySelector("#thread").innerHTML = `<img src=x onerror="${code}">`)),
      attempt(() => (script.textContent = code)),
      attempt(() => script.append(code)),
      attempt(() => document.body.append(script)),
      attempt(() => document.querySelector("#thread").setAttribute("onclick", code)),
      attempt(() => document.querySelector("#thread").click()),
    ];
  }, RUN);
  assert.equal(outcomes[0], "TypeError");
  await page.waitForTimeout(200);
  assert.equal(await page.evaluate(() => window.ran), undefined);
});

// Takes a careless renderer quadratic time, or overflows its stack.
const HEAVY = {
  stars: "*".repeat(50_000),
  "opened emphasis": "**a ".repeat(15_000),
  underscores: "_a".repeat(25_000),
  brackets: "[".repeat(50_000),
  links: "[a](".repeat(12_000),
  backticks: "`a``b```c".repeat(6_000),
  quotes: `${">".repeat(20_000)} deep`,
  lists: Array.from({ length: 400 }, (_, depth) => `${"  ".repeat(depth)}- item`).join("\n"),
  blanks: "- a\n\n".repeat(5_000),
  tables: `${"|a".repeat(5_000)}\n${"|-".repeat(5_000)}\n`,
  fences: "```\n~~~\n".repeat(8_000),
  strings: '{"a": "'.repeat(8_000),
  addresses: "https://a.b/".repeat(4_000),
  delimiters: `a|b\n${" -".repeat(30_000)}`,
};

for (const [name, text] of Object.entries(HEAVY)) {
  test(`a heavy reply is drawn in time: ${name}`, async (t) => {
    const page = await open(t);
    await ready(page);
    await answerWith(page, sse([{ content: text }]));
    const began = performance.now();
    await ask(page, "Go");
    await answered(page);
    const spent = performance.now() - began;
    assert.ok(spent < 40_000, `${spent.toFixed(0)} ms`);
  });
}
