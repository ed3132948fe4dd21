// Downloads of models to any machine's disk, whichever client requested them.

import { button, byId, element, keyed, setText, toast } from "./dom.js";
import { bytes, duration, percent } from "./format.js";
import { loadingHere } from "./admin.js";
import { administer, isAdmin } from "./net.js";

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
  const isHere = (one) => one.node.id === status.node;
  const shown = all.filter((one) => !isHere(one) || one.model !== own);
  byId("downloads").hidden = shown.length === 0;
  keyed(byId("downloads-list"), shown, (one) => `${one.node.id} ${one.model}`,
    (one) => create(one, isHere(one)), update);
}

/** Each node stops its own downloads alone. */
function create(one, isHere) {
  const cancel = button("Cancel", "small", async () => {
    await administer("pull/stop", { model: one.model });
    toast("Cancelled. What has come is kept: loading it again goes on from there.");
  }, `Cancel the download of ${one.model}`);
  return element("li", "", element("div", "row", element("b"), element("span", "hint")),
    element("progress"), element("p", "hint told"), element("p", "hint note"),
    ...(isHere && isAdmin() ? [cancel] : []));
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
