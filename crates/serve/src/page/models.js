// Models: their shares, their speed, and each rank's time per step.

import { byId, element, keyed, pill, setFigures, setPill, setText } from "./dom.js";
import { bytes, percent, plural, rate, rounded, time } from "./format.js";
import { tints } from "./machines.js";
import { stepTimes, tokenRate } from "./rates.js";
import { modelActions } from "./admin.js";

export const STATES = {
  loading: ["busy", "loading"],
  ready: ["good", "ready"],
  recovering: ["busy", "recovering"],
  unloaded: ["", "unloaded"],
  failed: ["bad", "failed"],
};
/** Ratio to the average compute time above which a rank is named as slow. */
const SLOW = 1.25;
const TIMES = ["compute", "wait"];

function create() {
  const title = element("div", "", element("h3"), element("p", "sub"));
  const head = element("div", "card-head", title, pill());
  const shares = element("div", "shares");
  shares.setAttribute("aria-hidden", "true");
  const why = element("details", "", element("summary", "", "Why it is placed so"), element("ul"));
  return element("article", "card model", head, element("ul", "reason"),
    element("p", "speed", element("b"), element("span")), shares, element("ul", "ranks"),
    element("div", "figures"), why, element("div", "actions"));
}

function update(card, model, tintOf) {
  let [tone, word] = STATES[model.state.state] ?? ["quiet", model.state.state];
  const sum = (field) => model.ranks.reduce((total, rank) => total + rank[field], 0);
  const [loaded, total] = [sum("loaded_bytes"), sum("total_bytes")];
  const isLoading = model.state.state === "loading" && total > 0;
  if (isLoading) word = `loading, ${Math.floor(percent(loaded, total))} %`;
  setText(card.querySelector("h3"), model.model);
  const count = model.ranks.length;
  const where = count > 0 ? `${bytes(total)} on ${plural(count, "machine")}` : "";
  setText(card.querySelector(".sub"), where);
  setPill(card.querySelector(".pill"), tone, word);
  const reason = card.querySelector(".reason");
  const told = [model.state.reason, ...(model.notes ?? [])].filter(Boolean);
  reason.hidden = told.length === 0;
  keyed(reason, told, (_, at) => at, () => element("li"), setText);
  showSpeed(card.querySelector(".speed"), model);
  showRanks(card, model, tintOf);
  const pages = model.stats?.pages;
  const cache = pages?.total > 0 ? `${rounded(percent(pages.used, pages.total))} %` : null;
  const { guessed_tokens: tried, guessed_right_tokens: right } = model.stats ?? {};
  const { prompts, experts } = model.stats ?? {};
  const uses = (experts?.hits ?? 0) + (experts?.misses ?? 0);
  setFigures(card.querySelector(".figures"), [
    [model.requests_running, "running"],
    [model.requests_waiting > 0 ? model.requests_waiting : null, "waiting"],
    [model.context_tokens.toLocaleString("en"), "tokens of context"],
    [cache, "of the cache in use"],
    [tried > 0 ? `${rounded(percent(right, tried))} %` : null, "of guessed tokens right"],
    [prompts ? bytes(prompts.disk_bytes) : null, "of prompts on disk"],
    [uses > 0 ? `${rounded(percent(experts.hits, uses))} %` : null, "of experts' uses from memory"],
    [uses > 0 ? bytes(experts.read_bytes) : null, "of experts read from disk"],
    [model.transport === "auto" ? null : model.transport, "links"],
    [`epoch ${model.epoch}`, ""],
  ]);
  const why = card.querySelector("details");
  const reasons = model.placement ?? [];
  why.hidden = reasons.length === 0;
  keyed(why.lastChild, reasons, (_, at) => at, () => element("li"), setText);
  modelActions(card.querySelector(".actions"), model);
}

function showSpeed(line, model) {
  const now = tokenRate(model.id) ?? 0;
  const lately = model.last_decode_tokens_per_sec ?? null;
  line.hidden = now < 0.05 && lately === null;
  const isNow = now >= 0.05;
  setText(line.firstChild, rate(isNow ? now : lately ?? 0));
  setText(line.lastChild, isNow ? "tokens a second now" : "tokens a second in the last answer");
}

function showRanks(card, model, tintOf) {
  const ranks = model.ranks;
  const rankOf = (rank) => rank.rank;
  keyed(card.querySelector(".shares"), ranks, rankOf, () => element("i"), (bar, rank) => {
    bar.style.setProperty("--share", rank.percent);
    bar.style.setProperty("--tint", tintOf(rank.node));
    bar.style.setProperty("--part", `${percent(rank.loaded_bytes, rank.total_bytes)}%`);
  });
  const times = stepTimes(model);
  const known = times.filter(Boolean);
  const longest = Math.max(0, ...known.map((one) => one.compute + one.wait + one.between));
  const average = known.reduce((total, one) => total + one.compute, 0) / (known.length || 1);
  keyed(card.querySelector(".ranks"), ranks, rankOf, createRank, (line, rank, at) => {
    line.style.setProperty("--tint", tintOf(rank.node));
    setText(line.querySelector(".name"), rank.node_name);
    setText(line.querySelector(".part"), `${rounded(rank.percent)} %`);
    const whole = bytes(rank.total_bytes);
    const isWhole = rank.loaded_bytes >= rank.total_bytes;
    const held = isWhole ? whole : `${bytes(rank.loaded_bytes)} of ${whole}`;
    setText(line.querySelector(".bytes"), held);
    const isSlowest = ranks.length > 1 && times[at]?.compute > SLOW * average;
    showTime(line, times[at] ?? null, longest, isSlowest);
  });
}

function createRank() {
  const name = element("span", "", element("i", "swatch"), element("span", "name"));
  const who = element("p", "who", name, element("span", "part"), element("span", "bytes"));
  const bar = element("div", "bar time", ...TIMES.map((kind) => {
    const part = element("i");
    part.dataset.kind = kind;
    return part;
  }));
  bar.setAttribute("aria-hidden", "true");
  return element("li", "", who, bar, element("p", "time-words"));
}

function showTime(line, spent, longest, isSlowest) {
  const [bar, words] = [line.querySelector(".time"), line.querySelector(".time-words")];
  bar.hidden = words.hidden = spent === null;
  if (spent === null) return;
  for (const part of bar.children) {
    part.style.setProperty("--part", `${percent(spent[part.dataset.kind], longest)}%`);
  }
  const texts = [
    `a step: ${time(spent.compute)} computing`,
    spent.wait >= 1 ? `${time(spent.wait)} waiting for others` : null,
    spent.between >= 1 ? `${time(spent.between)} between steps` : null,
  ].filter(Boolean);
  const text = `${texts.join(", ")}${isSlowest ? " · the slowest part" : ""}`;
  words.classList.toggle("slowest", Boolean(isSlowest));
  setText(words, text);
}

export function showModels(status) {
  const tintOf = tints(status);
  keyed(byId("models"), status.instances, (model) => model.id, create, (card, model) => {
    update(card, model, tintOf);
  });
  byId("no-models").hidden = status.instances.length > 0;
}
