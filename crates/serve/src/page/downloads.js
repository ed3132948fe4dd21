// Downloads of models to any machine's disk, whichever client requested them. A paused one keeps
// its row in this tab, and goes on from what has come.

import { button, byId, element, keyed, setText, toast } from "./dom.js";
import { bytes, duration, percent } from "./format.js";
import { loadingHere } from "./admin.js";
import { administer, isAdmin, lines } from "./net.js";

const STAGES = {
  looking: "asking what there is",
  pulling: "downloading",
  waiting: "waiting",
  verifying: "comparing its hash",
  hashing: "hashing",
};

const PAUSED = "sinew-paused";
/** A status may show a download for this long after its pause. */
const STOPPED_MS = 5000;

/** The paused downloads by model: what their rows show, and when they were paused. */
const paused = new Map(Object.entries(JSON.parse(sessionStorage.getItem(PAUSED) ?? "{}")));

function keep(model, one, at = Date.now()) {
  if (one) paused.set(model, { one, at });
  else paused.delete(model);
  sessionStorage.setItem(PAUSED, JSON.stringify(Object.fromEntries(paused)));
}

/** The rows of paused downloads; one that another client has begun again is not paused. */
function pausedRows(own, active) {
  for (const { model } of active) {
    if (Date.now() - (paused.get(model)?.at ?? Infinity) > STOPPED_MS) keep(model, null);
  }
  const row = ([, { one }]) => ({ ...one, node: own, stage: "paused", note: "" });
  return own && isAdmin() ? [...paused].map(row) : [];
}

export function showDownloads(status) {
  const own = loadingHere();
  const of = (node) => (node.downloads ?? []).map((one) => ({ node, ...one }));
  const all = status.nodes.flatMap(of);
  // A download started on this page is shown in its load panel.
  const isHere = (one) => one.node.id === status.node;
  const here = all.filter(isHere);
  const rows = pausedRows(status.nodes.find((node) => node.id === status.node), here);
  const isPaused = (one) => isHere(one) && paused.has(one.model);
  const active = all.filter((one) => !isPaused(one) && (!isHere(one) || one.model !== own));
  const shown = [...active, ...rows];
  byId("downloads").hidden = byId("downloads-count").hidden = shown.length === 0;
  setText(byId("downloads-count"), String(shown.length));
  keyed(byId("downloads-list"), shown, (one) => `${one.node.id} ${one.model}`,
    (one) => create(one, isHere(one)), update);
}

/** Each node stops its own downloads alone. */
function create(one, isHere) {
  const item = element("li", "", element("div", "row", element("b"), element("span", "hint")),
    element("progress"), element("p", "hint told"), element("p", "hint note"));
  if (!isHere || !isAdmin()) return item;
  const of = `the download of ${one.model}`;
  item.append(element("p", "row acts",
    button("Pause", "small", () => pause(item), `Pause ${of}`),
    button("Go on", "small", () => goOn(one.model), `Go on with ${of}`),
    button("Hide", "small", () => hide(item, one.model), `Hide ${of}`)));
  return item;
}

async function pause(item) {
  const { node, ...one } = item.shown;
  keep(one.model, one);
  try {
    await administer("pull/stop", { model: one.model });
  } catch (error) {
    keep(one.model, null);
    throw error;
  }
  update(item, { ...one, node, stage: "paused", note: "" });
  item.querySelector(".acts button:not([hidden])").focus();
}

/** The node goes on without this page, which waits to say how it ends. */
export async function goOn(model) {
  const response = await administer("pull", { model, goes_on: true });
  // The row stays until the status has the download.
  const begun = 0;
  keep(model, paused.get(model)?.one, begun);
  wait(response).then(() => keep(model, null), (error) => {
    // The end of a paused one is no failure.
    if ((paused.get(model)?.at ?? begun) === begun) toast(error.message);
  });
}

async function wait(response) {
  for await (const line of lines(response.body)) {
    const told = line.trim() ? JSON.parse(line) : {};
    if (told.error) throw new Error(told.error.message ?? String(told.error));
  }
}

function hide(item, model) {
  keep(model, null);
  item.remove();
  toast("What has come of it is kept. To delete it: sinew rm, in a terminal.");
}

function update(item, one) {
  item.shown = one;
  const isPaused = one.stage === "paused";
  item.querySelectorAll(".acts button").forEach((act, at) => {
    act.hidden = isPaused === (at === 0);
  });
  setText(item.querySelector("b"), one.model);
  setText(item.querySelector(".row .hint"), `to ${one.node.name}`);
  const bar = item.querySelector("progress");
  bar.setAttribute("aria-label", `${one.model} to ${one.node.name}`);
  if (one.total_bytes > 0) {
    bar.max = 100;
    bar.value = Math.floor(percent(one.done_bytes, one.total_bytes));
  } else {
    bar.removeAttribute("value");
  }
  setText(item.querySelector(".told"), told(one).join(", "));
  setText(item.querySelector(".note"), one.note);
}

function told(one) {
  const parts = [STAGES[one.stage] ?? one.stage];
  if (one.total_bytes > 0) parts.push(`${bytes(one.done_bytes)} of ${bytes(one.total_bytes)}`);
  if (one.stage === "pulling" && one.bytes_per_sec > 0) {
    const left = (one.total_bytes - one.done_bytes) / one.bytes_per_sec;
    parts.push(`${bytes(one.bytes_per_sec)}/s`, `${duration(left)} left`);
  }
  return parts;
}
