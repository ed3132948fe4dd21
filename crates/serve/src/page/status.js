// The cluster at a glance: asks for the status each second and changes what has changed, in place,
// so that focus, selection and screen readers are left in peace. Everything that comes from a node
// is set as text, never as markup.

const POLL_MS = 1000;
const POLL_HIDDEN_MS = 5000;
const TIMEOUT_MS = 5000;
const KEY = "sinew-api-key";
const TINTS = 6;

const byId = (id) => document.getElementById(id);

/** Headers for the node: with the API key that a visitor from another machine has given. */
export function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

/** An element with a class and children (strings become text). */
export function element(tag, className = "", ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Makes `parent` show one child for each item, keeping children whose key stays. */
function keyed(parent, items, keyOf, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, at) => {
    const key = String(keyOf(item, at));
    let child = old.get(key);
    old.delete(key);
    if (!child) {
      child = create(item);
      child.dataset.key = key;
    }
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] ?? null);
    update(child, item, at);
  });
  old.forEach((child) => child.remove());
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let value = count;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

const percent = (part, whole) => (whole > 0 ? Math.min(100, (100 * part) / whole) : 0);
/** One decimal where it is needed, so that shares add up. */
const rounded = (value) => String(Math.round(value * 10) / 10);
const plural = (count, one) => `${count} ${one}${count === 1 ? "" : "s"}`;

function roundTrip(us) {
  if (us < 1000) return `${us} µs`;
  return `${(us / 1000).toFixed(us < 10_000 ? 1 : 0)} ms`;
}

/** A figure with its name: the value stands out. */
function setFigures(list, figures) {
  const shown = figures.filter(([value]) => value !== null);
  keyed(list, shown, ([, name]) => name, () => element("span"), (span, [value, name]) => {
    const text = `${value} ${name}`.trim();
    if (span.textContent === text) return;
    span.replaceChildren(element("b", "", String(value)), name ? ` ${name}` : "");
  });
}

function setPill(pill, tone, word) {
  pill.dataset.tone = tone;
  setText(pill.firstElementChild, word);
}

function pill() {
  return element("p", "pill", element("span"));
}

// Machines.

const NODE_STATES = {
  live: ["good", "live"],
  suspect: ["busy", "not answering"],
  lost: ["bad", "lost"],
};

function createMachine() {
  const title = element("div", "", element("h3"), element("p", "sub"));
  const head = element("div", "card-head", title, pill());
  const bar = element("div", "bar", element("i"));
  bar.setAttribute("role", "meter");
  bar.setAttribute("aria-valuemin", "0");
  bar.setAttribute("aria-valuemax", "100");
  return element("article", "card machine", head, bar, element("div", "figures"));
}

function updateMachine(card, node, tint, isHere) {
  const [tone, word] = NODE_STATES[node.state] ?? ["quiet", node.state];
  const name = card.querySelector("h3");
  if (name.dataset.name !== node.name) {
    name.dataset.name = node.name;
    name.replaceChildren(element("i", "swatch"), node.name);
  }
  card.style.setProperty("--tint", tint);
  card.toggleAttribute("data-gone", node.state === "lost");
  setText(card.querySelector(".sub"), isHere ? `this machine, ${node.address}` : node.address);
  setPill(card.querySelector(".pill"), tone, word);
  const part = percent(node.memory_used_bytes, node.memory_bytes);
  const bar = card.querySelector(".bar");
  bar.style.setProperty("--part", `${part}%`);
  bar.setAttribute("aria-valuenow", Math.round(part));
  bar.setAttribute("aria-label", `Memory of ${node.name} in use`);
  const trip = node.state === "lost" ? null : node.round_trip_us ?? null;
  setFigures(card.querySelector(".figures"), [
    [bytes(node.memory_used_bytes), `of ${bytes(node.memory_bytes)}`],
    [node.threads, node.threads === 1 ? "thread" : "threads"],
    [trip === null ? null : roundTrip(trip), "away"],
  ]);
}

// Models.

const MODEL_STATES = {
  loading: ["busy", "loading"],
  ready: ["good", "ready"],
  recovering: ["busy", "recovering"],
  failed: ["bad", "failed"],
};

function createModel() {
  const title = element("div", "", element("h3"), element("p", "sub"));
  const head = element("div", "card-head", title, pill());
  const shares = element("div", "shares");
  shares.setAttribute("aria-hidden", "true");
  const reason = element("p", "reason");
  const ranks = element("ul", "ranks");
  return element("article", "card model", head, reason, shares, ranks, element("div", "figures"));
}

function updateModel(card, model, tintOf) {
  let [tone, word] = MODEL_STATES[model.state.state] ?? ["quiet", model.state.state];
  const sum = (field) => model.ranks.reduce((total, rank) => total + rank[field], 0);
  const [loaded, total] = [sum("loaded_bytes"), sum("total_bytes")];
  if (word === "loading" && total > 0) word = `loading, ${Math.floor(percent(loaded, total))} %`;
  setText(card.querySelector("h3"), model.model);
  const where = `${bytes(total)} on ${plural(model.ranks.length, "machine")}`;
  setText(card.querySelector(".sub"), where);
  setPill(card.querySelector(".pill"), tone, word);
  const reason = card.querySelector(".reason");
  reason.hidden = !model.state.reason;
  setText(reason, model.state.reason ?? "");
  updateRanks(card, model.ranks, tintOf);
  const rate = model.last_decode_tokens_per_sec ?? null;
  setFigures(card.querySelector(".figures"), [
    [rate === null ? null : rate.toFixed(1), "tokens/s"],
    [model.requests_running, "running"],
    [model.context_tokens.toLocaleString("en"), "tokens of context"],
    [model.transport === "auto" ? null : model.transport, "links"],
    [`epoch ${model.epoch}`, ""],
  ]);
}

function updateRanks(card, ranks, tintOf) {
  const shares = ranks.reduce((total, rank) => total + rank.share, 0);
  const rankOf = (rank) => rank.rank;
  keyed(card.querySelector(".shares"), ranks, rankOf, () => element("i"), (bar, rank) => {
    bar.style.setProperty("--share", rank.share);
    bar.style.setProperty("--tint", tintOf(rank.node));
    bar.style.setProperty("--part", `${percent(rank.loaded_bytes, rank.total_bytes)}%`);
  });
  const create = () => {
    const who = element("span", "who", element("i", "swatch"), element("span"));
    return element("li", "", who, element("span", "part"), element("span", "bytes"));
  };
  keyed(card.querySelector(".ranks"), ranks, rankOf, create, (line, rank) => {
    line.style.setProperty("--tint", tintOf(rank.node));
    setText(line.querySelector(".who > span"), rank.node_name);
    setText(line.querySelector(".part"), `${rounded(percent(rank.share, shares))} %`);
    const whole = bytes(rank.total_bytes);
    const isWhole = rank.loaded_bytes >= rank.total_bytes;
    const loaded = isWhole ? whole : `${bytes(rank.loaded_bytes)} of ${whole}`;
    setText(line.querySelector(".bytes"), loaded);
  });
}

// The whole.

function show(status) {
  const order = new Map(status.nodes.map((node, at) => [node.id, at]));
  const tintOf = (id) => `var(--c${(order.get(id) ?? 0) % TINTS})`;
  const live = status.nodes.filter((node) => node.state === "live");
  const total = (field) => live.reduce((sum, node) => sum + node[field], 0);
  const counts = `${plural(live.length, "machine")}, ${plural(status.instances.length, "model")}`;
  const memory = `${bytes(total("memory_used_bytes"))} of ${bytes(total("memory_bytes"))} in use`;
  setText(byId("summary"), `${counts}, ${memory}`);
  keyed(byId("notices"), status.notices ?? [], (text) => text, () => element("p"), setText);
  keyed(byId("machines"), status.nodes, (node) => node.id, createMachine, (card, node) => {
    updateMachine(card, node, tintOf(node.id), node.id === status.node);
  });
  keyed(byId("models"), status.instances, (model) => model.id, createModel, (card, model) => {
    updateModel(card, model, tintOf);
  });
  byId("no-models").hidden = status.instances.length > 0;
  const isReady = (one) => Number(one.state.state === "ready");
  const usable = status.instances.filter((one) => one.state.state !== "failed");
  usable.sort((a, b) => isReady(b) - isReady(a));
  const models = [...new Set(usable.map((one) => one.model))];
  showUse(models[0]);
  document.dispatchEvent(new CustomEvent("models", { detail: models }));
}

function showUse(model) {
  const name = model ?? "MODEL";
  const base = `${location.origin}/v1`;
  const key = sessionStorage.getItem(KEY) ? "YOUR-API-KEY" : "none";
  const curlKey = key === "none" ? "" : `  -H "Authorization: Bearer ${key}" \\\n`;
  setText(byId("use-address"), base);
  const message = `{"role": "user", "content": "Hello"}`;
  setText(byId("use-curl"), `curl ${base}/chat/completions \\\n`
    + `  -H "Content-Type: application/json" \\\n${curlKey}`
    + `  -d '{"model": "${name}",\n       "messages": [${message}]}'`);
  setText(byId("use-python"), `from openai import OpenAI\n\nclient = OpenAI(\n`
    + `    base_url="${base}",\n    api_key="${key}",\n)\n`
    + `answer = client.chat.completions.create(\n    model="${name}",\n`
    + `    messages=[${message}],\n)\nprint(answer.choices[0].message.content)`);
}

/** When the figures on the page were true. */
let shownAt = null;

async function poll() {
  try {
    const options = { headers: headers(), signal: AbortSignal.timeout(TIMEOUT_MS) };
    const response = await fetch("/sinew/v1/status", options);
    const isLocked = response.status === 401;
    byId("key-form").hidden = !isLocked;
    document.querySelector("main").hidden = isLocked;
    if (response.ok) {
      show(await response.json());
      shownAt = new Date().toLocaleTimeString();
      setPill(byId("connection"), "good", "connected");
    } else {
      const word = isLocked ? "key needed" : `error ${response.status}`;
      setPill(byId("connection"), "bad", word);
    }
  } catch {
    const since = shownAt ? `; this was ${shownAt}` : "";
    setPill(byId("connection"), "bad", `this node does not answer${since}`);
  }
  setTimeout(poll, document.hidden ? POLL_HIDDEN_MS : POLL_MS);
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId("key").value.trim());
  byId("key").value = "";
});

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const source = byId(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.textContent);
      setText(button, "Copied");
    } catch {
      // Browsers give the clipboard to https and localhost alone: select it for the visitor.
      getSelection().selectAllChildren(source);
      setText(button, "Selected");
    }
    setTimeout(() => setText(button, "Copy"), 1500);
  });
}

showUse();
poll();
