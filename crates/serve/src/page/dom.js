// Helpers for a page that updates in place, so that focus, selection and screen readers are not
// disturbed. Everything from a node or a model is set as text, never as markup.

export const byId = (id) => document.getElementById(id);

/** An element with a class and children (strings become text). */
export function element(tag, className = "", ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** An element with all of a list's children: a call takes no 100,000 arguments. */
export function filled(tag, children) {
  const made = document.createElement(tag);
  for (const child of children) made.append(child);
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element. */
export function shape(tag, className = "", attributes = {}) {
  const made = document.createElementNS(SVG, tag);
  if (className) made.setAttribute("class", className);
  setAttributes(made, attributes);
  return made;
}

export function setAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Makes `parent` show one child per item; children with the same key are kept. */
export function keyed(parent, items, keyOf, create, update) {
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

/** Figures with their names; the values are emphasised. */
export function setFigures(list, figures) {
  const shown = figures.filter(([value]) => value !== null);
  keyed(list, shown, ([, name]) => name, () => element("span"), (span, [value, name]) => {
    const text = `${value} ${name}`.trim();
    if (span.textContent === text) return;
    span.replaceChildren(element("b", "", String(value)), name ? ` ${name}` : "");
  });
}

export function pill() {
  return element("p", "pill", element("span"));
}

export function setPill(pill, tone, word) {
  pill.dataset.tone = tone;
  setText(pill.firstElementChild, word);
}

/** A button that runs `act`, is disabled meanwhile, and has the focus again if it had it. */
export function button(text, className, act, label = "") {
  const made = element("button", className, text);
  made.type = "button";
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", async () => {
    const hadFocus = document.activeElement === made;
    made.disabled = true;
    try {
      await act(made);
    } catch (error) {
      toast(error.message);
    }
    made.disabled = false;
    // It may have gone elsewhere meanwhile; a closed dialog's button has it for a moment.
    const now = document.activeElement;
    if (hadFocus && (now === document.body || !now.checkVisibility())) made.focus();
  });
  return made;
}

/** A button that copies the result of `text`. */
export function copyButton(text, label) {
  return button("Copy", "small", async (made) => {
    try {
      // Browsers have this for https and localhost alone.
      if (navigator.clipboard) await navigator.clipboard.writeText(text());
      else copySelected(text());
      setText(made, "Copied");
    } catch {
      toast("The browser keeps its clipboard from this page: select the text and copy it.");
    }
    made.focus();
    setTimeout(() => setText(made, "Copy"), 1500);
  }, label);
}

/** Copies as a person does: by selecting. */
function copySelected(text) {
  const field = element("textarea", "hidden");
  field.value = text;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  if (!isCopied) throw new Error("the browser refused");
}

let toasted = 0;

/** Shows a message for a few seconds, with an action if there is one. */
export function toast(text, action = null) {
  const place = byId("toast");
  place.hidden = false;
  place.replaceChildren(text);
  if (action) place.append(" ", button(action.name, "small", action.act));
  clearTimeout(toasted);
  toasted = setTimeout(() => { place.hidden = true; }, 6000);
}
