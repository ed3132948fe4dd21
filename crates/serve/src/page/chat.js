// A chat whose conversations and answers belong to the node: this page shows them and asks. What is
// being written goes on without it, and is found again by any other page.

import * as attachments from "./attachments.js";
import { button, byId, element, keyed, setText, toast } from "./dom.js";
import { account, isFull } from "./figures.js";
import { events, get, send as post } from "./net.js";
import { prepareOptions, showOptions, wanted } from "./options.js";
import { say } from "./said.js";
import * as store from "./store.js";
import { download, prepareTalks, setOpen } from "./talks.js";
import * as tree from "./tree.js";

const [form, prompt, log] = [byId("ask"), byId("prompt"), byId("log")];
const [select, send, stop] = [byId("chat-model"), byId("send"), byId("stop")];
/** Other writers may change a conversation between two looks at it. */
const TRIES = 3;
const EMPTY = { version: 0, messages: [], system: "", settings: {}, tags: [], name: "" };
/** The conversation that is open, for this tab and the next start. */
const OPEN = "sinew-open-talk";

/** `{ id, conversation, running }`; the id is null until the first question is kept. */
let talk = begun();
/** What has come of the answer in progress. */
let writing = null;
/** Ends the reading of an answer in progress, which itself goes on. */
let reading = null;
let isAsking = false;
/** Whether a person has chosen or begun a conversation: the last one is not opened over it. */
let isChosen = false;
/** Context length in tokens, by model name. */
let contexts = new Map();
/** Models that see pictures, and those that write no text: encoders and rerankers. */
let [seeing, silent] = [new Set(), new Set()];

function begun() {
  return { id: null, conversation: structuredClone(EMPTY), running: null };
}

// Choosing the model.

document.addEventListener("models", ({ detail: models }) => {
  const isOther = models.map((one) => one.model).join("\n") !== [...contexts.keys()].join("\n");
  contexts = new Map(models.map((one) => [one.model, one.context_tokens]));
  showChoices();
  if (isOther) findUses().catch(() => {});
  showState();
});

function showChoices() {
  const names = [...contexts.keys()].filter((name) => !silent.has(name));
  const shown = [...select.options].map((option) => option.value);
  if (names.length === 0) {
    if (!select.disabled) select.replaceChildren(new Option("no model", ""));
  } else if (select.disabled || names.join("\n") !== shown.join("\n")) {
    const chosen = select.value || talk.conversation.model;
    select.replaceChildren(...names.map((name) => new Option(name, name)));
    if (names.includes(chosen)) select.value = chosen;
  }
  select.disabled = names.length === 0;
}

/** The tokens of a text for the chosen model. */
attachments.setCounter(async (text) => {
  const messages = [{ role: "user", content: text }];
  const body = { model: select.value, messages };
  const counted = await (await post("v1/chat/completions/input_tokens", body)).json();
  return counted.input_tokens;
});

async function findUses() {
  const response = await get("v1/models");
  if (!response.ok) return;
  const { data } = await response.json();
  const sees = (one) => one.architecture?.input_modalities?.includes("image");
  const writes = (one) => one.architecture?.output_modalities?.includes("text") ?? true;
  seeing = new Set(data.filter(sees).map((one) => one.id));
  silent = new Set(data.filter((one) => !writes(one)).map((one) => one.id));
  showChoices();
  showState();
}

select.addEventListener("change", () => {
  showState();
  change({ model: select.value });
});

document.addEventListener("choose", ({ detail: model }) => {
  if (contexts.has(model) && !silent.has(model)) select.value = model;
  showState();
  prompt.focus();
});

function showState() {
  const isBusy = isAsking || talk.running !== null;
  stop.hidden = talk.running === null;
  send.hidden = talk.running !== null;
  send.disabled = select.disabled || isAsking;
  attachments.setReader(seeing.has(select.value) ? null : select.value);
  log.toggleAttribute("data-busy", isBusy);
  setText(byId("chat-why"), select.disabled ? "No model is served. " : "");
  byId("chat-load").hidden = !select.disabled;
}

// Showing the conversation.

/** Opens a conversation as the node has it. */
async function open(id) {
  isChosen = true;
  try {
    show(await store.read(id));
  } catch (error) {
    toast(error.message);
    if (error.code === "no_conversation") begin();
    return;
  }
  prompt.focus();
}

function begin() {
  isChosen = true;
  show(begun());
  prompt.focus();
}

/** Shows a conversation as it is now. What was read earlier, and came later, is old. */
function show(next) {
  const isOther = next.id !== talk.id;
  if (!isOther && next.conversation.version < talk.conversation.version) return;
  if (isOther || !next.running) {
    reading?.abort();
    reading = null;
    writing = null;
  }
  talk = next;
  if (talk.id) sessionStorage.setItem(OPEN, talk.id);
  else sessionStorage.removeItem(OPEN);
  if (isOther && contexts.has(talk.conversation.model)) select.value = talk.conversation.model;
  if (isOther) showProblem();
  setOpen(talk.id);
  scrolled(showLog);
  showOptions(talk.conversation, store.find(talk.id)?.title ?? talk.conversation.name);
  showState();
  if (isOther) log.scrollTop = log.scrollHeight;
  if (talk.running && !reading) follow();
}

/** The messages of the branch that is shown, with the answer in progress. */
function shownMessages() {
  const { conversation, running } = talk;
  const numbers = tree.path(conversation);
  const dropped = numbers.indexOf(conversation.start ?? 0);
  const shown = numbers.map((number, at) => ({
    ...conversation.messages[number - 1], number, isDropped: at < dropped,
  }));
  if (!running || (numbers.at(-1) ?? 0) !== (running.extends || running.after)) return shown;
  if (running.extends) shown.pop();
  const { text = "", thoughts = "", about = "" } = writing ?? {};
  const number = running.extends || `after-${running.after}`;
  return [...shown, { role: "assistant", content: text, reasoning_content: thoughts, about, number,
    isWriting: true }];
}

function showLog() {
  const messages = shownMessages();
  log.querySelector(":scope > .empty")?.remove();
  keyed(log, messages, (one) => `${talk.id}/${one.number}`, create, (bubble, one) => {
    bubble.show(described(one));
  });
  if (messages.length === 0) {
    log.append(element("p", "empty", "Ask anything. What you say goes to your own machines and "
      + "nowhere else."));
  }
}

function aboutOf(one) {
  const words = [account(one, contexts), one.isDropped ? "not sent to the model any more" : ""];
  return words.filter(Boolean).join(" · ");
}

/** A message as `said` shows it. */
function described(one) {
  const { number, isWriting = false, ended, content } = one;
  const all = isWriting ? [number] : tree.versions(talk.conversation, number);
  const isLast = number === tree.head(talk.conversation);
  return {
    role: one.role,
    text: tree.textOf(content),
    attached: tree.attachedTo(content),
    thoughts: one.reasoning_content ?? "",
    about: isWriting ? one.about : aboutOf(one),
    failed: Boolean(ended) && ended !== "stopped",
    writing: isWriting,
    cut: one.role === "assistant" && isLast && Boolean(ended || one.finish_reason === "length"),
    dropped: one.isDropped,
    at: all.indexOf(number) + 1,
    of: all.length,
  };
}

function create(one) {
  const { number } = one;
  const shown = say(described(one), {
    edit: async (text, kept, close) => {
      const content = tree.contentOf(text, kept.map(({ part }) => part));
      if (await ask({ content, after: tree.after(talk.conversation, number) })) close();
    },
    retry: () => ask({ after: tree.after(talk.conversation, number) }),
    goOn: () => ask({ go_on: number }),
    turn: (step) => {
      const all = tree.versions(talk.conversation, number);
      return change({ show: all[all.indexOf(number) + step] });
    },
  });
  shown.bubble.show = (message) => {
    shown.show(message);
    shown.bubble.classList.toggle("dropped", message.dropped);
  };
  return shown.bubble;
}

/** Keeps the end visible if it was visible before. */
function scrolled(change) {
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 48;
  change();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

/** Draws at most once per frame: a fast model writes more tokens than a screen has frames. */
let isDue = false;
function drawSoon() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    scrolled(showLog);
  });
}

// Reading an answer in progress.

async function follow() {
  const { id } = talk;
  const controller = new AbortController();
  reading = controller;
  writing = { text: "", thoughts: "", about: "" };
  const mine = () => reading === controller;
  try {
    const response = await store.following(id, controller.signal);
    for await (const { data } of events(response.body)) {
      if (!mine()) return;
      if (!data) continue;
      const event = JSON.parse(data);
      writing.text += event.text;
      writing.thoughts += event.thoughts;
      writing.about = [event.waiting, event.unsaved].filter(Boolean).join(" · ");
      if (event.over) break;
      drawSoon();
    }
    if (mine()) show(await store.read(id));
    await store.refresh();
  } catch {
    // The node is away; the list shows when it is back, and whether the answer goes on.
  }
  if (mine()) reading = null;
}

/** Another page, or the node by itself, has changed something. */
document.addEventListener("talks", async () => {
  const { id } = talk;
  if (id === null || isAsking || store.whyNone()) return;
  const known = store.find(id);
  if (!known) {
    toast("This conversation was forgotten on another page.");
    return void begin();
  }
  const hasChanged = known.version !== talk.conversation.version;
  const isElsewhere = store.isRunning(id) && !reading;
  if (!hasChanged && !isElsewhere && (talk.running !== null) === store.isRunning(id)) return;
  try {
    const next = await store.read(id);
    if (talk.id === id && !isAsking) show(next);
  } catch {
    // It is tried again with the next change.
  }
});

// Asking.

/** Asks the node; whether it has taken the question. */
async function ask(question) {
  if (isAsking) return false;
  if (talk.running) return void toast("An answer is being written: wait for it, or stop it.");
  if (select.disabled) return void toast("No model is served that could answer.");
  isAsking = isChosen = true;
  showProblem();
  showState();
  const { id } = talk;
  const set = id ? {} : wanted();
  try {
    const asked = await retried(() => store.act("ask", {
      ...set, ...question, ...(id ? { id } : {}), model: select.value,
    }));
    if (talk.id === id) {
      show(await store.read(asked.id));
      if (question.after === undefined) log.scrollTop = log.scrollHeight;
    }
    return true;
  } catch (error) {
    showProblem(error, () => ask(question));
    return false;
  } finally {
    isAsking = false;
    showState();
  }
}

async function retried(act) {
  for (let tried = 1; ; tried += 1) {
    try {
      return await act();
    } catch (error) {
      if (error.code !== "conversation_changed" || tried >= TRIES) throw error;
    }
  }
}

/** Shows why a question was not taken, and for a full context what can be done. */
function showProblem(error = null, again = null) {
  const place = byId("ask-problem");
  place.hidden = error === null;
  if (!error) return;
  const message = error instanceof TypeError
    ? "This node does not answer. Your question stays here: send it again in a moment."
    : error.message;
  place.replaceChildren(element("span", "", message));
  if (error.code !== "context_length_exceeded" || talk.id === null) return;
  place.append(button("Forget the oldest half and ask again", "small", async () => {
    if (await dropOldest() && await again?.()) {
      if (prompt.value.trim()) prompt.value = "";
      attachments.take();
    }
  }));
}

/** Leaves the older half of the turns out of what models get; whether there were any. */
async function dropOldest() {
  const { id, conversation: { start = 0 } } = talk;
  const done = await store.act("change", { id, drop_oldest: true });
  if (talk.id === id) show({ ...done, running: talk.running });
  const count = done.dropped_turns;
  if (count === 0) {
    toast("Nothing older is left to forget: begin a new conversation, or edit the question.");
    return false;
  }
  toast(`${count} turns are not sent to the model any more; they stay here.`, {
    name: "Undo",
    act: async () => {
      const undone = await store.act("change", { id, start });
      if (talk.id === id) show({ ...undone, running: talk.running });
    },
  });
  return true;
}

/** Changes something of the open conversation. */
async function change(what) {
  if (talk.id === null) return;
  const { id } = talk;
  try {
    const done = await store.act("change", { id, ...what });
    if (talk.id === id) show({ ...done, running: talk.running });
  } catch (error) {
    toast(error.message);
  }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = prompt.value.trim();
  if (isAsking || talk.running || !(text || attachments.any())) return;
  prompt.focus();
  const content = tree.contentOf(text, attachments.parts());
  if (await ask({ content })) {
    if (prompt.value.trim() === text) prompt.value = "";
    attachments.take();
  }
});

prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
});

async function stopAnswer() {
  prompt.focus();
  try {
    await store.act("stop", { id: talk.id });
  } catch (error) {
    toast(error.message);
  }
}

stop.addEventListener("click", stopAnswer);

byId("chat-export").addEventListener("click", () => {
  const title = store.find(talk.id)?.title ?? "";
  const name = `${(title || "conversation").replace(/[^\p{L}\p{N}]+/gu, "-")}.md`;
  download(tree.markdown(talk.conversation, title), "text/markdown", name);
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || byId("chat").hidden) return;
  if (byId("chat-options").open) {
    byId("chat-options").open = false;
    byId("chat-options").firstElementChild.focus();
  } else if (talk.running) {
    stopAnswer();
  }
});

prepareOptions(() => {
  const set = wanted();
  // The title that is shown may be the first question's.
  if (set.name === store.find(talk.id)?.title) set.name = talk.conversation.name ?? "";
  if (talk.id) return void change(set);
  Object.assign(talk.conversation, set);
  showOptions(talk.conversation, set.name);
});
prepareTalks({ open, begin });
showLog();
showState();

/** The page shows its other views meanwhile. */
async function start() {
  await store.prepare();
  const last = sessionStorage.getItem(OPEN) ?? store.all()[0]?.id;
  if (!last || isChosen) return;
  try {
    const read = await store.read(last);
    if (!isChosen) show(read);
  } catch {
    // It is gone; the list has the others.
  }
}

document.addEventListener("view", ({ detail: view }) => {
  if (view === "chat") log.scrollTop = log.scrollHeight;
});
start();
