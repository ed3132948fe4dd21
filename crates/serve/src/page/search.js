// The search on the hub. The hub is asked only when its button or Enter is pressed: its owner
// learns what is searched.

import { button, byId, element, keyed, setText } from "./dom.js";
import { administer } from "./net.js";

/** Hits shown before more are requested. */
const HITS = 20;

let isKnown = null;
let choose = null;

/** `isKnown`: whether the library has a name; `choose`: plans a model. */
export function prepareSearch(given) {
  ({ isKnown, choose } = given);
  byId("hub-search").addEventListener("click", searchHub);
  byId("load-model").addEventListener("input", forgetFound);
  byId("load-model").addEventListener("keydown", (event) => {
    // Enter plans what is named, and searches for anything else.
    if (event.key !== "Enter" || event.isComposing || isNamed()) return;
    event.preventDefault();
    if (sought()) searchHub();
  });
}

export const sought = () => byId("load-model").value.trim();

/** Whether a model is named: one that is listed, a repository, a file or an address. */
function isNamed() {
  const name = sought().toLowerCase();
  return /[/\\]|\.gguf$/.test(name) || isKnown(name);
}

/** Other words: what was found for the last ones goes. */
export function forgetFound() {
  const ask = byId("hub-search");
  ask.hidden = !sought();
  setText(ask, `Search the hub for “${sought()}”`);
  setText(byId("hub-state"), "");
  byId("hub-list").replaceChildren();
}

async function searchHub() {
  const [words, state] = [sought(), byId("hub-state")];
  setText(state, "Asking the hub…");
  let found = [];
  let told = "";
  try {
    found = await (await administer("library/search", { words })).json();
    told = found.length ? "From the hub, the most downloaded first:" : "The hub has none.";
  } catch (error) {
    told = error.message;
  }
  // Other words may have been typed meanwhile.
  if (words !== sought()) return;
  setText(state, told);
  const list = byId("hub-list");
  const showFound = (rows) => keyed(list, rows, (one) => one.name, create, () => {});
  showFound(found.slice(0, HITS));
  if (found.length <= HITS) return;
  list.append(element("li", "row", button(`Show all ${found.length}`, "small", () => {
    showFound(found);
    list.children[HITS].querySelector("button").focus();
  })));
}

function create(one) {
  const about = [`${one.downloads} downloads`, one.changed && `changed ${one.changed}`,
    one.gated && "gated: it needs an account that accepted its terms"].filter(Boolean);
  return element("li", "row",
    element("div", "", element("b", "", one.name), element("p", "hint", about.join(", "))),
    button("Load", "small", () => choose(one.name), `Load ${one.name} of the hub`));
}
