// The list of conversations: opened, searched, forgotten, exported and imported.

import { confirmed } from "./confirm.js";
import { button, byId, element, keyed, setText, toast } from "./dom.js";
import { plural } from "./format.js";
import { keepHere, keptOn, pair } from "./net.js";
import * as store from "./store.js";

/** With fewer conversations than these, a search is no help. */
const SEARCHED = 6;
const SEARCH_AFTER_MS = 200;

/** `open(id)` and `begin()` of the chat, and the id of the conversation that is open. */
let acts = null;
let openId = null;
/** The ids that a search has found; null without one. */
let found = null;

export function prepareTalks(given) {
  acts = given;
  document.addEventListener("talks", showTalks);
}

/** Says which node keeps the conversations; `here` is the name of this one. */
export function showHome(here) {
  const home = keptOn();
  setText(byId("talks-where"), `Kept on ${home?.name ?? here}`);
  byId("home-here").hidden = !home;
  byId("home-form").hidden = Boolean(home);
}

/** Begins anew with the conversations of another node. */
function moved() {
  store.beginAnew();
  acts.begin();
}

byId("home-here").addEventListener("click", () => {
  keepHere();
  moved();
});

byId("home-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const [field, wrong] = [byId("home-number"), byId("home-wrong")];
  wrong.hidden = true;
  try {
    await pair(field.value);
    field.value = "";
    moved();
  } catch (error) {
    setText(wrong, error.message);
    wrong.hidden = false;
    field.select();
  }
});

export function setOpen(id) {
  openId = id;
  showTalks();
}

function showTalks() {
  const search = byId("talks-search");
  search.hidden = store.all().length < SEARCHED && !search.value;
  const listed = store.all().filter((one) => !found || found.has(one.id));
  const isNew = openId === null && !found;
  const items = isNew ? [{ id: "", title: "New conversation", tags: [] }, ...listed] : listed;
  keyed(byId("talks"), items, (one) => one.id, create, update);
  const names = store.damage();
  const damaged = names.length > 0 ? ` ${names.join(", ")} cannot be read.` : "";
  const none = found && listed.length === 0 ? "None has all of these words." : "";
  setText(byId("talks-state"), store.whyNone() ?? `${none}${damaged}`);
}

function update(item, one) {
  const [open, forget] = item.children;
  const [dot, title, tags] = open.children;
  dot.hidden = !store.isRunning(one.id);
  setText(title, one.title);
  setText(tags, one.tags.map((tag) => `#${tag}`).join(" "));
  const isOpen = one.id === (openId ?? "");
  item.toggleAttribute("data-here", isOpen);
  if (isOpen) open.setAttribute("aria-current", "true");
  else open.removeAttribute("aria-current");
  forget.hidden = one.id === "";
  forget.setAttribute("aria-label", `Forget: ${one.title}`);
}

function create({ id }) {
  const dot = element("span", "dot");
  dot.setAttribute("role", "img");
  dot.setAttribute("aria-label", "an answer is being written:");
  const open = element("button", "open", dot, element("span"), element("span", "tags"));
  open.type = "button";
  open.addEventListener("click", () => (id ? acts.open(id) : acts.begin()));
  return element("li", "", open, button("×", "forget", () => forgetOne(id)));
}

async function forgetOne(id) {
  const { conversation } = await store.read(id);
  const { title } = store.find(id) ?? { title: "It" };
  await store.act("forget", { id });
  const all = store.all();
  const next = all[all.findIndex((one) => one.id === id) + 1] ?? all.find((one) => one.id !== id);
  if (id === openId) await (next ? acts.open(next.id) : acts.begin());
  toast(`“${title}” is forgotten.`, {
    name: "Undo",
    act: async () => {
      await store.act("import", { id, conversation });
      await acts.open(id);
    },
  });
}

let searching = 0;

byId("talks-search").addEventListener("input", () => {
  clearTimeout(searching);
  searching = setTimeout(async () => {
    const words = byId("talks-search").value.trim();
    try {
      found = words ? await store.search(words) : null;
    } catch (error) {
      toast(error.message);
    }
    showTalks();
  }, SEARCH_AFTER_MS);
});

/** Has the browser keep a file. */
export function download(content, type, name) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  // Some browsers read it a moment later.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

byId("new-talk").addEventListener("click", () => acts.begin());

byId("talks-export").addEventListener("click", async () => {
  try {
    download(await store.exported(), "application/json", "sinew-conversations.json");
  } catch (error) {
    toast(error.message);
  }
});

byId("talks-import").addEventListener("click", () => byId("talks-file").click());
byId("talks-file").addEventListener("change", async () => {
  const [file] = byId("talks-file").files;
  byId("talks-file").value = "";
  try {
    const count = await store.imported(await file.text());
    toast(`${plural(count, "conversation")} came from ${file.name}.`);
  } catch (error) {
    toast(error instanceof SyntaxError ? `${file.name} is no JSON.` : error.message);
  }
});

byId("talks-forget").addEventListener("click", async () => {
  const count = store.all().length;
  const detail = "They are removed from the node, and cannot come back. Export them first to keep "
    + "them as a file.";
  if (!await confirmed(`Forget ${plural(count, "conversation")}?`, detail, "Forget all")) return;
  try {
    await store.act("forget", { all: true });
    acts.begin();
  } catch (error) {
    toast(error.message);
  }
});
