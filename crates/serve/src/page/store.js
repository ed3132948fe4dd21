// Conversations, which the node keeps: the same ones on every device of their owner.

import { get, owned, ownHeaders, refusal, send } from "./net.js";
import { toast } from "./dom.js";

/** Where browsers kept conversations before nodes did. */
const OLD_PLACE = "sinew-talks";
const POLL_MS = 1000;
const POLL_HIDDEN_MS = 10_000;

/** `{ id, title, tags, model, changed_ms, version, messages }`, newest first. */
let chats = [];
let running = new Set();
let damaged = [];
let revision = "";
/** Why there is no list, in the node's words. */
let trouble = null;
let shown = "cluster";

export const all = () => chats;
export const find = (id) => chats.find((one) => one.id === id);
export const isRunning = (id) => running.has(id);
export const whyNone = () => trouble;
export const damage = () => damaged;

/** Reads the list; `talks` is dispatched if it is another one. */
export async function refresh() {
  const response = await get(`sinew/v1/chats?known=${revision}`, ownHeaders());
  if (!response.ok) {
    const error = await refusal(response);
    const isNew = trouble !== error.message;
    trouble = error.message;
    if (isNew) changed();
    return;
  }
  const list = await response.json();
  const wasTrouble = trouble !== null;
  trouble = null;
  if (list.revision === revision && !list.chats && !wasTrouble) return;
  revision = list.revision;
  if (list.chats) {
    ({ chats, damaged } = list);
    running = new Set(list.running);
  }
  changed();
}

/** Reads the list of another node, whose conversations are others. */
export function beginAnew() {
  [chats, damaged, running, revision, trouble] = [[], [], new Set(), "", null];
  changed();
  refresh().catch(() => {});
}

const changed = () => document.dispatchEvent(new CustomEvent("talks"));

/** The ids of the conversations with all of these words. */
export async function search(words) {
  const response = await get(`sinew/v1/chats?search=${encodeURIComponent(words)}`, ownHeaders());
  if (!response.ok) throw await refusal(response);
  return new Set((await response.json()).chats.map((one) => one.id));
}

/** `{ id, conversation, running }`. */
export async function read(id) {
  const response = await get(`sinew/v1/chats/one?id=${encodeURIComponent(id)}`, ownHeaders());
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/** Has the node act: `ask`, `stop`, `change`, `forget` or `import`. */
export async function act(name, body) {
  const done = await (await send(`sinew/v1/chats/${name}`, body)).json();
  refresh().catch(() => {});
  return done;
}

/** The events of an answer in progress. */
export const following = (id, signal) => owned(
  `sinew/v1/chats/answer?id=${encodeURIComponent(id)}`, signal);

/** All conversations, as a file. */
export async function exported() {
  const response = await owned("sinew/v1/chats/export");
  return response.blob();
}

/** Keeps the conversations of a file; resolves to how many are new. */
export async function imported(text) {
  const read = JSON.parse(text);
  const found = Array.isArray(read?.messages) ? [{ conversation: read }] : read?.conversations;
  if (!Array.isArray(found)) throw new Error("That file has no conversations of Sinew.");
  let count = 0;
  for (const one of found.filter(Boolean)) {
    const { id, conversation } = one;
    count += Number((await act("import", { id, conversation })).imported);
  }
  return count;
}

/** A message of an old browser as the node keeps it. */
function taken(message) {
  const { role, content, pictures = [], model, thoughts, about, failed } = message;
  const parts = pictures.map((url) => ({ type: "image_url", image_url: { url } }));
  const text = content ?? "";
  const isCut = role === "assistant" && (failed || about === "stopped");
  return {
    role,
    content: parts.length > 0 ? [...parts, { type: "text", text }] : text,
    ...(model ? { model } : {}),
    ...(thoughts ? { reasoning_content: thoughts } : {}),
    ...(isCut ? { ended: about || "the answer was cut" } : {}),
    ...(about && !isCut ? { about } : {}),
  };
}

/** Moves the conversations of this browser to the node, once. They stay here until it has all. */
async function takeOver() {
  const text = localStorage.getItem(OLD_PLACE);
  if (text === null) return;
  let old;
  try {
    old = JSON.parse(text).filter((one) => Array.isArray(one?.messages) && one.messages.length > 0);
  } catch {
    // It is damaged, or another program's.
    return;
  }
  for (const { id, name, at, model, messages } of old) {
    const conversation = {
      name: name ?? "", changed_ms: at ?? 0, model: model ?? "", messages: messages.map(taken),
    };
    await act("import", { id: String(id), conversation });
  }
  localStorage.removeItem(OLD_PLACE);
  if (old.length > 0) toast(`${old.length} conversations of this browser are on the node now.`);
}

async function poll() {
  try {
    if (shown === "chat" || revision === "") await refresh();
  } catch {
    // The status poll says that the node does not answer.
  } finally {
    setTimeout(poll, document.hidden ? POLL_HIDDEN_MS : POLL_MS);
  }
}

document.addEventListener("view", ({ detail: view }) => {
  shown = view;
  if (view === "chat") refresh().catch(() => {});
});

export async function prepare() {
  try {
    await takeOver();
  } catch (error) {
    if (error instanceof TypeError) return;
    toast(`This browser's conversations stay in it: ${error.message}`);
  } finally {
    await poll();
  }
}
