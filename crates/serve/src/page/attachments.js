// What goes with the message being written: pictures and text files, pasted, dropped or chosen.

import { byId, element, toast } from "./dom.js";
import { textOf } from "./pdf.js";

/** Larger ones are reduced: models see no more. */
const SIDE_MAX = 2048;
const PICTURE_BYTES_MAX = 700_000;
/** What nodes read; anything else that the browser can show is converted. */
const PICTURES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
/** More text than a context holds. */
const TEXT_BYTES_MAX = 4_000_000;

const [list, field, chat] = [byId("pictures"), byId("picture-files"), byId("chat")];
const card = chat.querySelector(".chat");
/** `{ name, address }`, a data address, or `{ name, text, tokens }`. */
let added = [];
/** The chosen model, if it reads text alone. */
let blind = null;
/** Resolves to the number of a text's tokens for the chosen model. */
let countTokens = null;

export const any = () => added.length > 0;

/** As parts of a message's content. */
export const parts = () => added.map(({ name, address, text }) => (address
  ? { type: "image_url", image_url: { url: address } }
  : { type: "text", text: fenced(name, text), sinew_file: name }));

/** A file's text as models know it; its fence is longer than any in it. */
function fenced(name, text) {
  let fence = "```";
  while (text.includes(fence)) fence += "`";
  return `${name}:\n${fence}\n${text}\n${fence}`;
}

/** Names the model that cannot see pictures; null if the chosen one can. */
export function setReader(model) {
  blind = model;
}

export function setCounter(count) {
  countTokens = count;
}

/** Takes all away. */
export function take() {
  added = [];
  show();
}

function show() {
  list.replaceChildren(...added.map((one, at) => {
    const remove = element("button", "", "×");
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove ${one.name}`);
    remove.addEventListener("click", () => {
      added.splice(at, 1);
      show();
      byId("prompt").focus();
    });
    return element("li", "", one.address ? preview(one) : chip(one), remove);
  }));
  list.hidden = !any();
}

function preview({ name, address }) {
  const image = element("img");
  image.src = address;
  image.alt = name;
  return image;
}

function chip({ name, tokens }) {
  const size = tokens === null ? "counting its tokens" : `${tokens} tokens`;
  return element("span", "file", element("b", "", name), ` ${size}`);
}

async function add(files) {
  for (const file of files) {
    if (file.type.startsWith("image/")) await addPicture(file);
    else await addText(file);
  }
}

async function addPicture(file) {
  if (blind) {
    return void toast(`${blind} reads text only. Choose a model that sees, or leave pictures out.`);
  }
  const name = file.name || "picture";
  try {
    added.push({ address: await read(file), name });
    show();
  } catch {
    toast(`${name} is no picture that this browser can read. Save it as PNG or JPEG.`);
  }
}

const isPdf = (file) => file.type === "application/pdf" || /\.pdf$/i.test(file.name);

async function addText(file) {
  if (isPdf(file)) {
    try {
      return await addRead(file, await textOf(file, TEXT_BYTES_MAX));
    } catch (error) {
      return void toast(`${file.name} ${error.message}.`);
    }
  }
  if (file.size > TEXT_BYTES_MAX) {
    return void toast(`${file.name} is too large: ${TEXT_BYTES_MAX} bytes are the most.`);
  }
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    text = "\0";
  }
  if (text.includes("\0")) {
    return void toast(`${file.name} is neither a text nor a picture. Save it as text first.`);
  }
  await addRead(file, text);
}

async function addRead(file, text) {
  const one = { name: file.name || "text", text, tokens: null };
  added.push(one);
  show();
  try {
    one.tokens = await countTokens(fenced(one.name, text));
  } catch (error) {
    // One that does not fit is named with its size by the node.
    one.tokens = error.tokens ?? "?";
  }
  show();
}

/** The data address of a picture, reduced if it is large. */
async function read(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, SIDE_MAX / Math.max(bitmap.width, bitmap.height));
  const isSmall = scale === 1 && file.size <= PICTURE_BYTES_MAX;
  if (isSmall && PICTURES.includes(file.type)) return original(file);
  const canvas = element("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  // JPEG has no transparency; nodes put it on white as well.
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL("image/jpeg", 0.9);
}

function original(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

byId("add-picture").addEventListener("click", () => field.click());
field.addEventListener("change", async () => {
  const files = [...field.files];
  field.value = "";
  await add(files);
  byId("prompt").focus();
});

byId("prompt").addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files];
  // Programs paste a picture of their text beside it.
  if (files.length === 0 || event.clipboardData.types.includes("text/plain")) return;
  event.preventDefault();
  add(files);
});

const hasFiles = (event) => event.dataTransfer?.types.includes("Files");

chat.addEventListener("dragover", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  card.toggleAttribute("data-dragging", true);
});
chat.addEventListener("dragleave", (event) => {
  if (!chat.contains(event.relatedTarget)) card.removeAttribute("data-dragging");
});
chat.addEventListener("drop", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  card.removeAttribute("data-dragging");
  add([...event.dataTransfer.files]);
});
