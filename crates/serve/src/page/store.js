// Conversations are kept only in this browser; no node stores them.

const PLACE = "sinew-talks";
/** A browser stores about five megabytes per page; the oldest conversations are dropped. */
const BYTES_MAX = 2_000_000;
const TALKS_MAX = 100;

/** `{ id, title, name?, at, model, system, messages }`, newest first; a message is
 * `{ role, content, model?, pictures?, thoughts?, about?, failed? }`. Pictures are data addresses.
 */
let talks = read();

function read() {
  try {
    const found = JSON.parse(localStorage.getItem(PLACE) ?? "[]");
    return Array.isArray(found) ? found.filter((one) => Array.isArray(one?.messages)) : [];
  } catch {
    // Data of another version or damaged data: the page must open regardless.
    return [];
  }
}

export const all = () => talks;
export const find = (id) => talks.find((talk) => talk.id === id);

export function begin() {
  const id = crypto.randomUUID?.() ?? String(Date.now());
  return { id, title: "", at: Date.now(), messages: [] };
}

/** Stores a conversation as the newest. */
export function keep(talk) {
  talk.at = Date.now();
  talk.title = talk.name || title(talk);
  talks = [talk, ...talks.filter((one) => one.id !== talk.id)].slice(0, TALKS_MAX);
  write();
}

export function forget(id) {
  talks = talks.filter((one) => one.id !== id);
  write();
}

/** Puts a forgotten conversation back in its place. */
export function restore(talk) {
  talks = [...talks, talk].sort((a, b) => b.at - a.at);
  write();
}

/** Gives a conversation a title of the user's; without one it has its first question's again. */
export function rename(talk, name) {
  talk.name = name;
  talk.title = name || title(talk);
  write();
}

/** The conversations with all of these words. */
export function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const said = ({ title: name, messages }) => (
    [name, ...messages.map((one) => one.content)].join("\n").toLowerCase());
  return words.length === 0 ? talks : talks.filter((talk) => {
    const all = said(talk);
    return words.every((word) => all.includes(word));
  });
}

/** A conversation as Markdown. */
export function markdown({ title: name, messages }) {
  const parts = messages.map((one) => {
    const who = one.role === "user" ? "You" : one.model ?? "Model";
    const pictures = one.pictures ? `\n\n(${one.pictures.length} pictures)` : "";
    return `## ${who}\n\n${one.content}${pictures}`;
  });
  return `${[`# ${name || "Conversation"}`, ...parts].join("\n\n")}\n`;
}

function title({ messages }) {
  const first = messages.find((message) => message.role === "user");
  const line = first?.content.trim().split("\n")[0] || (first?.pictures ? "Picture" : "");
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

/** Drops the pictures of the oldest conversation that has any, or else the oldest conversation;
 * never of the newest. */
function dropSome() {
  const has = (talk) => talk.messages.some((message) => message.pictures);
  const oldest = talks.slice(1).findLast(has);
  if (!oldest) return void talks.pop();
  for (const message of oldest.messages) delete message.pictures;
}

function write() {
  let text = JSON.stringify(talks);
  while (text.length > BYTES_MAX && talks.length > 1) {
    dropSome();
    text = JSON.stringify(talks);
  }
  try {
    localStorage.setItem(PLACE, text);
  } catch {
    // A private window or full storage: the conversation lasts as long as the page.
  }
}

// Changes by another tab of this page.
window.addEventListener("storage", (event) => {
  if (event.key !== PLACE) return;
  talks = read();
  document.dispatchEvent(new CustomEvent("talks"));
});
