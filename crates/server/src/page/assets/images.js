// Images beside a question: chosen, dropped or pasted, shown as thumbnails until it is sent.

import { announce, byId, el, iconButton } from "./dom.js";

/** What the server reads, by how a file begins. Its name says nothing. */
const SIGNATURES = [
  ["image/png", /^\x89PNG\r\n\x1a\n/],
  ["image/jpeg", /^\xff\xd8\xff/],
  ["image/gif", /^GIF8[79]a/],
  ["image/webp", /^RIFF[^]{4}WEBP/],
  ["image/bmp", /^BM/],
];
const FORMATS = "PNG, JPEG, WebP, GIF or BMP";
/** Base64 and a long conversation must fit a request. */
const MAX_BYTES = 16 * 1024 * 1024;

const DATA_URL = /^data:image\/(png|jpeg|gif|webp|bmp);base64,[A-Za-z0-9+/]+=*$/;

/** The images of a stored message. What is not one of ours is left out. */
export function imagesOf({ images }) {
  const known = Array.isArray(images) ? images : [];
  return known.filter(({ url }) => typeof url === "string" && DATA_URL.test(url));
}

/** An image as an element, named for its file. */
export const picture = ({ url, name }) => el("img", { src: url, alt: name, title: name });

/**
 * Connects the button, the drop area, pasting and the list of thumbnails. `refusal()` says why the
 * model takes no images, if it does not; `changed` is called after every change.
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

  const show = (problems = []) => {
    const whys = [...problems, ...(images.length && refusal() ? [refusal()] : [])];
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
    const why = refusal();
    if (why) return show([why]);
    const current = generation;
    pending += 1;
    reading = reading.then(async () => {
      const problems = [];
      for (const file of files) {
        const image = await read(file).catch((error) => void problems.push(error.message));
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
    /** The attached images. */
    all: () => images,
    put(next = []) {
      generation += 1;
      images = [...next];
      show();
    },
    /** Shows whether the model, which may have changed, takes the images. */
    check: () => show(),
    /** Whether nothing can be sent: an image is not read yet, or the model takes none. */
    blocked: () => pending > 0 || (images.length > 0 && Boolean(refusal())),
  };
}

function thumbnail(image, remove) {
  const button = iconButton("close", `Remove ${image.name}`, remove);
  return el("li", { class: "thumbnail" }, picture(image), button);
}

async function read(file) {
  const name = file.name || "image";
  if (file.size > MAX_BYTES) throw new Error(`${name} is larger than ${MAX_BYTES / 1024 / 1024} MB.`);
  let head;
  try {
    head = String.fromCharCode(...new Uint8Array(await file.slice(0, 16).arrayBuffer()));
  } catch {
    throw new Error(`${name} cannot be read.`);
  }
  const [type] = SIGNATURES.find(([, begins]) => begins.test(head)) ?? [];
  if (!type) throw new Error(`${name} is not an image that models read. Use ${FORMATS}.`);
  return { name, url: await dataUrl(new Blob([file], { type })) };
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(blob);
  });
}
