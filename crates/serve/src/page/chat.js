// A small chat over the same API that programs use. What the model writes is a stranger's words:
// it is shown as text, and nothing in it can become markup, a link or an image.

import { element, headers } from "/assets/status.js";

const byId = (id) => document.getElementById(id);
const [form, prompt, log] = [byId("chat"), byId("prompt"), byId("log")];
const [select, send, stop] = [byId("chat-model"), byId("send"), byId("stop")];

/** What was said, as the API wants it back. */
let messages = [];
/** Ends the answer in progress. */
let running = null;

document.addEventListener("models", ({ detail: models }) => {
  const shown = [...select.options].map((option) => option.value);
  if (models.length === 0) {
    if (!select.disabled) select.replaceChildren(new Option("no model", ""));
  } else if (select.disabled || models.join("\n") !== shown.join("\n")) {
    const chosen = select.value;
    select.replaceChildren(...models.map((model) => new Option(model, model)));
    if (models.includes(chosen)) select.value = chosen;
  }
  select.disabled = models.length === 0;
  setRunning(running);
});

function setRunning(controller) {
  running = controller;
  stop.hidden = controller === null;
  send.hidden = controller !== null;
  send.disabled = select.disabled;
}

/** Adds one bubble; returns its text and the small line below. */
function say(role, text) {
  log.querySelector(".empty")?.remove();
  const body = element("p", "", text);
  const about = element("p", "about");
  const who = element("span", "hidden", role === "user" ? "You: " : "Model: ");
  const bubble = element("div", `said ${role}`, who, body, about);
  log.append(bubble);
  log.scrollTop = log.scrollHeight;
  return { bubble, body, about };
}

/** The data of server-sent events, as they come. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ")) yield part.slice(6);
      else if (part.startsWith(": ")) yield { comment: part.slice(2) };
    }
  }
}

/** Follows one answer into its bubble; returns its text. Throws what went wrong. */
async function follow(response, { body, about }) {
  let text = "";
  for await (const data of events(response.body)) {
    if (data.comment) {
      if (data.comment !== "keep-alive") about.textContent = data.comment;
      continue;
    }
    if (data === "[DONE]") return text;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    const piece = chunk.choices[0]?.delta?.content ?? "";
    if (piece) {
      const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      text += piece;
      body.append(piece);
      about.textContent = "";
      if (atEnd) log.scrollTop = log.scrollHeight;
    }
    if (chunk.timings) about.textContent = summary(chunk.timings);
  }
  throw new Error(BROKEN);
}

const BROKEN = "the connection broke before the answer was complete";

/** Browsers call every broken connection by another name, as a TypeError. */
function explain(error) {
  return error instanceof TypeError ? BROKEN : error.message;
}

function summary(timings) {
  const tokens = `${timings.predicted_n} token${timings.predicted_n === 1 ? "" : "s"}`;
  const first = `first after ${(timings.prompt_ms / 1000).toFixed(2)} s`;
  const rate = timings.predicted_per_second;
  return rate > 0 ? `${tokens}, ${first}, ${rate.toFixed(1)} tokens/s` : `${tokens}, ${first}`;
}

async function ask(text) {
  // Clearing starts another list: what is still to come then belongs to nobody.
  const talk = messages;
  talk.push({ role: "user", content: text });
  say("user", text);
  const answer = say("assistant", "");
  answer.bubble.classList.add("writing");
  // Screen readers speak the answer once it is whole, not token by token.
  answer.bubble.setAttribute("aria-busy", "true");
  const controller = new AbortController();
  setRunning(controller);
  let said = "";
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: headers({ "Content-Type": "application/json" }),
      body: JSON.stringify({ model: select.value, messages: talk, stream: true }),
      signal: controller.signal,
    });
    if (!response.ok) {
      const error = await response.json().catch(() => null);
      throw new Error(error?.error?.message ?? `error ${response.status}`);
    }
    said = await follow(response, answer);
  } catch (error) {
    said = answer.body.textContent;
    const stopped = controller.signal.aborted;
    answer.about.textContent = stopped ? "stopped" : explain(error);
    answer.bubble.classList.toggle("failed", !stopped);
  }
  answer.bubble.classList.remove("writing");
  answer.bubble.setAttribute("aria-busy", "false");
  // An empty turn would confuse the model's template.
  if (said) talk.push({ role: "assistant", content: said });
  else talk.pop();
  if (running === controller) setRunning(null);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = prompt.value.trim();
  if (!text || running || select.disabled) return;
  prompt.value = "";
  prompt.focus();
  ask(text);
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

byId("clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  log.replaceChildren(element("p", "empty", "A new conversation."));
  prompt.focus();
});
