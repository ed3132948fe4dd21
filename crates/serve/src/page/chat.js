// A chat over the same API that other programs use.

import { byId, element, keyed, setText, toast } from "./dom.js";
import { rate } from "./format.js";
import { administer, events, headers, isAdmin, refusal } from "./net.js";
import * as pictures from "./pictures.js";
import { say } from "./said.js";
import * as store from "./store.js";

const [form, prompt, log] = [byId("ask"), byId("prompt"), byId("log")];
const [select, send, stop] = [byId("chat-model"), byId("send"), byId("stop")];
const BROKEN = "the connection broke before the answer was complete";
const OPTIONS = "sinew-chat-options";
/** With fewer conversations than these, a search is no help. */
const SEARCHED = 6;

let talk = store.all()[0] ?? store.begin();
/** Aborts the answer in progress. */
let running = null;
/** Context length in tokens, by model name. */
let contexts = new Map();

// Choosing the model.

document.addEventListener("models", ({ detail: models }) => {
  contexts = new Map(models.map((one) => [one.model, one.context_tokens]));
  const names = [...contexts.keys()];
  const shown = [...select.options].map((option) => option.value);
  if (names.length === 0) {
    if (!select.disabled) select.replaceChildren(new Option("no model", ""));
  } else if (select.disabled || names.join("\n") !== shown.join("\n")) {
    const chosen = select.value || talk.model;
    select.replaceChildren(...names.map((name) => new Option(name, name)));
    if (names.includes(chosen)) select.value = chosen;
  }
  select.disabled = names.length === 0;
  setRunning(running);
});

document.addEventListener("choose", ({ detail: model }) => {
  if (contexts.has(model)) select.value = model;
  prompt.focus();
});

function setRunning(controller) {
  running = controller;
  stop.hidden = controller === null;
  send.hidden = controller !== null;
  send.disabled = select.disabled;
}

// Choosing the conversation.

function showTalks() {
  const title = byId("chat-title");
  if (document.activeElement !== title) title.value = talk.title;
  const search = byId("talks-search");
  search.hidden = store.all().length < SEARCHED && !search.value;
  const found = store.search(search.value);
  const listed = store.all().includes(talk) || search.value ? found : [talk, ...found];
  keyed(byId("talks"), listed, (one) => one.id, createTalk, (item, one) => {
    const open = item.firstChild;
    setText(open, one.title || "New conversation");
    item.toggleAttribute("data-here", one.id === talk.id);
    if (one.id === talk.id) open.setAttribute("aria-current", "true");
    else open.removeAttribute("aria-current");
    item.lastChild.setAttribute("aria-label", `Forget: ${open.textContent}`);
  });
}

function createTalk({ id }) {
  const open = element("button", "open");
  const forget = element("button", "forget", "×");
  open.type = forget.type = "button";
  open.addEventListener("click", () => openTalk(store.find(id) ?? talk));
  forget.addEventListener("click", () => {
    const forgotten = store.find(id);
    store.forget(id);
    if (forgotten) {
      toast(`“${forgotten.title}” is forgotten.`, {
        name: "Undo",
        act: () => {
          store.restore(forgotten);
          openTalk(forgotten);
        },
      });
    }
    if (talk.id === id) openTalk(store.all()[0] ?? store.begin());
    else showTalks();
  });
  return element("li", "", open, forget);
}

function openTalk(one) {
  running?.abort();
  talk = one;
  if (contexts.has(talk.model)) select.value = talk.model;
  showTalks();
  showLog();
  prompt.focus();
}

function showLog() {
  log.replaceChildren();
  talk.messages.forEach(show);
  if (talk.messages.length === 0) {
    log.append(element("p", "empty", "Ask anything. What you say goes to your own machines and "
      + "nowhere else."));
  }
  log.scrollTop = log.scrollHeight;
}

/** Adds a message's bubble. */
function show(message) {
  log.querySelector(".empty")?.remove();
  const here = talk;
  const shown = say(message, {
    edit: (text) => askFrom(here, here.messages.indexOf(message), text),
    retry: () => {
      const at = here.messages.indexOf(message) - 1;
      askFrom(here, at, here.messages[at]?.content ?? "");
    },
  });
  log.append(shown.bubble);
  return shown;
}

// Sending a message.

/** Drops the messages from `at` on and sends `text` in their place, with the first one's pictures.
 */
function askFrom(here, at, text) {
  if (running || at < 0 || here !== talk) return;
  const [first] = here.messages.splice(at);
  showLog();
  ask(text, first?.pictures);
}

/** A message's content for the node. */
function content({ content: text, pictures: shown }) {
  if (!shown) return text;
  const parts = shown.map((url) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

/** What the options set of a request besides its messages. */
function settings() {
  const set = {};
  const number = (id) => Number.parseFloat(byId(id).value);
  if (Number.isFinite(number("chat-temperature"))) set.temperature = number("chat-temperature");
  if (Number.isFinite(number("chat-top-p"))) set.top_p = number("chat-top-p");
  if (number("chat-seed") >= 0) set.seed = Math.floor(number("chat-seed"));
  if (number("chat-tokens") >= 1) set.max_tokens = Math.floor(number("chat-tokens"));
  return set;
}

const systemPrompt = () => byId("chat-system").value.trim();

/** Makes a preset of the options, on all nodes. */
async function keepPreset() {
  const name = byId("chat-preset").value.trim();
  const system = systemPrompt();
  const preset = { name, model: select.value, ...settings(), ...(system ? { system } : {}) };
  try {
    await administer("presets", preset);
    byId("chat-preset").value = "";
    toast(`${name} is listed among the models, on every node.`);
  } catch (error) {
    toast(error.message);
  }
}

function request(messages) {
  const system = systemPrompt();
  const said = messages.filter((one) => one.content || one.pictures)
    .map((one) => ({ role: one.role, content: content(one) }));
  return {
    model: select.value,
    messages: system ? [{ role: "system", content: system }, ...said] : said,
    stream: true,
    stream_options: { include_usage: true },
    ...settings(),
  };
}

async function ask(text, sent) {
  // The user may open another conversation meanwhile; this answer still belongs to this one.
  const here = talk;
  here.model = select.value;
  const question = { role: "user", content: text, ...(sent ? { pictures: sent } : {}) };
  const answer = { role: "assistant", content: "", model: here.model, writing: true };
  here.messages.push(question);
  show(question);
  store.keep(here);
  showTalks();
  const body = request(here.messages);
  here.messages.push(answer);
  const shown = show(answer);
  log.scrollTop = log.scrollHeight;
  const controller = new AbortController();
  setRunning(controller);
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: headers({ "Content-Type": "application/json" }),
      body: JSON.stringify(body),
      signal: controller.signal,
    });
    if (!response.ok) throw await refusal(response);
    await read(response, answer, shown);
  } catch (error) {
    const wasStopped = controller.signal.aborted;
    answer.failed = !wasStopped;
    // Each browser has its own text for a broken connection, always as a TypeError.
    answer.about = wasStopped ? "stopped" : error instanceof TypeError ? BROKEN : error.message;
  }
  answer.writing = false;
  scrolled(() => shown.show());
  delete answer.writing;
  store.keep(here);
  showTalks();
  if (running === controller) setRunning(null);
}

/** Reads one answer. Throws on failure. */
async function read(response, answer, shown) {
  const draw = drawer(shown);
  let [timings, usage, reason] = [null, null, null];
  for await (const { data, comment } of events(response.body)) {
    if (comment && comment !== "keep-alive") answer.about = comment;
    if (data === "[DONE]") {
      answer.about = [answer.model, account(timings, usage, reason)].join(" · ");
      return;
    }
    if (data) {
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      const delta = chunk.choices?.[0]?.delta;
      const thought = delta?.reasoning_content;
      if (thought) answer.thoughts = (answer.thoughts ?? "") + thought;
      if (delta?.content) answer.content += delta.content;
      if (delta?.content || thought) answer.about = "";
      reason = chunk.choices?.[0]?.finish_reason ?? reason;
      timings = chunk.timings ?? timings;
      usage = chunk.usage ?? usage;
    }
    draw();
  }
  throw new Error(BROKEN);
}

/** Draws at most once per frame: a fast model writes more tokens than a screen has frames. */
function drawer(shown) {
  let isDue = false;
  return () => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      scrolled(() => shown.show());
    });
  };
}

/** Keeps the end visible if it was visible before. */
function scrolled(change) {
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 48;
  change();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

/** The statistics of an answer in one line. */
function account(timings, usage, reason) {
  const tokens = usage?.completion_tokens ?? timings?.predicted_n;
  const parts = [];
  if (tokens !== undefined) parts.push(`${tokens} token${tokens === 1 ? "" : "s"}`);
  const perSecond = timings?.predicted_per_second;
  if (perSecond > 0) parts.push(`${rate(perSecond)} tokens/s`);
  const { draft_n: tried, draft_n_accepted: right } = timings ?? {};
  if (tried > 0) parts.push(`${right} of ${tried} guesses right`);
  if (timings) parts.push(`first after ${(timings.prompt_ms / 1000).toFixed(2)} s`);
  if (usage) parts.push(`${usage.prompt_tokens} tokens of prompt`);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (cached > 0) parts.push(`${cached} of them remembered`);
  const text = parts.join(" · ");
  return reason === "length" ? `${text} · ${ended(usage)}` : text;
}

/** Why an answer was cut. */
function ended(usage) {
  const context = contexts.get(select.value);
  const isFull = usage && context && usage.total_tokens >= context;
  return isFull
    ? `cut off: the context of ${context} tokens is full. Begin a new conversation`
    : "cut off at the most tokens that were asked for";
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = prompt.value.trim();
  if (running || !(text || pictures.any())) return;
  if (select.disabled) return void toast("No model is served that could answer.");
  prompt.value = "";
  prompt.focus();
  ask(text, pictures.take());
});

prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
});

stop.addEventListener("click", () => {
  running?.abort();
  prompt.focus();
});

byId("talks-search").addEventListener("input", showTalks);
byId("chat-title").addEventListener("change", () => {
  store.rename(talk, byId("chat-title").value.trim());
  showTalks();
});
byId("chat-export").addEventListener("click", () => {
  const file = new Blob([store.markdown(talk)], { type: "text/markdown" });
  const link = element("a");
  link.href = URL.createObjectURL(file);
  link.download = `${(talk.title || "conversation").replace(/[^\p{L}\p{N}]+/gu, "-")}.md`;
  link.click();
  URL.revokeObjectURL(link.href);
});
byId("new-talk").addEventListener("click", () => openTalk(store.begin()));
document.addEventListener("talks", showTalks);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (byId("chat-options").open) {
    byId("chat-options").open = false;
    byId("chat-options").firstElementChild.focus();
  } else if (running && !byId("chat").hidden) {
    running.abort();
  }
});

byId("preset").hidden = !isAdmin();
byId("chat-preset-keep").addEventListener("click", keepPreset);

// Options are kept between visits.
const fields = ["chat-system", "chat-temperature", "chat-top-p", "chat-seed", "chat-tokens"]
  .map(byId);
try {
  const kept = JSON.parse(localStorage.getItem(OPTIONS) ?? "{}");
  for (const field of fields) field.value = kept[field.id] ?? "";
} catch {
  // The stored value is damaged or storage is not allowed: the fields stay empty.
}
for (const field of fields) {
  field.addEventListener("change", () => {
    try {
      const kept = Object.fromEntries(fields.map((one) => [one.id, one.value]));
      localStorage.setItem(OPTIONS, JSON.stringify(kept));
    } catch {
      // As for conversations.
    }
  });
}

showTalks();
showLog();
