// Images on the page, with a model that reads them. LOQUAT_ANSWERS has the command line's answers.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, test } from "node:test";

import {
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

// `test_page.py` runs the other files, with a model that reads text only.
const { LOQUAT_ANSWERS, LOQUAT_IMAGES } = process.env;
const skip = LOQUAT_ANSWERS === undefined;
const answers = JSON.parse(LOQUAT_ANSWERS ?? "{}");
const [FIRST, SECOND] = Object.keys(answers);
const QUESTION = "What is this?";
const SHORT = { limit: "16", values: { temperature: "0" } };

after(closeBrowser);

const base64 = async (name) => (await readFile(join(LOQUAT_IMAGES, name))).toString("base64");

async function chat(t, model = MODEL) {
  const page = await open(t);
  await withSettings(page, SHORT);
  await page.locator("#model").selectOption(model);
  return { page, bodies: asked(page) };
}

/** Dispatches a drop or a paste with these files: `[name, type, base64]`. */
async function transfer(page, selector, kind, files, text) {
  const data = await page.evaluateHandle(
    ([all, plain]) => {
      const carried = new DataTransfer();
      for (const [name, type, content] of all) {
        const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
        carried.items.add(new File([bytes], name, { type }));
      }
      if (plain) carried.setData("text/plain", plain);
      return carried;
    },
    [files, text],
  );
  if (kind === "paste") {
    await page.locator(selector).evaluate((node, clipboardData) => {
      const event = new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true });
      node.dispatchEvent(event);
    }, data);
  } else {
    for (const event of ["dragenter", "dragover", "drop"])
      await page.locator(selector).dispatchEvent(event, { dataTransfer: data });
  }
}

const png = async (name) => [name, "image/png", await base64(name)];
const thumbnails = (page) => page.locator("#images li");
const trouble = (page) => page.locator("#image-trouble");

test("a dropped image is shown, sent and answered", { skip }, async (t) => {
  for (const name of [FIRST, SECOND]) {
    const { page, bodies } = await chat(t);
    await transfer(page, "#thread", "drop", [await png(name)]);
    await thumbnails(page).first().waitFor();
    assert.equal(await thumbnails(page).locator("img").getAttribute("alt"), name);
    await screenshot(page, "images-attached");
    await ask(page, QUESTION);
    const reply = await answered(page);
    const url = `data:image/png;base64,${await base64(name)}`;
    assert.deepEqual(bodies[0].messages, [
      {
        role: "user",
        content: [
          { type: "image_url", image_url: { url } },
          { type: "text", text: QUESTION },
        ],
      },
    ]);
    const text = await reply.locator(".body").textContent();
    const squeezed = (said) => said.replace(/\s+/g, "");
    assert.equal(squeezed(text), squeezed(answers[name]));
    assert.equal(await thumbnails(page).count(), 0);
    const shown = page.locator(".message.user img");
    assert.equal(await shown.getAttribute("src"), url);
    assert.ok(await shown.evaluate((image) => image.complete && image.naturalWidth === 90));
    await screenshot(page, "images-answered");
  }
});

test("several images keep their order, can be removed, and come back for editing", { skip }, async (t) => {
  const { page, bodies } = await chat(t);
  await transfer(page, "#question", "paste", [await png(FIRST)]);
  await thumbnails(page).nth(0).waitFor();
  await page.locator("#image-file").setInputFiles([FIRST, SECOND].map((name) => join(LOQUAT_IMAGES, name)));
  await thumbnails(page).nth(2).waitFor();
  const names = () =>
    thumbnails(page)
      .locator("img")
      .evaluateAll((all) => all.map(({ alt }) => alt));
  assert.deepEqual(await names(), [FIRST, FIRST, SECOND]);

  // With the keyboard alone: the focus moves to the next image, and then to the question.
  const remove = thumbnails(page).getByRole("button", { name: `Remove ${FIRST}` });
  await remove.first().focus();
  await page.keyboard.press("Enter");
  assert.deepEqual(await names(), [FIRST, SECOND]);
  const focused = () => page.evaluate(() => document.activeElement.ariaLabel ?? document.activeElement.id);
  assert.equal(await focused(), `Remove ${FIRST}`);

  await ask(page, QUESTION);
  await answered(page);
  const sent = (body) => body.messages[0].content.map(({ type }) => type);
  assert.deepEqual(sent(bodies[0]), ["image_url", "image_url", "text"]);

  await page.reload();
  await ready(page);
  assert.equal(await page.locator(".message.user img").count(), 2);
  await page.getByRole("button", { name: "Edit question" }).click();
  assert.deepEqual(await names(), [FIRST, SECOND]);
  for (let left = 2; left > 0; left -= 1) {
    await thumbnails(page).first().getByRole("button").click();
  }
  assert.equal(await focused(), "question");
  await ask(page, QUESTION);
  await answered(page);
  assert.equal(bodies.at(-1).messages[0].content, QUESTION);
});

test("an image needs no words", { skip }, async (t) => {
  const { page, bodies } = await chat(t);
  assert.ok(await page.locator("#send").isDisabled());
  await transfer(page, "#question", "paste", [await png(FIRST)]);
  await thumbnails(page).first().waitFor();
  await page.locator("#send").click();
  await answered(page);
  assert.deepEqual(
    bodies[0].messages[0].content.map(({ type }) => type),
    ["image_url"],
  );
});

/** An animated GIF of 90 × 61 pixels, written without compression, as base64. */
function animatedGif(frames) {
  const size = [90, 0, 61, 0];
  const file = [...Buffer.from("GIF89a"), ...size, 0x81, 0, 0];
  file.push(250, 30, 20, 20, 200, 60, 30, 40, 220, 240, 240, 90);
  for (let frame = 0; frame < frames; frame += 1) {
    file.push(0x21, 0xf9, 4, 0, 25, 0, 0, 0, 0x2c, 0, 0, 0, 0, ...size, 0, 2);
    // Codes of three bits; the table is cleared before it grows.
    const bytes = [];
    let [bits, filled] = [0, 0];
    const push = (code) => {
      bits |= code << filled;
      for (filled += 3; filled >= 8; filled -= 8, bits >>= 8) bytes.push(bits & 255);
    };
    for (let pixel = 0; pixel < 90 * 61; pixel += 1) {
      if (pixel % 2 === 0) push(4);
      push(((((pixel % 90) / 8) | 0) + frame) % 4);
    }
    push(5);
    bytes.push(bits & 255);
    for (let at = 0; at < bytes.length; at += 255) {
      const part = bytes.slice(at, at + 255);
      file.push(part.length, ...part);
    }
    file.push(0);
  }
  return Buffer.from([...file, 0x3b]).toString("base64");
}

test("animations and videos are sent as videos", { skip }, async (t) => {
  const { page, bodies } = await chat(t);
  const clip = animatedGif(8);
  await transfer(page, "#thread", "drop", [
    ["moves.gif", "image/gif", clip],
    ["still.gif", "image/gif", animatedGif(1)],
  ]);
  await thumbnails(page).nth(1).waitFor();
  await screenshot(page, "videos-attached");
  await ask(page, QUESTION);
  await answered(page);
  const [video, image] = bodies[0].messages[0].content;
  assert.deepEqual(video, { type: "video_url", video_url: { url: `data:image/gif;base64,${clip}` } });
  assert.equal(image.type, "image_url");

  // It is one after a reload, too.
  await page.reload();
  await ready(page);
  await page.getByRole("button", { name: "Edit question" }).click();
  await ask(page, QUESTION);
  await answered(page);
  assert.equal(bodies.at(-1).messages[0].content[0].type, "video_url");

  // Others are shown by name.
  await page.getByRole("button", { name: "New conversation" }).click();
  const mp4 = Buffer.from("\0\0\0\x18ftypisom").toString("base64");
  await transfer(page, "#question", "paste", [["film.mp4", "video/mp4", mp4]]);
  await thumbnails(page).first().waitFor();
  assert.equal(await thumbnails(page).locator(".clip").textContent(), "film.mp4");
  await page.getByRole("button", { name: "Remove film.mp4" }).click();
  assert.equal(await thumbnails(page).count(), 0);
});

test("what is not an image is refused by its content", { skip }, async (t) => {
  const { page } = await chat(t);
  const text = Buffer.from("hello").toString("base64");
  await transfer(page, "#thread", "drop", [["notes.png", "image/png", text], await png(FIRST)]);
  await thumbnails(page).first().waitFor();
  assert.equal(await thumbnails(page).count(), 1);
  assert.match(await trouble(page).textContent(), /notes\.png is not an image.*PNG, JPEG/);
  await screenshot(page, "images-refused");
  // The type follows from the bytes, whatever the file is called.
  await page.getByRole("button", { name: "New conversation" }).click();
  assert.equal(await thumbnails(page).count(), 0);
  await transfer(page, "#question", "paste", [["photo.jpg", "image/jpeg", await base64(FIRST)]]);
  await thumbnails(page).first().waitFor();
  assert.match(await thumbnails(page).locator("img").getAttribute("src"), /^data:image\/png;/);
});

test("pasted text stays text", { skip }, async (t) => {
  const { page } = await chat(t);
  await transfer(page, "#question", "paste", [await png(FIRST)], "from a document");
  await page.waitForTimeout(200);
  assert.equal(await thumbnails(page).count(), 0);
});

test("a text-only model takes no images", { skip }, async (t) => {
  const { page } = await chat(t, "text-only");
  await transfer(page, "#thread", "drop", [await png(FIRST)]);
  assert.match(await trouble(page).textContent(), /text-only reads text only/);
  assert.equal(await thumbnails(page).count(), 0);
  // Also if the model is chosen afterwards.
  await page.locator("#model").selectOption(MODEL);
  assert.ok(await trouble(page).isHidden());
  await transfer(page, "#thread", "drop", [await png(FIRST)]);
  await thumbnails(page).first().waitFor();
  assert.ok(await page.locator("#send").isEnabled());
  await page.locator("#model").selectOption("text-only");
  assert.match(await trouble(page).textContent(), /reads text only/);
  assert.ok(await page.locator("#send").isDisabled());
});
