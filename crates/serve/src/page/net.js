// What the page asks of its node, and with which key.
//
// Two secrets: the API key, which visitors from other machines need, and the admin token, which
// `sinew page` puts behind the `#` of the address that it prints. That part of an address is never
// sent; it is taken out of sight at once and kept for this tab alone.

const KEY = "sinew-api-key";
const ADMIN = "sinew-admin-token";
const TIMEOUT_MS = 8000;

const given = /^#admin=([0-9A-Za-z_-]{16,})$/.exec(location.hash);
if (given) {
  sessionStorage.setItem(ADMIN, given[1]);
  history.replaceState(null, "", location.pathname);
}

export const isAdmin = () => sessionStorage.getItem(ADMIN) !== null;
export const apiKey = () => sessionStorage.getItem(KEY);
export const setApiKey = (key) => sessionStorage.setItem(KEY, key);

/** Headers for the node: with the API key that a visitor from another machine has given. */
export function headers(more = {}) {
  const key = apiKey();
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

/** A request that must be answered soon. */
export function get(path) {
  return fetch(path, { headers: headers(), signal: AbortSignal.timeout(TIMEOUT_MS) });
}

/** What went wrong, in the node's own words if it had any. */
export async function refusal(response) {
  const body = await response.json().catch(() => null);
  const error = body?.error;
  return new Error((typeof error === "string" ? error : error?.message)
    ?? `the node answered with status ${response.status}`);
}

/** Asks the node to do something that only its owner may. */
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

/** The lines of a body, as they come. */
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

/** Server-sent events, as they come: `{ data }` or `{ comment }`. */
export async function* events(stream) {
  for await (const line of lines(stream)) {
    if (line.startsWith("data: ")) yield { data: line.slice(6) };
    else if (line.startsWith(": ")) yield { comment: line.slice(2) };
  }
}
