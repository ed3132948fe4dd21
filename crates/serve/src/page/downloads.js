// Downloads of models to any machine's disk, whichever client requested them.

import { byId, element, keyed, setText } from "./dom.js";
import { bytes, duration, percent } from "./format.js";
import { loadingHere } from "./admin.js";

const STAGES = {
  looking: "asking what there is",
  pulling: "downloading",
  waiting: "waiting",
  verifying: "comparing its hash",
  hashing: "hashing",
};

export function showDownloads(status) {
  const own = loadingHere();
  const of = (node) => (node.downloads ?? []).map((one) => ({ node, ...one }));
  const all = status.nodes.flatMap(of);
  // A download started on this page is shown in its load panel.
  const shown = all.filter((one) => one.node.id !== status.node || one.model !== own);
  byId("downloads").hidden = shown.length === 0;
  keyed(byId("downloads-list"), shown, (one) => `${one.node.id} ${one.model}`, create, update);
}

function create() {
  return element("li", "", element("div", "row", element("b"), element("span", "hint")),
    element("progress"), element("p", "hint told"), element("p", "hint note"));
}

function update(item, one) {
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
