// Images through the openai package for JavaScript. LOQUAT_ANSWERS has the command line's answers.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import test from "node:test";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.LOQUAT_URL}/v1`, apiKey: "none", maxRetries: 0 });
const answers = Object.entries(JSON.parse(process.env.LOQUAT_ANSWERS));

test("answers are those of the command line, whole and streamed", async () => {
  assert.ok(answers.length > 1);
  for (const [name, expected] of answers) {
    const file = await readFile(join(process.env.LOQUAT_IMAGES, name));
    const url = `data:image/png;base64,${file.toString("base64")}`;
    const question = {
      model: process.env.LOQUAT_MODEL,
      messages: [
        {
          role: "user",
          content: [
            { type: "image_url", image_url: { url } },
            { type: "text", text: "What is this?" },
          ],
        },
      ],
      max_tokens: 16,
      temperature: 0,
    };
    const whole = await client.chat.completions.create(question);
    assert.equal(whole.choices[0].message.content, expected);
    let said = "";
    for await (const chunk of await client.chat.completions.create({ ...question, stream: true })) {
      said += chunk.choices[0]?.delta?.content ?? "";
    }
    assert.equal(said, expected);
  }
});
