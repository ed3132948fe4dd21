// The question before a destructive act, in a dialog of the page's own: the browser keeps the focus
// in it, and Escape and "Cancel" say no.

import { byId, setText } from "./dom.js";

const dialog = byId("confirm");

for (const answer of dialog.querySelectorAll("button")) {
  answer.addEventListener("click", () => dialog.close(answer.value));
}

/**
 * Asks `question`, with `detail` below it, and resolves to whether the person agreed. `deed` is the
 * name of the button that agrees.
 */
export function confirmed(question, detail, deed) {
  setText(byId("confirm-question"), question);
  setText(byId("confirm-detail"), detail);
  setText(byId("confirm-deed"), deed);
  // Escape leaves the value as it is.
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
