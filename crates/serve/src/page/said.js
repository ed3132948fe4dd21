// One message of a conversation: its text, thoughts, statistics and buttons.

import { button, copyButton, element, setText } from "./dom.js";
import { render } from "./markdown.js";

/** Shows a message; `acts` has the actions of its buttons: `edit(text)`, `retry()`. */
export function say(message, acts) {
  const who = element("h3", "hidden", message.role === "user" ? "You" : "Model");
  const summary = element("summary", "", "Thoughts");
  const thoughts = element("details", "thoughts", summary, element("div"));
  const body = element("div", "body");
  const about = element("p", "about");
  const tools = element("div", "tools");
  const pictures = element("ul", "pictures", ...(message.pictures ?? []).map(picture));
  pictures.hidden = !pictures.firstChild;
  const bubble = element("article", `said ${message.role}`, who, thoughts, pictures, body, about,
    tools);
  tools.append(copyButton(() => message.content, "Copy this message"));
  tools.lastChild.className = "quiet small";
  if (message.role === "user") {
    tools.append(button("Edit", "quiet small", () => edit(bubble, message, acts)));
  } else {
    tools.append(button("Retry", "quiet small", acts.retry, "Answer this again"));
  }
  const shown = { bubble, show: () => show(bubble, message) };
  shown.show();
  return shown;
}

function picture(address, at) {
  const image = element("img");
  image.src = address;
  image.alt = `Picture ${at + 1}`;
  return element("li", "", image);
}

function show(bubble, message) {
  const [, thoughts, , body, about] = bubble.children;
  thoughts.hidden = !message.thoughts;
  setText(thoughts.lastChild, message.thoughts ?? "");
  const isThinking = Boolean(message.thoughts) && !message.content;
  setText(thoughts.firstChild, isThinking && message.writing ? "Thinking…" : "Thoughts");
  if (message.role === "user") setText(body, message.content);
  else render(body, message.content);
  setText(about, message.about ?? "");
  bubble.classList.toggle("failed", Boolean(message.failed));
  bubble.classList.toggle("writing", Boolean(message.writing));
  // Screen readers read the answer once it is complete, not token by token.
  bubble.setAttribute("aria-busy", String(Boolean(message.writing)));
}

/** Opens the message in a text field; sending it replaces the messages after it. */
function edit(bubble, message, acts) {
  const [, , , body, , tools] = bubble.children;
  const field = element("textarea");
  field.value = message.content;
  field.setAttribute("aria-label", "Your message");
  const close = () => {
    form.remove();
    body.hidden = tools.hidden = false;
    tools.lastChild.focus();
  };
  const send = element("button", "primary small", "Ask again");
  const buttons = element("div", "row", button("Cancel", "small", close), send);
  const form = element("form", "", field, buttons);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = field.value.trim();
    if (text || message.pictures) acts.edit(text);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  body.hidden = tools.hidden = true;
  bubble.append(form);
  field.focus();
}
