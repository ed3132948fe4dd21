// Requests to the node, and their keys.
//
// There are two secrets: the API key, which visitors on other machines need, and the admin token,
// which `sinew page` puts behind the `#` of the address that it prints. Browsers never send that
// part of an address. The page removes it from view at once and keeps it only for this tab. A key
// may be remembered on the device: a browser that is paired by a number has one of its own. If
// another member keeps its conversations, it has a key of that node too.

const KEY = "sinew-api-key";
const ADMIN = "sinew-admin-token";
const KEPT_ON = "sinew-kept-on";
const TIMEOUT_MS = 8000;

function takeToken() {
  const given = /^#admin=([0-9A-Za-z_-]{16,})$/.exec(location.hash);
  if (!given) return false;
  sessionStorage.setItem(ADMIN, given[1]);
  history.replaceState(null, "", location.pathname);
  return true;
}

takeToken();
// The address may be pasted into a tab that shows the page already.
window.addEventListener("hashchange", () => {
  if (takeToken()) location.reload();
});

/** The number behind `#pair=`, which a QR code has; taken out of sight. */
export function takeNumber() {
  const given = /^#pair=([0-9]{6})$/.exec(location.hash);
  if (given) history.replaceState(null, "", location.pathname);
  return given?.[1] ?? null;
}

export const isAdmin = () => sessionStorage.getItem(ADMIN) !== null;
export const apiKey = () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY);

/** Keeps the key for this tab, or on this device. */
export function setApiKey(key, isRemembered) {
  sessionStorage.removeItem(KEY);
  localStorage.removeItem(KEY);
  (isRemembered ? localStorage : sessionStorage).setItem(KEY, key);
}

/** The other node that keeps the conversations, `{ node, name, key }`; null: this one. */
export function keptOn() {
  try {
    return JSON.parse(localStorage.getItem(KEPT_ON));
  } catch {
    return null;
  }
}

export function keepHere() {
  localStorage.removeItem(KEPT_ON);
}

/** Pairs this browser by six digits: with this node, or with the member that shows them. */
export async function pair(number) {
  const name = navigator.userAgentData?.platform ?? navigator.platform ?? "";
  const response = await fetch("sinew/v1/browsers/pair", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ number, name }),
  });
  if (!response.ok) throw await refusal(response);
  const paired = await response.json();
  if (paired.key) setApiKey(paired.key, true);
  if (paired.kept_on) localStorage.setItem(KEPT_ON, JSON.stringify(paired.kept_on));
  else keepHere();
}

/** Whether this is the node's own machine, where a browser may keep the owner's rights. */
export const isHere = /^(localhost|127\.|\[::1\])/.test(location.hostname);

/** Gives this browser a key of the owner's, with which it has the owner's rights again. */
export async function remember() {
  const home = localStorage.getItem(KEPT_ON);
  const shown = await administer("browsers/number");
  await pair((await shown.json()).number);
  if (home) localStorage.setItem(KEPT_ON, home);
}

/** Has the owner's rights again, if this browser is remembered; whether it has. */
export async function recall() {
  if (!isHere || isAdmin() || !apiKey()) return false;
  const response = await fetch("sinew/v1/browsers/owner", {
    method: "POST",
    headers: headers({ "Content-Type": "application/json" }),
    body: "{}",
  });
  const { token } = response.ok ? await response.json() : {};
  if (token) sessionStorage.setItem(ADMIN, token);
  return Boolean(token);
}

/** Headers for the node, with the API key that the visitor entered. */
export function headers(more = {}) {
  const key = apiKey();
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

/**
 * Headers for what is its user's own: the owner's with the token, else those of the key. They name
 * the node that keeps it, if that is another one.
 */
export function ownHeaders(more = {}) {
  const token = sessionStorage.getItem(ADMIN);
  const home = keptOn();
  const there = home ? { "X-Sinew-Node": home.node, "X-Sinew-Node-Key": home.key } : {};
  const sent = { ...more, ...there };
  return token ? { ...sent, Authorization: `Bearer ${token}` } : headers(sent);
}

/**
 * The owner's second tab and bookmark have the owner's rights while a first tab is open: it gives
 * them the token, which no store of the browser keeps.
 */
const tabs = new BroadcastChannel("sinew-tabs");
tabs.addEventListener("message", ({ data }) => {
  const token = sessionStorage.getItem(ADMIN);
  if (data.asks && token) tabs.postMessage({ token });
  if (data.token && !token) {
    sessionStorage.setItem(ADMIN, data.token);
    location.reload();
  }
});
if (!isAdmin()) tabs.postMessage({ asks: true });

/** A GET request with a short timeout. */
export function get(path, sent = headers()) {
  return fetch(path, { headers: sent, signal: AbortSignal.timeout(TIMEOUT_MS) });
}

/** Reads what is the user's own, for as long as it takes. */
export async function owned(path, signal = undefined) {
  const response = await fetch(path, { headers: ownHeaders(), signal });
  if (!response.ok) throw await refusal(response);
  return response;
}

/** Sends a request about what is the user's own. */
export async function send(path, body) {
  const response = await fetch(path, {
    method: "POST",
    headers: ownHeaders({ "Content-Type": "application/json" }),
    body: JSON.stringify(body),
  });
  if (!response.ok) throw await refusal(response);
  return response;
}

/** The error of a response, in the node's own words if it has any. */
export async function refusal(response) {
  const body = await response.json().catch(() => null);
  const error = body?.error;
  const made = new Error((typeof error === "string" ? error : error?.message)
    ?? `the node answered with status ${response.status}`);
  made.code = error?.code;
  return made;
}

/** Reads what only the owner may see. */
export async function adminGet(path) {
  const token = sessionStorage.getItem(ADMIN) ?? "";
  const response = await fetch(`sinew/v1/${path}`, {
    headers: { Authorization: `Bearer ${token}` },
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  if (!response.ok) throw await refusal(response);
  return response;
}

/** Sends an administrative request, which needs the owner's token. */
export async function administer(path, body = {}, signal = undefined) {
  const response = await fetch(`sinew/v1/${path}`, {
    method: "POST",
    headers: {
      "Content-Type": "application/json",
      Authorization: `Bearer ${sessionStorage.getItem(ADMIN) ?? ""}`,
    },
    body: JSON.stringify(body),
    signal,
  });
  if (response.status === 401) {
    sessionStorage.removeItem(ADMIN);
    throw new Error("This link is no longer good: the node has another token. "
      + "Type sinew page on this machine and open the new one.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** The lines of a body as they arrive. */
export async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (held + value).split("\n");
      held = parts.pop();
      yield* parts;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Server-sent events as they arrive: `{ data }` or `{ comment }`. */
export async function* events(stream) {
  for await (const line of lines(stream)) {
    if (line.startsWith("data: ")) yield { data: line.slice(6) };
    else if (line.startsWith(": ")) yield { comment: line.slice(2) };
  }
}
