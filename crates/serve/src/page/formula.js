// Formulas: LaTeX becomes MathML, which browsers draw themselves. What Temml does not know stays as
// it is written. Its file is read when the first formula comes.

import { element } from "./dom.js";

const OPTIONS = {
  throwOnError: true,
  // No links, pictures, classes or styles of the model's.
  trust: false,
  // A macro that grows is no formula.
  maxExpand: 200,
  maxSize: [20, 20],
};

let loading = null;

function load() {
  loading ??= new Promise((resolve, reject) => {
    const script = element("script");
    script.src = new URL("temml.min.js", import.meta.url);
    script.addEventListener("load", resolve);
    script.addEventListener("error", reject);
    document.head.append(script);
  });
  return loading;
}

/** An element with a formula; `whole` is its source with its signs. */
export function formula(source, isBlock, whole) {
  const place = element("span", isBlock ? "math block" : "math", whole);
  if (globalThis.temml) draw(place, source, isBlock);
  // Without the file it stays as it is written.
  else load().then(() => draw(place, source, isBlock), () => {});
  return place;
}

function draw(place, source, isBlock) {
  const made = element("span");
  try {
    globalThis.temml.render(source, made, { ...OPTIONS, displayMode: isBlock });
  } catch {
    return;
  }
  place.replaceChildren(...made.childNodes);
  place.title = source;
  if (isBlock) place.tabIndex = 0;
}
