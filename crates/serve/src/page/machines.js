// Machines: their state and the use of their memory.

import { byId, element, keyed, pill, setFigures, setPill, setText } from "./dom.js";
import { bytes, percent, rounded, time } from "./format.js";
import { machineActions } from "./admin.js";

const TINTS = 6;

const TINTS_KEY = "sinew-tints";
/** The number of each machine's colour, which it keeps whoever joins or leaves. */
const given = new Map(Object.entries(JSON.parse(localStorage.getItem(TINTS_KEY) ?? "{}")));

/** Each machine has the same colour in every part of the page, on each visit. */
export function tints(status) {
  const ids = status.nodes.map((node) => node.id);
  const news = ids.filter((id) => !given.has(id)).sort();
  for (const id of news) {
    const taken = new Set(ids.map((one) => given.get(one)));
    const wish = Number.parseInt(id.slice(0, 4), 16) || 0;
    const order = Array.from({ length: TINTS }, (_, at) => (wish + at) % TINTS);
    given.set(id, order.find((tint) => !taken.has(tint)) ?? wish % TINTS);
  }
  if (news.length > 0) localStorage.setItem(TINTS_KEY, JSON.stringify(Object.fromEntries(given)));
  return (id) => `var(--c${given.get(id) ?? 0})`;
}

const NODE_STATES = {
  live: ["good", "live"],
  suspect: ["busy", "not answering"],
  lost: ["bad", "lost"],
};

/** Bytes of a machine's memory by kind; reserved but unused memory counts as free. */
export function memoryOf(node, status) {
  const kinds = { weights: 0, cache: 0, buffers: 0 };
  if (node.state === "lost") return { ...kinds, free: 0 };
  for (const rank of status.instances.flatMap((one) => one.ranks)) {
    if (rank.node !== node.id) continue;
    kinds.weights += rank.loaded_bytes;
    kinds.cache += rank.kv_bytes;
    kinds.buffers += rank.buffer_bytes;
  }
  const held = kinds.weights + kinds.cache + kinds.buffers;
  // Other memory of the workers counts as buffers.
  kinds.buffers += Math.max(0, node.memory_used_bytes - held);
  const used = kinds.weights + kinds.cache + kinds.buffers;
  return { ...kinds, free: Math.max(0, node.memory_bytes - used) };
}

export const KINDS = ["weights", "cache", "buffers"];

function create() {
  const title = element("div", "", element("h3"), element("p", "sub"));
  const head = element("div", "card-head", title, pill());
  const bar = element("div", "bar", ...KINDS.map((kind) => {
    const part = element("i");
    part.dataset.kind = kind;
    return part;
  }));
  bar.setAttribute("role", "img");
  return element("article", "card machine", head, bar, element("ul", "kinds"),
    element("div", "figures"), element("div", "actions"));
}

/** Whether a model still holds memory or a rank on the machine. */
const isHeld = (node, status) => node.memory_used_bytes > 0
  || status.instances.some((one) => one.ranks.some((rank) => rank.node === node.id));

function stateOf(node, status) {
  if (node.drained && node.state === "live") {
    return isHeld(node, status) ? ["busy", "draining"] : ["quiet", "drained"];
  }
  return NODE_STATES[node.state] ?? ["quiet", node.state];
}

function update(card, node, status, tint) {
  const [tone, word] = stateOf(node, status);
  const name = card.querySelector("h3");
  if (name.dataset.name !== node.name) {
    name.dataset.name = node.name;
    name.replaceChildren(element("i", "swatch"), node.name);
  }
  card.style.setProperty("--tint", tint);
  card.toggleAttribute("data-gone", node.state === "lost");
  const isHere = node.id === status.node;
  setText(card.querySelector(".sub"), isHere ? `this node, ${node.address}` : node.address);
  setPill(card.querySelector(".pill"), tone, word);
  const memory = memoryOf(node, status);
  const bar = card.querySelector(".bar");
  for (const part of bar.children) {
    part.style.setProperty("--part", `${percent(memory[part.dataset.kind], node.memory_bytes)}%`);
  }
  const words = [...KINDS, "free"].map((kind) => `${bytes(memory[kind])} ${kind}`);
  bar.setAttribute("aria-label", `Memory of ${node.name}: ${words.join(", ")}`);
  const shown = [...KINDS, "free"].filter((kind) => memory[kind] > 0);
  keyed(card.querySelector(".kinds"), shown, (kind) => kind, () => element("li"), (item, kind) => {
    item.dataset.kind = kind;
    if (item.dataset.value === bytes(memory[kind])) return;
    item.dataset.value = bytes(memory[kind]);
    item.replaceChildren(element("b", "", bytes(memory[kind])), ` ${kind}`);
  });
  const trip = node.round_trip_us ?? null;
  setFigures(card.querySelector(".figures"), [
    [bytes(node.memory_bytes), "for models"],
    [node.device?.name ?? null, "runs models"],
    [node.device ? bytes(node.device.memory_free_bytes) : null, deviceMemory(node.device)],
    [node.threads, node.threads === 1 ? "thread" : "threads"],
    [trip === null ? null : time(trip), "away"],
    [figure(node.sensors?.temperature_celsius), "°C"],
    [figure(node.sensors?.power_watts), "W"],
    [node.version ? `sinew ${node.version}` : null, ""],
  ]);
  machineActions(card.querySelector(".actions"), node, isHere, status);
}

const figure = (sensed) => (sensed === undefined || sensed === null ? null : rounded(sensed));

function deviceMemory(device) {
  return device ? `of its ${bytes(device.memory_bytes)} free at the start` : "";
}

export function showMachines(status) {
  const tintOf = tints(status);
  keyed(byId("machines"), status.nodes, (node) => node.id, create, (card, node) => {
    update(card, node, status, tintOf(node.id));
  });
}
