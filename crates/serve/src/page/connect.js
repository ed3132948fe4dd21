// Settings for programs that use the cluster, as `sinew launch` writes them.

import { byId, copyButton, element, setText } from "./dom.js";
import { apiKey, get } from "./net.js";

/** The model of the settings shown; they are requested again only when it changes. */
let shownFor = null;
let setups = [];
let chosen = null;

export async function showConnect(models) {
  const model = models[0]?.model ?? "";
  if (shownFor === model) return;
  shownFor = model;
  try {
    const base = new URL(".", document.baseURI).href;
    const query = new URLSearchParams({ base, model, key: apiKey() ? "1" : "0" });
    const response = await get(`sinew/v1/clients?${query}`);
    if (!response.ok) throw new Error(String(response.status));
    setups = await response.json();
  } catch {
    shownFor = null;
    return;
  }
  chosen ??= setups[0]?.id;
  drawTabs();
  drawPanel();
}

function drawTabs() {
  const list = byId("clients");
  const focused = list.contains(document.activeElement);
  list.replaceChildren(...setups.map((setup) => {
    const tab = element("button", "", setup.title);
    tab.type = "button";
    tab.id = `client-${setup.id}`;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", "client");
    tab.setAttribute("aria-selected", String(setup.id === chosen));
    tab.tabIndex = setup.id === chosen ? 0 : -1;
    tab.addEventListener("click", () => choose(setup.id));
    return tab;
  }));
  if (focused) byId(`client-${chosen}`)?.focus();
}

function choose(id) {
  chosen = id;
  drawTabs();
  drawPanel();
  byId(`client-${id}`).focus();
}

byId("clients").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  const at = setups.findIndex((setup) => setup.id === chosen);
  const ends = { Home: 0, End: setups.length - 1 };
  const stepped = step && (at + step + setups.length) % setups.length;
  const next = ends[event.key] ?? stepped;
  if (next === undefined) return;
  event.preventDefault();
  choose(setups[next].id);
});

function snippet(title, text) {
  const pre = element("pre", "", text);
  pre.tabIndex = 0;
  pre.setAttribute("aria-label", title);
  const copy = copyButton(() => text, `Copy ${title}`);
  return element("div", "snippet", element("h3", "", title), pre, copy);
}

function drawPanel() {
  const setup = setups.find((one) => one.id === chosen);
  const panel = byId("client");
  if (!setup) return;
  panel.setAttribute("aria-labelledby", `client-${setup.id}`);
  const parts = [element("p")];
  setText(parts[0], setup.about);
  if (setup.text) parts.push(snippet(setup.file ?? setup.title, setup.text));
  if (setup.run) parts.push(snippet("In a terminal", setup.run));
  if (setup.launch) {
    const command = element("code", "", setup.launch);
    parts.push(element("p", "hint", "Written for you, and taken back: ", command));
  }
  panel.replaceChildren(...parts);
}
