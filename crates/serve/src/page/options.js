// What is set for the open conversation: its system prompt, sampling, title and tags. They belong
// to it, and are marked beside the model's name.

import { byId, setText, toast } from "./dom.js";
import { administer, isAdmin } from "./net.js";

/** The fields of requests, by the ids of their inputs. */
const NUMBERS = {
  "chat-temperature": "temperature",
  "chat-top-p": "top_p",
  "chat-seed": "seed",
  "chat-tokens": "max_tokens",
};
const WHOLE = ["seed", "max_tokens"];
const fields = ["chat-system", "chat-title", "chat-tags", ...Object.keys(NUMBERS)].map(byId);

// What all conversations of a browser once had in common.
localStorage.removeItem("sinew-chat-options");

/** The settings of the fields. */
export function settings() {
  const set = {};
  for (const [id, name] of Object.entries(NUMBERS)) {
    const value = Number.parseFloat(byId(id).value);
    if (Number.isFinite(value)) set[name] = WHOLE.includes(name) ? Math.floor(value) : value;
  }
  return set;
}

/** All that the fields say of a conversation, as the node takes it. */
export function wanted() {
  const tags = byId("chat-tags").value.split(/[\s,]+/).map((tag) => tag.replace(/^#/, ""));
  return {
    system: byId("chat-system").value.trim(),
    settings: settings(),
    name: byId("chat-title").value.trim(),
    tags: tags.filter(Boolean),
  };
}

/** Shows what is set; a field that is being filled is left alone. */
export function showOptions(conversation, title) {
  const { system = "", settings: set = {}, tags = [] } = conversation;
  const values = { "chat-system": system, "chat-title": title, "chat-tags": tags.join(" ") };
  for (const [id, name] of Object.entries(NUMBERS)) values[id] = set[name] ?? "";
  for (const field of fields) {
    if (field !== document.activeElement) field.value = values[field.id];
  }
  const numbers = Object.entries(set).map(([name, value]) => `${name.replace("_", " ")} ${value}`);
  const marks = [system ? "system prompt" : "", ...numbers].filter(Boolean);
  setText(byId("chat-marks"), marks.join(" · "));
}

/** Has `act` keep what a person has changed. */
export function prepareOptions(act) {
  for (const field of fields) field.addEventListener("change", act);
  byId("preset").hidden = !isAdmin();
  byId("chat-preset-keep").addEventListener("click", keepPreset);
}

/** Makes a preset of the options, on all nodes. */
async function keepPreset() {
  const name = byId("chat-preset").value.trim();
  const { system, settings: set } = wanted();
  const preset = { name, model: byId("chat-model").value, ...set, ...(system ? { system } : {}) };
  try {
    await administer("presets", preset);
    byId("chat-preset").value = "";
    toast(`${name} is listed among the models, on every node.`);
  } catch (error) {
    toast(error.message);
  }
}
