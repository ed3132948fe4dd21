// Machines that request to join, and machines nearby that do not. A person reads the number on the
// other machine and types it here.

import { button, byId, element, keyed, setText, toast } from "./dom.js";
import { duration, plural } from "./format.js";
import { administer, isAdmin } from "./net.js";

const DIGITS = 6;
/** Maximum number of nearby machines shown; any host on the network can announce more. */
const NEARBY_MAX = 4;

export function showJoining(status) {
  const asking = status.requests ?? [];
  const place = byId("joining");
  place.hidden = asking.length === 0;
  keyed(place, asking, (one) => one.id, create, update);
  showNearby(status.nearby ?? [], asking);
}

function create(request) {
  const card = element("section", "card asking", element("h2"), element("p", "hint"));
  const typed = () => element("p", "hint", "To let it in, type on this machine: ",
    element("code", "", "sinew accept NUMBER"));
  card.append(isAdmin() ? form(request) : typed());
  return card;
}

function update(card, request) {
  setText(card.querySelector("h2"), `${request.name} asks to join`);
  setText(card.querySelector(".hint"), `From ${request.address}. It shows a number of six digits; `
    + `it asks for ${duration(request.expires_in_secs)} more.`);
}

function form(request) {
  const field = element("input");
  field.id = `number-${request.id}`;
  field.inputMode = "numeric";
  field.autocomplete = "off";
  field.required = true;
  field.placeholder = "000000";
  const label = element("label", "", "The number that it shows");
  label.htmlFor = field.id;
  const accept = element("button", "primary", "Let it in");
  accept.setAttribute("aria-label", `Let ${request.name} in`);
  const refuse = button("Refuse", "", () => administer("pair/refuse", { node: request.id }),
    `Refuse ${request.name}`);
  const made = element("form", "asked", label, element("div", "row wrap", field, accept, refuse));
  made.addEventListener("submit", async (event) => {
    event.preventDefault();
    const number = field.value.replaceAll(/\D/g, "");
    if (number.length !== DIGITS) return toast("The number has six digits.");
    accept.disabled = true;
    try {
      const paired = await (await administer("pair/accept", { number, node: request.id })).json();
      toast(`${paired.name} is in: the cluster has ${plural(paired.members, "machine")} now.`);
    } catch (error) {
      toast(error.message);
      field.select();
    }
    accept.disabled = false;
  });
  return made;
}

function showNearby(nearby, asking) {
  const known = new Set(asking.map((one) => one.id));
  const names = nearby.filter((one) => !known.has(one.id)).map((one) => one.name);
  const place = byId("nearby");
  place.hidden = names.length === 0;
  const more = names.length - NEARBY_MAX;
  const told = names.slice(0, NEARBY_MAX).join(", ") + (more > 0 ? ` and ${more} more` : "");
  setText(place, `Nearby and no member: ${told}.`);
}
