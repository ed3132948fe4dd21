// Administration, reserved to the node's owner: shown on pages opened with its token.

import { button, byId, element, keyed, setText, toast } from "./dom.js";
import { bytes, duration, percent, plural, rate, time } from "./format.js";
import { administer, isAdmin, lines } from "./net.js";
import { confirmed } from "./confirm.js";

/** Sends an administrative request if the person agrees. */
async function afterAsking(question, detail, deed, path, body) {
  if (await confirmed(question, detail, deed)) await administer(path, body);
}

export function modelActions(place, model) {
  if (place.firstChild) return;
  const chat = element("a", "", "Chat");
  chat.href = "#chat";
  chat.addEventListener("click", () => {
    document.dispatchEvent(new CustomEvent("choose", { detail: model.model }));
  });
  place.append(chat);
  if (!isAdmin()) return;
  place.append(button("Stop", "small danger", () => afterAsking(
    `Stop ${model.model}?`, "Its answers in progress end.", "Stop it",
    "stop", { instance: model.id },
  ), `Stop ${model.model}`));
}

/** What stops without a machine, in words. */
function losses(node, status) {
  const on = status.instances.filter((one) => one.ranks.some((rank) => rank.node === node.id));
  const alone = on.filter((one) => one.ranks.length === 1).map((one) => one.model);
  const parts = on.filter((one) => one.ranks.length > 1).map((one) => one.model);
  const stop = alone.length > 0 ? `${alone.join(", ")} runs on ${node.name} alone, and stops `
    + "unless another machine has its file. " : "";
  const move = parts.length > 0 ? `${parts.join(", ")} loses its part there, and is loaded anew. `
    : "";
  return `${stop}${move}`;
}

export function machineActions(place, node, isHere, status) {
  if (!isAdmin()) return;
  // Buttons are made once; what they say is of now.
  place.status = status;
  const actions = [];
  if (node.drained) {
    actions.push(["undrain", "Undrain", "", () => administer("undrain", { node: node.id })]);
  } else if (node.state === "live") {
    actions.push(["drain", "Drain", "", () => afterAsking(
      `Drain ${node.name}?`, "Its models move to other machines, and their answers go on there. "
        + "It gets no new work until it is undrained.", "Drain it",
      "drain", { node: node.id, wait: false },
    )]);
  }
  if (!isHere) {
    actions.push(["remove", "Remove", "danger", () => afterAsking(
      `Remove ${node.name} from the cluster?`,
      `${losses(node, place.status)}It needs a new code to come back.`, "Remove it",
      "remove", { node: node.id },
    )]);
  }
  const create = ([, name, tone, act]) => (
    button(name, `small ${tone}`, act, `${name} ${node.name}`));
  keyed(place, actions, ([path]) => path, create, () => {});
}

export function prepareAdmin() {
  if (!isAdmin()) return;
  byId("invite").addEventListener("click", invite);
  byId("load").addEventListener("submit", (event) => {
    event.preventDefault();
    compare();
  });
}

async function invite() {
  try {
    const made = await (await administer("invite")).json();
    const minutes = Math.ceil(made.expires_in_secs / 60);
    setText(byId("invite-code"), `sinew join ${made.code}`);
    toast(`The code works once, within ${minutes} minutes.`);
  } catch (error) {
    toast(error.message);
  }
}

// Plans, shown before anything is loaded.

/** Maximum number of alternatives shown. */
const PLANS_MAX = 6;
/** Shorter measurements are too noisy for a rate. */
const RATE_AFTER_SECS = 1.5;

/** As `sinew serve` by itself: a second node gets the file where its disk has room. */
const COPIES = { copies: 2, copies_if_room: true };

function wanted() {
  const body = { model: byId("load-model").value.trim() };
  const context = Number.parseInt(byId("load-context").value, 10);
  if (context > 0) body.context_tokens = context;
  return body;
}

export async function compare() {
  const [state, place] = [byId("load-state"), byId("plans")];
  const asked = wanted();
  setText(state, "Looking at the model…");
  place.replaceChildren();
  document.dispatchEvent(new CustomEvent("planning", { detail: asked.model }));
  try {
    const found = await (await administer("plan", asked)).json();
    const { download } = found;
    document.dispatchEvent(
      new CustomEvent("planned", { detail: { model: asked.model, download } }));
    const chosen = {
      name: found.name,
      nodes: found.ranks.map((rank) => rank.name),
      prediction: found.prediction,
      who: found.ranks.map((rank) => `${rank.name} ${bytes(rank.memory_bytes)}`).join(", "),
      // The next best plan is listed below.
      why: found.why.filter((line) => !line.startsWith("next best")),
    };
    const others = (found.alternatives ?? []).slice(0, PLANS_MAX).map((one) => ({
      name: one.split, nodes: one.nodes, prediction: one.prediction, who: "", why: [one.reason],
    }));
    const first = download ? `It is on no disk yet. To download first: ${download.why}. ` : "";
    setText(state, `${first}What Sinew would choose, and ${plural(others.length, "other way")}:`);
    const verb = download ? "Download and load" : "Load";
    keyed(place, [chosen, ...others], (_, at) => at, createPlan, (card, plan, at) => {
      updatePlan(card, plan, at === 0, verb);
    });
    // What is recommended is seen first, and Enter loads it.
    place.firstChild.scrollIntoView({ block: "center" });
    place.querySelector("button")?.focus({ preventScroll: true });
  } catch (error) {
    setText(state, error.message);
  }
}

function createPlan() {
  return element("article", "plan", element("div", "row", element("h3"), element("span", "rate")),
    element("p", "who"), element("p", "time-spent"), element("ul", "why"),
    element("div", "actions"));
}

function updatePlan(card, plan, isChosen, verb) {
  card.toggleAttribute("data-best", isChosen);
  card.toggleAttribute("data-no", !isChosen && !plan.prediction);
  const over = `${plan.name} over ${plan.nodes.join(", ")}`;
  setText(card.querySelector("h3"), plan.nodes.length === 1 ? `on ${plan.nodes[0]} alone` : over);
  const speed = plan.prediction?.decode_tokens_per_sec;
  setText(card.querySelector(".rate"), speed ? `about ${rate(speed)} tokens/s` : "");
  setText(card.querySelector(".who"), plan.who);
  setText(card.querySelector(".time-spent"), tokenTime(plan.prediction?.token));
  keyed(card.querySelector(".why"), plan.why, (_, at) => at, () => element("li"), setText);
  const style = isChosen ? "small primary" : "small";
  const act = () => load(isChosen ? {} : { nodes: plan.nodes });
  card.querySelector(".actions").replaceChildren(...(isChosen || plan.prediction
    ? [button(isChosen ? `${verb} this way` : `${verb} on these`, style, act)]
    : []));
}

/** The estimated time of a token by part. */
function tokenTime(token) {
  if (!token) return "";
  const parts = [["reading weights", token.read_secs], ["computing", token.multiply_secs],
    ["starting operations", token.operation_secs], ["cuts", token.cut_secs],
    ["messages", token.message_secs + token.wire_secs]];
  const told = parts.filter(([, secs]) => secs > 1e-6);
  return `A token: ${told.map(([name, secs]) => `${time(secs * 1e6)} ${name}`).join(", ")}`;
}

/** The model that this page is loading. */
let asked = null;
export const loadingHere = () => asked;

/** `how`: options besides the model; Sinew chooses the values of all others. */
async function load(how) {
  const [state, cancel] = [byId("load-state"), byId("load-cancel")];
  const controller = new AbortController();
  let [began, isPulling] = [null, false];
  asked = wanted().model;
  const { model } = wanted();
  cancel.onclick = async () => {
    controller.abort();
    // Without this page the node goes on: it is told to stop.
    if (isPulling) await administer("pull/stop", { model }).catch((error) => toast(error.message));
  };
  try {
    const body = { ...wanted(), ...COPIES, ...how, goes_on: true };
    const response = await administer("serve", body, controller.signal);
    byId("plans").replaceChildren();
    for await (const line of lines(response.body)) {
      if (!line.trim()) continue;
      const told = JSON.parse(line);
      if (told.error) throw new Error(told.error.message ?? String(told.error));
      // A loading model has a stop button.
      isPulling = ["pulling", "verifying"].includes(told.status);
      cancel.hidden = !isPulling;
      if (began?.status !== told.status) began = { ...told, at: performance.now() };
      showProgress(told, began);
    }
  } catch (error) {
    if (!controller.signal.aborted) {
      setText(state, error.message);
      throw error;
    }
    setText(state, "Cancelled. What has come is kept: loading it again goes on from there.");
  } finally {
    asked = null;
    document.dispatchEvent(new CustomEvent("loaded"));
    cancel.hidden = byId("load-bar").hidden = true;
  }
}

/** `began`: the first status of the same stage, and its time. */
function showProgress(told, began) {
  const [state, bar] = [byId("load-state"), byId("load-bar")];
  bar.hidden = told.status === "ready" || !(told.total_bytes > 0);
  if (told.status === "ready") return setText(state, "It is ready.");
  const done = Math.floor(percent(told.done_bytes, told.total_bytes));
  bar.value = done;
  const parts = [told.status];
  if (told.total_bytes > 0) {
    parts.push(`${bytes(told.done_bytes)} of ${bytes(told.total_bytes)}`);
  }
  const secs = (performance.now() - began.at) / 1000;
  const perSec = (told.done_bytes - began.done_bytes) / secs;
  if (secs >= RATE_AFTER_SECS && perSec > 0) {
    const left = (told.total_bytes - told.done_bytes) / perSec;
    parts.push(`${bytes(perSec)}/s`, `${duration(left)} left`);
  }
  setText(state, [parts.join(", "), told.reason].filter(Boolean).join(". "));
}
