// One message of a conversation: its text, thoughts, statistics, versions and buttons.

import { button, copyButton, element, setText } from "./dom.js";
import { render } from "./markdown.js";

/**
 * Shows a message: `{ role, text, thoughts, attached, about, failed, writing, cut, at, of }`, which
 * `show` takes anew. `acts` has the actions of its buttons: `edit(text, attached)`, `retry()`,
 * `goOn()` and `turn(step)`.
 */
export function say(first, acts) {
  let message = first;
  const who = element("h3", "hidden", message.role === "user" ? "You" : "Model");
  const summary = element("summary", "", "Thoughts");
  const thoughts = element("details", "thoughts", summary, element("div"));
  const body = element("div", "body");
  const about = element("p", "about");
  const tools = element("div", "tools");
  const pictures = element("ul", "pictures", ...message.attached.map(attached));
  pictures.hidden = !pictures.firstChild;
  const bubble = element("article", `said ${message.role}`, who, thoughts, pictures, body, about,
    tools);
  const turns = versions(acts);
  tools.append(turns, copyButton(() => message.text, "Copy this message"));
  tools.lastChild.className = "quiet small";
  const goOn = button("Go on", "quiet small", acts.goOn, "Go on with this answer");
  if (message.role === "user") {
    tools.append(button("Edit", "quiet small", () => edit(bubble, message, acts)));
  } else {
    tools.append(button("Retry", "quiet small", acts.retry), goOn);
  }
  const show = (next) => {
    message = next;
    draw(bubble, message);
    goOn.hidden = !message.cut;
    turns.hidden = message.of < 2;
    const [back, count, forth] = turns.children;
    setText(count, `${message.at}/${message.of}`);
    back.disabled = message.at <= 1;
    forth.disabled = message.at >= message.of;
  };
  show(message);
  return { bubble, show };
}

/** "2/3" between arrows. */
function versions(acts) {
  const arrow = (sign, step, name) => button(sign, "quiet small", () => acts.turn(step), name);
  return element("span", "versions", arrow("‹", -1, "Earlier version"), element("span"),
    arrow("›", 1, "Later version"));
}

/** A picture, or a file that can be looked into. */
function attached({ address, name, text }, at) {
  if (!address) {
    const inner = element("pre", "", text);
    inner.tabIndex = 0;
    inner.setAttribute("aria-label", name);
    return element("li", "", element("details", "file", element("summary", "", name), inner));
  }
  const image = element("img");
  image.src = address;
  image.alt = `Picture ${at + 1}`;
  return element("li", "", image);
}

function draw(bubble, message) {
  const [, thoughts, , body, about] = bubble.children;
  thoughts.hidden = !message.thoughts;
  setText(thoughts.lastChild, message.thoughts);
  const isThinking = Boolean(message.thoughts) && !message.text;
  setText(thoughts.firstChild, isThinking && message.writing ? "Thinking…" : "Thoughts");
  if (message.role === "user") setText(body, message.text);
  else render(body, message.text);
  setText(about, message.about);
  bubble.classList.toggle("failed", message.failed);
  bubble.classList.toggle("writing", message.writing);
  // Screen readers read the answer once it is complete, not token by token.
  bubble.setAttribute("aria-busy", String(message.writing));
}

/** Opens the message in a text field; sending it makes another version of it. */
function edit(bubble, message, acts) {
  const [, , shown, body, , tools] = bubble.children;
  let kept = [...message.attached];
  const field = element("textarea");
  field.value = message.text;
  field.setAttribute("aria-label", "Your message");
  const close = () => {
    form.remove();
    body.hidden = tools.hidden = false;
    shown.hidden = message.attached.length === 0;
    tools.lastChild.focus();
  };
  const pictures = element("ul", "pictures", ...kept.map((one, at) => {
    const item = attached(one, at);
    item.append(button("×", "", () => {
      kept = kept.filter((other) => other !== one);
      item.remove();
      field.focus();
    }, `Remove ${one.name ?? `picture ${at + 1}`}`));
    return item;
  }));
  const send = element("button", "primary small", "Ask again");
  const buttons = element("div", "row", button("Cancel", "small", close), send);
  const form = element("form", "", pictures, field, buttons);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = field.value.trim();
    if (text || kept.length > 0) acts.edit(text, kept, close);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    }
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  body.hidden = tools.hidden = shown.hidden = true;
  bubble.append(form);
  field.focus();
}
