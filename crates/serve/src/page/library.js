// The library: the models on the machines' disks and those with a short name, and what each would
// need. A search also takes the name of any repository on the hub.

import { button, byId, element, keyed, setText, toast } from "./dom.js";
import { bytes } from "./format.js";
import { administer, adminGet, isAdmin } from "./net.js";
import { compare } from "./admin.js";
import { confirmed } from "./confirm.js";

/** Rows shown before more are requested. */
const ROWS = 6;

let library = null;
let showsAll = false;

export function prepareLibrary() {
  if (!isAdmin()) return;
  byId("load-model").addEventListener("input", () => {
    show();
    forgetHub();
  });
  byId("hub-search").addEventListener("click", searchHub);
  byId("load-model").addEventListener("keydown", (event) => {
    // Enter plans what is named, and searches for anything else.
    if (event.key !== "Enter" || event.isComposing || isNamed()) return;
    event.preventDefault();
    if (sought()) searchHub();
  });
  byId("library-more").addEventListener("click", () => {
    showsAll = true;
    show();
  });
  document.addEventListener("planned", ({ detail }) => showVariants(detail));
  document.addEventListener("view", ({ detail }) => {
    if (detail === "cluster") look();
  });
  document.addEventListener("loaded", look);
  document.addEventListener("members", look);
}

async function look() {
  try {
    library = await (await adminGet("library")).json();
    show();
  } catch (error) {
    setText(byId("library-room"), error.message);
  }
}

function rows() {
  const onDisk = library.disks.map((one) => ({
    ...one, on: one.node ?? "this node", owned: one.shelf === "own",
  }));
  return [...onDisk, ...library.catalogue];
}

function show() {
  if (!library) return;
  const words = byId("load-model").value.trim().toLowerCase().split(/\s+/);
  const has = (one) => words.every((word) => one.name.toLowerCase().includes(word));
  const found = rows().filter(has);
  const shown = showsAll ? found : found.slice(0, ROWS);
  setText(byId("library-room"), `${library.whose} ${bytes(library.free_bytes)} of memory free.`
    .replace(/^./, (letter) => letter.toUpperCase()));
  keyed(byId("library-list"), shown, (one) => `${one.on ?? ""} ${one.path ?? one.name}`, create,
    update);
  const more = byId("library-more");
  more.hidden = shown.length === found.length;
  setText(more, `Show all ${found.length}`);
}

// The hub is asked only when its button is pressed: its owner learns what is searched.

/** Whether a model is named: one that is listed, a repository, a file or an address. */
function isNamed() {
  const name = sought().toLowerCase();
  return /[/\\]|\.gguf$/.test(name) || !library
    || rows().some((one) => one.name.toLowerCase() === name);
}

const sought = () => byId("load-model").value.trim();

function forgetHub() {
  const ask = byId("hub-search");
  ask.hidden = !sought();
  setText(ask, `Search the hub for “${sought()}”`);
  setText(byId("hub-state"), "");
  byId("hub-list").replaceChildren();
}

async function searchHub() {
  const [words, state] = [sought(), byId("hub-state")];
  setText(state, "Asking the hub…");
  let found = [];
  let told = "";
  try {
    found = await (await administer("library/search", { words })).json();
    told = found.length ? "From the hub, the most downloaded first:" : "The hub has none.";
  } catch (error) {
    told = error.message;
  }
  // Other words may have been typed meanwhile.
  if (words !== sought()) return;
  setText(state, told);
  keyed(byId("hub-list"), found, (one) => one.name, createFound, () => {});
}

function createFound(one) {
  const about = [`${one.downloads} downloads`, one.changed && `changed ${one.changed}`,
    one.gated && "gated: it needs an account that accepted its terms"].filter(Boolean);
  return element("li", "row",
    element("div", "", element("b", "", one.name), element("p", "hint", about.join(", "))),
    button("Plan", "small", () => choose(one.name), `Plan ${one.name} of the hub`));
}

function create(one) {
  const actions = element("span", "row",
    button("Plan", "small", () => choose(one.path ?? one.name), `Plan ${one.name}`));
  if (one.owned) {
    const label = `Delete ${one.name}${one.node ? ` of ${one.node}` : ""}`;
    actions.append(button("Delete", "small danger", () => remove(one), label));
  }
  return element("li", "row", element("div", "", element("b"), element("p", "hint")), actions);
}

function update(item, one) {
  setText(item.querySelector("b"), one.name);
  const about = one.parameters ? "about " : "";
  const where = one.on ? `on ${one.on}` : "on the hub";
  const short = one.needs_bytes - library.free_bytes;
  const fits = short <= 0 ? "fits" : `${bytes(short)} too large for the free memory`;
  item.toggleAttribute("data-no", short > 0);
  setText(item.querySelector(".hint"), `${about}${bytes(one.bytes)}, ${where}: ${fits}`);
}

function choose(name) {
  byId("load-model").value = name;
  show();
  forgetHub();
  return compare();
}

async function remove(one) {
  const disk = one.node ? `the disk of ${one.node}` : "this node's disk";
  const detail = `Its ${bytes(one.bytes)} on ${disk} become free.`;
  if (!await confirmed(`Delete ${one.name}?`, detail, "Delete it")) return;
  const where = one.node ? { model: one.name, node: one.node } : { model: one.path };
  await administer("models/remove", where);
  toast(`${one.name} is deleted.`);
  await look();
}

/** The quantisations of a model that must be downloaded first. */
async function showVariants({ model, download }) {
  const place = byId("variants");
  place.replaceChildren();
  if (!download) return;
  try {
    const offers = await (await administer("library/variants", { model })).json();
    // Another comparison may have begun meanwhile.
    if (byId("load-model").value.trim() !== model || offers.length < 2) return;
    place.replaceChildren(element("span", "hint", "Quantisations:"), ...offers.map((offer) => {
      const text = `${offer.quantisation} ${bytes(offer.bytes)}`;
      const made = button(text, "small", () => choose(offer.name), `Plan ${offer.name}`);
      made.toggleAttribute("data-no", offer.needs_bytes > (library?.free_bytes ?? Infinity));
      if (offer.name === download.name) made.setAttribute("aria-current", "true");
      return made;
    }));
  } catch {
    // Without a list, the plan of the usual one stays.
  }
}
