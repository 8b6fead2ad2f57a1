// The openai package for JavaScript, against the server at LOQUAT_URL.
import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.LOQUAT_URL}/v1`, apiKey: "none", maxRetries: 0 });
const model = process.env.LOQUAT_MODEL;
const question = {
  model,
  messages: [
    { role: "user", content: "Hi" },
    { role: "assistant", content: "Hello! How can I help?" },
    { role: "user", content: "Tell me a joke about cats." },
  ],
  max_tokens: 24,
  temperature: 0,
};

test("a stream equals the whole reply", async () => {
  const whole = await client.chat.completions.create(question);
  assert.match(whole.choices[0].message.content, /cat/);
  let said = "";
  for await (const chunk of await client.chat.completions.create({ ...question, stream: true })) {
    said += chunk.choices[0]?.delta?.content ?? "";
  }
  assert.equal(said, whole.choices[0].message.content);
});

test("a tool is called", async () => {
  const reply = await client.chat.completions.create({
    ...question,
    max_tokens: 120,
    tools: [
      {
        type: "function",
        function: {
          name: "get_weather",
          strict: true,
          parameters: {
            type: "object",
            properties: { city: { type: "string", maxLength: 20 } },
            required: ["city"],
          },
        },
      },
    ],
    tool_choice: "required",
  });
  const [call] = reply.choices[0].message.tool_calls;
  assert.equal(call.function.name, "get_weather");
  assert.equal(typeof JSON.parse(call.function.arguments).city, "string");
});

test("responses stream", async () => {
  const stream = client.responses.stream({ model, input: question.messages, max_output_tokens: 24, temperature: 0 });
  let said = "";
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") said += event.delta;
  }
  assert.equal(said, (await stream.finalResponse()).output_text);
});

test("embeddings arrive as numbers", async () => {
  const { data } = await client.embeddings.create({ model, input: "a cat" });
  const length = data[0].embedding.reduce((sum, x) => sum + x * x, 0);
  assert.ok(Math.abs(length - 1) < 1e-3);
});

test("errors keep their shape", async () => {
  await assert.rejects(client.models.retrieve("gpt-9"), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
});

test("an aborted stream is cancelled", async () => {
  const cancelled = async () => {
    const { models } = await (await fetch(`${process.env.LOQUAT_URL}/stats`)).json();
    return models.reduce((sum, model) => sum + model.totals.cancelled, 0);
  };
  const before = await cancelled();
  const endless = { ...question, max_tokens: 4000, stream: true, ignore_eos: true };
  for await (const _ of await client.chat.completions.create(endless)) break;
  // Only a hang takes longer.
  const deadline = Date.now() + 300_000;
  while ((await cancelled()) === before) {
    assert.ok(Date.now() < deadline, "the request was not cancelled");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
});
