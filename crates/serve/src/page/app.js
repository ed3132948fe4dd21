// The page as a whole: the visible view, and the status shared by all views, requested every
// second.

import "./chat.js";
import { byId, keyed, element, setPill, setText, toast } from "./dom.js";
import { clock } from "./format.js";
import {
  apiKey, get, isAdmin, isHere, pair, recall, remember, setApiKey, takeNumber,
} from "./net.js";
import { showTotals, showPulse } from "./totals.js";
import { showMap } from "./map.js";
import { showMachines } from "./machines.js";
import { showModels } from "./models.js";
import { follow } from "./events.js";
import { showConnect } from "./connect.js";
import { prepareAdmin } from "./admin.js";
import { prepareLibrary } from "./library.js";
import { showJoining } from "./joining.js";
import { showDownloads } from "./downloads.js";
import { showHome } from "./talks.js";
import { observe } from "./rates.js";

const POLL_MS = 1000;
const POLL_HIDDEN_MS = 5000;
const VIEWS = ["cluster", "library", "chat", "events", "connect"];

function showView() {
  const asked = location.hash.slice(1);
  const view = VIEWS.includes(asked) ? asked : "cluster";
  for (const name of VIEWS) byId(name).hidden = name !== view;
  for (const link of document.querySelectorAll(".top nav a")) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const title = view[0].toUpperCase() + view.slice(1);
  document.title = `${title} · Sinew`;
  document.dispatchEvent(new CustomEvent("view", { detail: view }));
}

window.addEventListener("hashchange", () => {
  showView();
  window.scrollTo(0, 0);
});

/** The served models, ready ones first, then the presets of each. */
function servedModels(status) {
  const isReady = (one) => Number(one.state.state === "ready");
  const isUsable = (one) => one.state.state !== "failed" && !one.replica_of;
  const usable = status.instances.filter(isUsable);
  usable.sort((a, b) => isReady(b) - isReady(a));
  const presets = (status.presets ?? []).flatMap(({ name, model }) => {
    const of = usable.find((one) => one.model === model);
    return of ? [{ ...of, model: name, isPreset: true }] : [];
  });
  return usable.concat(presets);
}

/** Requests to join have their own place on the page. */
function notices(status) {
  const asking = (status.requests ?? []).map((one) => `${one.name} (${one.id.slice(0, 8)}`);
  const isShown = (text) => asking.some((beginning) => text.startsWith(beginning));
  return (status.notices ?? []).filter((text) => !isShown(text));
}

function show(status) {
  observe(status, performance.now());
  keyed(byId("notices"), notices(status), (text) => text, () => element("p"), setText);
  showTotals(status);
  showPulse();
  showMap(status);
  showMachines(status);
  showModels(status);
  showJoining(status);
  showDownloads(status);
  noteMembers(status);
  const models = servedModels(status);
  showConnect(models);
  const here = status.nodes.find((node) => node.id === status.node)?.name ?? "this node";
  showHome(here);
  document.dispatchEvent(new CustomEvent("models", { detail: models }));
}

/** The machines and their memory; figures of the library follow from it. */
let members = "";

function noteMembers({ nodes }) {
  const seen = nodes.map(({ id, state, memory_bytes: bytes }) => `${id} ${state} ${bytes}`).join();
  if (members && seen !== members) document.dispatchEvent(new CustomEvent("members"));
  members = seen;
}

/** Time of the figures on the page. */
let shownAt = null;

async function poll() {
  try {
    const response = await get("sinew/v1/status");
    const isLocked = response.status === 401;
    byId("locked").hidden = !isLocked;
    byId("content").hidden = isLocked;
    if (response.ok) {
      show(await response.json());
      shownAt = Date.now();
      setPill(byId("connection"), "good", "connected");
      follow();
    } else {
      const word = isLocked ? "key needed" : `error ${response.status}`;
      setPill(byId("connection"), "bad", word);
    }
    document.body.toggleAttribute("data-stale", false);
    byId("key-wrong").hidden = !(isLocked && apiKey());
  } catch (error) {
    // A bug in this page must not look like a node that does not answer.
    if (!(error instanceof TypeError) && !(error instanceof DOMException)) throw error;
    const since = shownAt ? `; this was ${clock(shownAt)}` : "";
    setPill(byId("connection"), "bad", `this node does not answer${since}`);
    document.body.toggleAttribute("data-stale", true);
  } finally {
    setTimeout(poll, document.hidden ? POLL_HIDDEN_MS : POLL_MS);
  }
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setApiKey(byId("key").value.trim(), byId("key-kept").checked);
  byId("key").value = "";
});

byId("pair-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const [field, wrong] = [byId("pair-number"), byId("pair-wrong")];
  wrong.hidden = true;
  try {
    await pair(field.value);
    field.value = "";
    byId("key-wrong").hidden = true;
  } catch (error) {
    setText(wrong, error.message);
    wrong.hidden = false;
    field.select();
  }
});
const number = takeNumber();
if (number && !apiKey()) {
  byId("pair-number").value = number;
  byId("pair-form").requestSubmit();
}
byId("plain-http").hidden = location.protocol !== "http:" || isHere;
byId("remembering").hidden = !isAdmin() || !isHere || apiKey() !== null;
byId("remember").addEventListener("click", async () => {
  try {
    await remember();
    byId("remembering").hidden = true;
    toast("This browser is remembered: a bookmark of this address has your rights.");
  } catch (error) {
    toast(error.message);
  }
});
recall().then((isOwner) => {
  if (isOwner) location.reload();
}, () => {
  // The status poll says that the node does not answer.
});

for (const node of document.querySelectorAll("[data-admin]")) node.hidden = !isAdmin();
for (const node of document.querySelectorAll("[data-no-admin]")) node.hidden = isAdmin();
prepareAdmin();
prepareLibrary();
showView();
poll();
