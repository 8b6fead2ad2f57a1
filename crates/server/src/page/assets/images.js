// Images and videos beside a question: chosen, dropped or pasted, shown as thumbnails until it is
// sent.

import { announce, byId, el, icon, iconButton } from "./dom.js";

/** What the server reads, by how a file begins. Its name says nothing. */
const SIGNATURES = [
  ["image/png", /^\x89PNG\r\n\x1a\n/],
  ["image/jpeg", /^\xff\xd8\xff/],
  ["image/gif", /^GIF8[79]a/],
  ["image/webp", /^RIFF[^]{4}WEBP/],
  ["image/bmp", /^BM/],
  ["video/mp4", /^[^]{4}ftyp/],
  ["video/webm", /^\x1a\x45\xdf\xa3/],
  ["video/x-msvideo", /^RIFF[^]{4}AVI /],
];
const FORMATS = "PNG, JPEG, WebP, GIF, BMP, MP4, MOV, WebM, MKV or AVI";
/** Base64 and a long conversation must fit a request. */
const MAX_BYTES = 16 * 1024 * 1024;

const DATA_URL =
  /^data:(image\/(png|jpeg|gif|webp|bmp)|video\/(mp4|webm|x-msvideo));base64,[A-Za-z0-9+/]+=*$/;

/** The images and videos of a stored message. What is not one of ours is left out. */
export function imagesOf({ images }) {
  const known = Array.isArray(images) ? images : [];
  return known.filter(({ url }) => typeof url === "string" && DATA_URL.test(url));
}

/** What a model has to read for this: `image` or `video`. */
export const kindOf = ({ video }) => (video === true ? "video" : "image");

/** An image as an element, named for its file. Videos that are no animations have none. */
export const picture = ({ url, name }) =>
  url.startsWith("data:image/")
    ? el("img", { src: url, alt: name, title: name })
    : el("span", { class: "clip", role: "img", "aria-label": name, title: name }, icon("video"), name);

/**
 * Connects the button, the drop area, pasting and the list of thumbnails. `refusal(kind)` says why
 * the model takes no images or videos, if it does not; `changed` is called after every change.
 */
export function startImages({ refusal, changed }) {
  const list = byId("images");
  const trouble = byId("image-trouble");
  const chooser = byId("image-file");
  const field = byId("question");
  const area = byId("chat");
  let images = [];
  // Files are read one after the other, so that they keep their order.
  let reading = Promise.resolve();
  let pending = 0;
  let generation = 0;

  const refusals = () => [...new Set(images.map((image) => refusal(kindOf(image))).filter(Boolean))];
  const show = (problems = []) => {
    const whys = [...problems, ...refusals()];
    trouble.hidden = !whys.length;
    trouble.textContent = whys.join(" ");
    list.hidden = !images.length;
    list.replaceChildren(...images.map((image, at) => thumbnail(image, () => remove(at))));
    changed();
  };
  const remove = (at) => {
    const [{ name }] = images.splice(at, 1);
    show();
    announce(`Removed ${name}`);
    const next = list.querySelectorAll("button")[Math.min(at, images.length - 1)];
    (next ?? field).focus();
  };
  const add = (files) => {
    const why = refusal("image");
    if (why) return show([why]);
    const current = generation;
    pending += 1;
    reading = reading.then(async () => {
      const problems = [];
      for (const file of files) {
        const image = await read(file, refusal).catch((error) => void problems.push(error.message));
        // The conversation may have been cleared meanwhile.
        if (image && current === generation) images.push(image);
      }
      pending -= 1;
      show(problems);
      if (!problems.length) announce(`Attached ${files.map(({ name }) => name).join(", ")}`);
      field.focus();
    });
    changed();
  };

  byId("attach").addEventListener("click", () => chooser.click());
  chooser.addEventListener("change", () => {
    add([...chooser.files]);
    // The same file may be chosen again after it was removed.
    chooser.value = "";
  });
  field.addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    // Text copied from a document comes with its picture, and is meant as text.
    if (!files.length || event.clipboardData.types.includes("text/plain")) return;
    event.preventDefault();
    add(files);
  });
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const over = (shown) => area.classList.toggle("dropping", shown);
  // A browser would leave the page to show a file dropped beside the conversation.
  window.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    over(true);
  });
  window.addEventListener("dragleave", (event) => event.relatedTarget ?? over(false));
  window.addEventListener("drop", (event) => {
    over(false);
    if (!hasFiles(event)) return;
    event.preventDefault();
    if (!area.hidden) add([...event.dataTransfer.files]);
  });

  return {
    /** The attached images and videos. */
    all: () => images,
    put(next = []) {
      generation += 1;
      images = [...next];
      show();
    },
    /** Shows whether the model, which may have changed, takes the images. */
    check: () => show(),
    /** Whether nothing can be sent: an image is not read yet, or the model takes none. */
    blocked: () => pending > 0 || refusals().length > 0,
  };
}

function thumbnail(image, remove) {
  const button = iconButton("close", `Remove ${image.name}`, remove);
  return el("li", { class: "thumbnail" }, picture(image), button);
}

async function read(file, refusal) {
  const name = file.name || "image";
  if (file.size > MAX_BYTES) throw new Error(`${name} is larger than ${MAX_BYTES / 1024 / 1024} MB.`);
  let bytes;
  try {
    bytes = new Uint8Array(await file.arrayBuffer());
  } catch {
    throw new Error(`${name} cannot be read.`);
  }
  const head = String.fromCharCode(...bytes.subarray(0, 16));
  const [type] = SIGNATURES.find(([, begins]) => begins.test(head)) ?? [];
  if (!type) throw new Error(`${name} is not an image or a video that models read. Use ${FORMATS}.`);
  // A model without videos sees the first frame of an animation.
  const video = type.startsWith("video/") || (isAnimated(type, bytes) && !refusal("video"));
  const url = await dataUrl(new Blob([bytes], { type }));
  return video ? { name, url, video } : { name, url };
}

function isAnimated(type, bytes) {
  // The flag of an extended WebP file.
  if (type === "image/webp") return bytes[12] === 0x56 && bytes[15] === 0x58 && (bytes[20] & 2) !== 0;
  return type === "image/gif" && gifFrames(bytes) > 1;
}

/** Counts to two: blocks of a GIF that are images. */
function gifFrames(bytes) {
  const table = (flags) => (flags & 0x80 ? 3 * 2 ** ((flags & 7) + 1) : 0);
  let at = 13 + table(bytes[10]);
  let frames = 0;
  while (at < bytes.length && frames < 2) {
    if (bytes[at] === 0x2c) {
      frames += 1;
      at += 11 + table(bytes[at + 9]);
    } else if (bytes[at] === 0x21) at += 2;
    else break;
    // Its data, in parts with their lengths.
    while (bytes[at]) at += bytes[at] + 1;
    at += 1;
  }
  return frames;
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(blob);
  });
}
