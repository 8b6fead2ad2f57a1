// Replies that the test writes: thinking, tools, markdown, errors, keys.

import assert from "node:assert/strict";
import { after, test } from "node:test";

import {
  answerWith,
  answered,
  ask,
  asked,
  closeBrowser,
  open,
  ready,
  screenshot,
  sse,
  withSettings,
} from "./browser.mjs";

after(closeBrowser);

async function chat(t, ...answers) {
  const page = await open(t);
  await ready(page);
  const bodies = asked(page);
  await answerWith(page, ...answers);
  return { page, bodies };
}

test("thinking is folded, timed, and opens", async (t) => {
  const { page } = await chat(
    t,
    sse([{ reasoning_content: "Let me think. " }, { reasoning_content: "Yes." }, { content: "It is blue." }]),
  );
  await ask(page, "Why?");
  const reply = await answered(page);
  assert.match(await reply.locator("summary").textContent(), /^Thought for ([\d.]+ s|a moment)$/);
  assert.ok(!(await reply.locator(".thought").isVisible()));
  await reply.locator("summary").click();
  assert.equal(await reply.locator(".thought").textContent(), "Let me think. Yes.");
  assert.equal(await reply.locator(".body").textContent(), "It is blue.");
  await screenshot(page, "chat-thinking");
});

test("a tool call is shown, and its result continues the conversation", async (t) => {
  const call = (id, index, name) => ({
    tool_calls: [{ index, id, type: "function", function: { name, arguments: "" } }],
  });
  const more = (index, text) => ({ tool_calls: [{ index, function: { arguments: text } }] });
  const calls = [
    call("call_1", 0, "get_weather"),
    more(0, '{"city":'),
    more(0, '"Paris"}'),
    call("call_2", 1, "get_time"),
    more(1, "{}"),
  ];
  const { page, bodies } = await chat(
    t,
    sse(calls, { finish: "tool_calls" }),
    sse([{ content: "Sunny, at noon." }]),
  );
  await page.locator("#open-settings").click();
  await page
    .getByLabel("Functions the model may call")
    .fill(
      '[{"name": "get_weather", "parameters": {"type": "object"}}, {"type": "function", "function": {"name": "get_time"}}]',
    );
  await page.keyboard.press("Escape");
  await ask(page, "What is the weather?");
  const reply = await answered(page);
  assert.deepEqual(
    bodies[0].tools.map((tool) => tool.function.name),
    ["get_weather", "get_time"],
  );
  assert.deepEqual(await reply.locator(".call-name").allTextContents(), ["get_weather", "get_time"]);
  assert.equal(await reply.locator(".call pre").first().textContent(), '{\n  "city": "Paris"\n}');
  await screenshot(page, "chat-tools");
  await page.getByLabel("Result of get_weather").fill('{"sky": "clear"}');
  await page.getByLabel("Result of get_weather").press("Enter");
  await page.getByLabel("Result of get_time").fill("12:00");
  await page.getByRole("button", { name: "Send result" }).click();
  await page.getByText("Sunny, at noon.").waitFor();
  await answered(page);
  assert.deepEqual(bodies[1].messages.slice(1), [
    {
      role: "assistant",
      content: null,
      tool_calls: [
        { id: "call_1", type: "function", function: { name: "get_weather", arguments: '{"city":"Paris"}' } },
        { id: "call_2", type: "function", function: { name: "get_time", arguments: "{}" } },
      ],
    },
    { role: "tool", tool_call_id: "call_1", content: '{"sky": "clear"}' },
    { role: "tool", tool_call_id: "call_2", content: "12:00" },
  ]);
});

test("markdown is rendered", async (t) => {
  const text =
    "## Title\n\nSome **bold**, *slanted*, ~~gone~~ and `code`, snake_case_name, 2 * 3 * 4.\n\n1. one\n2. two\n   - inner\n\n| a | b |\n|---|--:|\n| x | 1 |\n\n> said\n\n---\n\n```rust\nfn main() {}\n```\n\n[site](https://example.org/a) and https://example.org/b.";
  const { page } = await chat(t, sse([...text].map((content) => ({ content }))));
  await ask(page, "Show me");
  const body = (await answered(page)).locator(".body");
  const expected = {
    h4: "Title",
    strong: "bold",
    em: "slanted",
    s: "gone",
    "p code": "code",
    "ol > li > ul > li": "inner",
    "td.to-right": "1",
    blockquote: "said",
    "pre code": "fn main() {}",
    ".code-bar span": "rust",
  };
  for (const [selector, words] of Object.entries(expected)) {
    assert.equal(await body.locator(selector).first().textContent(), words, selector);
  }
  assert.deepEqual(
    await body
      .locator("a")
      .evaluateAll((links) => links.map((link) => [link.href, link.rel, link.textContent])),
    [
      ["https://example.org/a", "noopener noreferrer nofollow", "site"],
      ["https://example.org/b", "noopener noreferrer nofollow", "https://example.org/b"],
    ],
  );
  assert.match(await body.locator("p").first().textContent(), /snake_case_name, 2 \* 3 \* 4/);
  await body.getByRole("button", { name: "Copy code" }).click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "fn main() {}");
  await page.getByRole("button", { name: "Copy reply" }).click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), text);
  await screenshot(page, "chat-markdown");
});

const REFUSALS = [
  [
    { status: 503, headers: { "retry-after": "3" }, json: { error: { message: "the queue is full" } } },
    /server is busy\. Try again in 3 s\..*the queue is full/,
  ],
  [{ status: 500, body: "<html>oops</html>" }, /The server reported an error\./],
  ["abort", /cannot be reached/],
  [
    `data: {"choices":[{"index":0,"delta":{"content":"Half"}}]}\n\ndata: {"error":{"message":"the device failed"}}\n\n`,
    /Half.*was interrupted.*the device failed/s,
  ],
  [`data: {"choices":[{"index":0,"delta":{"content":"Half"}}]}\n\n`, /Half.*was interrupted/s],
];

for (const [answer, words] of REFUSALS) {
  test(`an error is shown and can be retried: ${words}`, async (t) => {
    const { page, bodies } = await chat(t, answer, sse([{ content: "Fine now." }]));
    await ask(page, "Hello");
    const reply = await answered(page);
    assert.match(await reply.textContent(), words);
    await page.getByRole("button", { name: "Try again" }).click();
    await page.getByText("Fine now.").waitFor();
    await answered(page);
    assert.deepEqual(bodies[1].messages, [{ role: "user", content: "Hello" }]);
    assert.equal(await page.locator(".trouble").count(), 0);
  });
}

test("invalid settings are named in the error", async (t) => {
  const { page } = await chat(t, sse([{ content: "unused" }]));
  for (const [settings, words] of [
    [{ tools: "[{" }, /tools in the settings cannot be used.*not valid JSON/],
    [{ tools: '[{"no": 1}]' }, /Each tool needs a `name`/],
    [{ format: "schema", schema: "{" }, /schema in the settings is not valid JSON/],
    [{ values: { top_k: "many" } }, /“Top k” is not a number/],
  ]) {
    await withSettings(page, settings);
    await ask(page, "Hello");
    assert.match(await (await answered(page)).textContent(), words);
  }
});

test("a server that asks for a key gets it, from this tab only", async (t) => {
  const page = await open(t);
  await ready(page);
  await page.route("**/v1/chat/completions", (route) => {
    const known = route.request().headers().authorization === "Bearer sk-secret";
    return route.fulfill(
      known
        ? { contentType: "text/event-stream", body: sse([{ content: "Welcome." }]) }
        : { status: 401, json: { error: { message: "no key" } } },
    );
  });
  await ask(page, "Hello");
  await page.getByLabel("API key", { exact: true }).fill("sk-secret");
  await screenshot(page, "chat-key");
  await page.getByLabel("API key", { exact: true }).press("Enter");
  await page.getByText("Welcome.").waitFor();
  assert.equal(await page.evaluate(() => JSON.stringify(localStorage).includes("sk-secret")), false);
  assert.match(await page.evaluate(() => sessionStorage.getItem("loquat.key")), /sk-secret/);
});

test("a missing key is reported", async (t) => {
  const { page } = await chat(t, { status: 401, json: { error: { message: "no key" } } });
  await ask(page, "Hello");
  await page.getByRole("button", { name: "Cancel" }).click();
  assert.match(await (await answered(page)).textContent(), /API key is not valid/);
});
