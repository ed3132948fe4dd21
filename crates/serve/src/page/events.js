// Events of the cluster, past and new: a stream from the node, shown as a timeline.

import { byId, element, keyed, setText, toast } from "./dom.js";
import { clock, day } from "./format.js";
import { events as parse, headers } from "./net.js";

const KEPT = 500;
const LATEST = 6;
const AGAIN_MS = 2000;

/** Oldest first. */
let known = [];
let isFollowing = false;
/** Number of errors that arrived while another view was shown. */
let unseen = 0;

/** Follows the node's events, once at a time; after a disconnect it resumes after the last one. */
export async function follow() {
  if (isFollowing) return;
  isFollowing = true;
  const isFirst = known.length === 0;
  const opened = Date.now();
  try {
    const after = known.at(-1)?.id ?? 0;
    const response = await fetch(`sinew/v1/events?after=${after}`, { headers: headers() });
    if (!response.ok) throw new Error(String(response.status));
    for await (const { data } of parse(response.body)) {
      if (data) add(JSON.parse(data), isFirst && Date.now() - opened < 1000);
    }
  } catch {
    // The node is gone, or this tab was suspended: the status poll shows that and calls this again.
  }
  setTimeout(() => { isFollowing = false; }, AGAIN_MS);
}

const isProblem = (event) => event.tone === "warning" || event.tone === "error";

function add(event, isOld) {
  known = known.filter((one) => one.id !== event.replaces && one.id !== event.id);
  known.push(event);
  if (known.length > KEPT) known.shift();
  if (!isOld && event.tone === "error") {
    toast(event.text);
    if (byId("events").hidden) unseen += 1;
  }
  schedule();
}

let isScheduled = false;

function schedule() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    show();
  });
}

function create(event) {
  if (event.day) return element("li", "day");
  const when = element("time");
  when.dateTime = new Date(event.at_ms).toISOString();
  return element("li", "", when, element("span", "what"));
}

function update(item, event) {
  if (event.day) return setText(item, event.day);
  item.dataset.tone = event.tone;
  setText(item.querySelector("time"), clock(event.at_ms));
  const times = event.times ? ` (${event.times} times)` : "";
  setText(item.querySelector(".what"), event.text + times);
}

function withDays(events) {
  const rows = [];
  let last = null;
  for (const event of events) {
    const name = day(event.at_ms);
    if (name !== last) rows.push({ id: `day ${name}`, day: name });
    last = name;
    rows.push(event);
  }
  return rows;
}

function show() {
  const shown = byId("problems").checked ? known.filter(isProblem) : known;
  const newest = shown.toReversed();
  const idOf = (event) => event.id;
  keyed(byId("timeline"), withDays(newest), idOf, create, update);
  keyed(byId("latest"), known.slice(-LATEST).toReversed(), idOf, create, update);
  const count = byId("events-new");
  count.hidden = unseen === 0;
  setText(count, `${unseen}`);
  count.setAttribute("aria-label", `, ${unseen} new problems`);
}

byId("problems").addEventListener("change", show);
document.addEventListener("view", ({ detail: view }) => {
  if (view !== "events") return;
  unseen = 0;
  show();
});
