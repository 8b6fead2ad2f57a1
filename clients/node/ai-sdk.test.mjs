// The Vercel AI SDK, against the server at LOQUAT_URL whose scripted model calls `get_weather` for
// Paris and then says that it rains.
import assert from "node:assert/strict";
import test from "node:test";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;

const baseURL = `${process.env.LOQUAT_URL}/v1`;
const name = process.env.LOQUAT_MODEL;
const openai = createOpenAI({ baseURL, apiKey: "none" });
const models = {
  "openai (responses)": openai(name),
  "openai (chat)": openai.chat(name),
  "openai-compatible": createOpenAICompatible({ name: "loquat", baseURL, includeUsage: true })(name),
  anthropic: createAnthropic({ baseURL, apiKey: "none" })(name),
};
const question = {
  prompt: "What is the weather in Paris?",
  maxRetries: 0,
  stopWhen: stepCountIs(3),
  tools: {
    get_weather: tool({
      description: "Tells the weather of a city.",
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => `rain in ${city}`,
    }),
  },
};

for (const [provider, model] of Object.entries(models)) {
  test(`${provider}: a tool round, whole`, async () => {
    const { text, steps, totalUsage } = await generateText({ model, ...question });
    assert.equal(text, "It rains.");
    assert.deepEqual(steps[0].toolResults.map((result) => result.output), ["rain in Paris"]);
    assert.ok(totalUsage.outputTokens > 0);
  });

  test(`${provider}: a tool round, streamed`, async () => {
    const stream = streamText({ model, ...question, onError: ({ error }) => assert.fail(error) });
    let text = "";
    for await (const piece of stream.textStream) text += piece;
    assert.equal(text, "It rains.");
    const [first] = await stream.steps;
    assert.deepEqual(first.toolResults.map((result) => result.output), ["rain in Paris"]);
    assert.ok((await stream.totalUsage).outputTokens > 0);
  });
}
