// Pictures of the message being written: pasted, dropped or chosen.

import { byId, element, toast } from "./dom.js";

/** Larger ones are reduced: browsers store little, and models see no more. */
const SIDE_MAX = 2048;
const BYTES_MAX = 700_000;
/** What nodes read; anything else that the browser can show is converted. */
const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];

const [list, field, chat] = [byId("pictures"), byId("picture-files"), byId("chat")];
const card = chat.querySelector(".chat");
/** `{ address, name }`; addresses hold the data. */
let added = [];
/** The chosen model, if it reads text alone. */
let blind = null;

export const any = () => added.length > 0;

/** The addresses of the pictures. */
export const shown = () => added.map(({ address }) => address);

/** Names the model that cannot see them; null if the chosen one can. */
export function setReader(model) {
  blind = model;
}

/** Takes the pictures away. */
export function take() {
  added = [];
  show();
}

function show() {
  list.replaceChildren(...added.map(({ address, name }, at) => {
    const image = element("img");
    image.src = address;
    image.alt = name;
    const remove = element("button", "", "×");
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove ${name}`);
    remove.addEventListener("click", () => {
      added.splice(at, 1);
      show();
      byId("prompt").focus();
    });
    return element("li", "", image, remove);
  }));
  list.hidden = !any();
}

async function add(files) {
  if (blind) {
    return void toast(`${blind} reads text only. Choose a model that sees, or leave pictures out.`);
  }
  for (const file of files) {
    try {
      added.push({ address: await read(file), name: file.name || "picture" });
      show();
    } catch {
      toast(`${file.name || "That"} is no picture that this browser can read. `
        + "Save it as PNG or JPEG.");
    }
  }
}

/** The data address of a file, reduced if it is large. */
async function read(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, SIDE_MAX / Math.max(bitmap.width, bitmap.height));
  if (scale === 1 && file.size <= BYTES_MAX && TYPES.includes(file.type)) return original(file);
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
