// The library: one card for each model that is served, on a machine's disk or has a short name,
// with what it would need. Plans unfold in the card of the model that they are for.

import { button, byId, element, keyed, pill, setPill, setText, toast } from "./dom.js";
import { bytes } from "./format.js";
import { administer, adminGet, isAdmin } from "./net.js";
import { compare, modelActions } from "./admin.js";
import { confirmed } from "./confirm.js";
import { goOn } from "./downloads.js";
import { STATES } from "./models.js";
import { forgetFound, prepareSearch, sought } from "./search.js";

/** Models that nobody has yet, shown before more are requested. */
const SUGGESTIONS = 6;

let library = null;
let served = [];
let showsAll = false;
/** What was typed, by which cards are filtered; a card's own button types nothing. */
let words = [];
/** The model in whose card plans unfold, if it has one, and the quantisations offered there. */
let unfolded = null;
let variants = [];

export function prepareLibrary() {
  if (!isAdmin()) return;
  prepareSearch({ isKnown: (name) => cards().some((card) => isCalled(card, name)), choose });
  byId("load-model").addEventListener("input", () => {
    words = sought().toLowerCase().split(/\s+/);
    show();
  });
  byId("library-more").addEventListener("click", () => {
    showsAll = true;
    show();
  });
  document.addEventListener("planning", ({ detail }) => {
    if (!variants.includes(detail)) {
      unfolded = cards().find((card) => isCalled(card, detail.toLowerCase()))?.model ?? null;
      variants = [];
      byId("variants").replaceChildren();
    }
    show();
  });
  document.addEventListener("planned", ({ detail }) => showVariants(detail));
  document.addEventListener("models", ({ detail }) => {
    served = detail;
    if (library && !byId("library").hidden) show();
  });
  document.addEventListener("view", ({ detail }) => {
    if (detail === "library") look();
  });
  for (const event of ["loaded", "members"]) document.addEventListener(event, look);
  document.addEventListener("dragover", (event) => {
    if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
  });
  document.addEventListener("drop", (event) => {
    const model = [...event.dataTransfer?.files ?? []].find(({ name }) => /\.gguf$/i.test(name));
    if (!model) return;
    event.preventDefault();
    event.stopPropagation();
    loadDropped(model).catch((error) => toast(error.message));
  }, { capture: true });
}

/** A dropped file: pages learn its name and size alone, so it is looked for among those known. */
async function loadDropped({ name, size }) {
  location.hash = "#library";
  await look();
  const isIt = ({ path, bytes: length }) => length === size && path?.split(/[/\\]/).pop() === name;
  const found = library?.disks.find((one) => !one.node && isIt(one));
  if (found) return choose(found.path);
  byId("load-model").value = name;
  byId("load-model").select();
  toast(`Browsers do not say where ${name} lies, and it is in no folder of models that this node `
    + "knows. Type its path, or move it into one: sinew list names them.");
}

async function look() {
  try {
    library = await (await adminGet("library")).json();
    show();
  } catch (error) {
    setText(byId("library-room"), error.message);
  }
}

/**
 * One card a model: `{ model, files, parts, offer, instances }`. Copies under other names are files
 * of the model whose content they have; parts are what interrupted downloads have left.
 */
function cards() {
  const byName = new Map();
  const of = (model) => {
    const key = model.toLowerCase();
    if (!byName.has(key)) {
      byName.set(key, { model, files: [], parts: [], offer: null, instances: [] });
    }
    return byName.get(key);
  };
  const byDigest = new Map();
  for (const one of library?.disks ?? []) {
    const card = byDigest.get(one.digest) ?? of(one.model || one.name);
    if (one.digest) byDigest.set(one.digest, card);
    const same = card.files.find((file) => (one.digest && file.digest === one.digest));
    const place = { ...one, on: one.node ?? "this node", owned: one.shelf === "own" };
    if (same) same.places.push(place);
    else card.files.push({ ...one, places: [place] });
  }
  for (const part of library?.interrupted ?? []) of(part.model || part.name).parts.push(part);
  for (const offer of library?.catalogue ?? []) of(offer.name).offer = offer;
  for (const one of served.filter(({ isPreset }) => !isPreset)) {
    const named = [...byName.values()].find((card) => isCalled(card, one.model.toLowerCase()));
    (byDigest.get(one.digest) ?? named ?? of(one.model)).instances.push(one);
  }
  return [...byName.values()];
}

const namesOf = ({ model, files, parts, instances }) => [model,
  ...[...files, ...parts].map(({ name }) => name), ...instances.map((one) => one.model)]
  .map((name) => name.toLowerCase());

const isCalled = (card, name) => namesOf(card).includes(name)
  || card.files.some(({ places }) => places.some(({ path }) => path?.toLowerCase() === name));

const needs = ({ files, parts, offer }) =>
  Math.min(...[...files, ...parts].map((one) => one.needs_bytes), offer?.needs_bytes ?? Infinity);

/** Served ones, then those on disks, then the largest that fit, then the smallest that do not. */
function order(a, b) {
  const rank = ({ instances, files, parts }) =>
    [instances, files, parts, [null]].findIndex((list) => list.length > 0);
  const isOver = (card) => needs(card) > library.free_bytes;
  const larger = needs(b) - needs(a) || 0;
  return rank(a) - rank(b) || isOver(a) - isOver(b) || (isOver(a) ? -larger : larger);
}

function show() {
  if (!library) return;
  const has = (card) => words.every((word) => namesOf(card).some((name) => name.includes(word)));
  const found = cards().filter(has).sort(order);
  const ours = found.filter(({ files, parts, instances }) =>
    files.length + parts.length + instances.length > 0).length;
  const shown = showsAll ? found : found.slice(0, ours + SUGGESTIONS);
  setText(byId("library-room"), `${library.whose} ${bytes(library.free_bytes)} of memory free.`
    .replace(/^./, (letter) => letter.toUpperCase()));
  const [panel, list] = [byId("load-panel"), byId("library-list")];
  // A card that goes must not take the plans along.
  const isShown = shown.some(({ model }) => model === unfolded);
  if (!isShown && list.contains(panel)) byId("load").after(panel);
  keyed(list, shown, ({ model }) => model.toLowerCase(), create, update);
  const place = isShown && [...list.children].find((item) => item.model === unfolded);
  if (place && !place.contains(panel)) place.append(panel);
  const more = byId("library-more");
  more.hidden = shown.length === found.length;
  setText(more, `Show all ${found.length}`);
}

function create(card) {
  const head = element("div", "card-head", element("h3", "", card.model), pill());
  return element("li", "book", head, element("p", "hint"), element("ul"),
    element("div", "actions"));
}

function update(item, card) {
  const { model, offer, files, parts, instances: [running] } = card;
  item.model = model;
  const mark = item.querySelector(".pill");
  mark.hidden = !running;
  if (running) {
    const [tone, word] = STATES[running.state.state] ?? ["quiet", running.state.state];
    setPill(mark, tone, running.state.state === "ready" ? "served" : word);
  }
  const about = item.querySelector(".hint");
  about.hidden = files.length + parts.length > 0 || !offer;
  if (offer) setText(about, `about ${bytes(offer.bytes)}, on the hub: ${fit(offer.needs_bytes)}`);
  item.toggleAttribute("data-no", !running && needs(card) > library.free_bytes);
  const isServed = ({ digest }) => card.instances.some((one) => digest && one.digest === digest);
  const shown = files.map((file) => ({ ...file, isServed: isServed(file) }));
  keyed(item.querySelector("ul"), [...shown, ...parts], (file) => file.path ?? file.name,
    () => element("li", "row", element("p", "hint"), element("span", "row")), updateFile);
  keyed(item.querySelector(".actions"), actions(card), ({ key }) => key, ({ make }) => make(),
    () => {});
}

function actions({ model, files, parts, instances }) {
  const steer = (one) => {
    const place = element("span", "row wrap");
    modelActions(place, one);
    return place;
  };
  if (instances.length > 0) {
    return instances.map((one) => ({ key: one.id, make: () => steer(one) }));
  }
  if (files.length + parts.length > 0) return [];
  return [{
    key: "load",
    make: () => button("Load", "small", () => choose(model), `Load ${model}`),
  }];
}

function fit(needed) {
  const short = needed - library.free_bytes;
  return short <= 0 ? "fits" : `${bytes(short)} too large for the free memory`;
}

function updateFile(item, file) {
  if (!file.places) return updatePart(item, file);
  const where = [...new Set(file.places.map((place) => place.on))].join(", ");
  const about = [file.quantisation, bytes(file.bytes)].filter(Boolean).join(", ");
  setText(item.querySelector(".hint"), `${about}, on ${where}: ${fit(file.needs_bytes)}`);
  const here = file.places.find((place) => !place.node);
  const load = () => button("Load", "small", () => choose(here?.path ?? file.name),
    `Load ${file.name}`);
  const owned = file.places.filter((place) => place.owned);
  const offered = file.isServed ? [] : [null];
  keyed(item.querySelector(".row"), [...offered, ...owned], (place) => place?.on ?? "",
    (place) => (place ? removal(place) : load()), () => {});
}

/** What an interrupted download has left of a model. */
function updatePart(item, { name, done_bytes: done, total_bytes: total }) {
  const [, quantisation] = name.split(":");
  const about = [quantisation, `${bytes(done)} of ${bytes(total)}, not whole`];
  setText(item.querySelector(".hint"), about.filter(Boolean).join(", "));
  const acts = {
    "Go on": () => goOn(name).then(look),
    Delete: () => remove({ name, bytes: done }),
  };
  keyed(item.querySelector(".row"), Object.keys(acts), (act) => act,
    (act) => button(act, act === "Delete" ? "small danger" : "small", acts[act],
      `${act} ${act === "Delete" ? "what has come of" : "with"} ${name}`), () => {});
}

const removal = (place) => button("Delete", "small danger", () => remove(place),
  `Delete ${place.name}${place.node ? ` of ${place.node}` : ""}`);

async function choose(name) {
  byId("load-model").value = name;
  forgetFound();
  await compare();
}

async function remove(one) {
  const disk = one.node ? `the disk of ${one.node}` : "this node's disk";
  const detail = `Its ${bytes(one.bytes)} on ${disk} become free.`;
  if (!await confirmed(`Delete ${one.name}?`, detail, "Delete it")) return;
  const where = one.node ? { model: one.name, node: one.node } : { model: one.path ?? one.name };
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
    if (sought() !== model || offers.length < 2) return;
    variants = offers.map((offer) => offer.name);
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
