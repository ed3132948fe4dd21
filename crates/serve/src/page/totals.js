// The totals at the top, and a curve of the last minute's tokens.

import { byId, element, keyed, setAttributes, setText, shape } from "./dom.js";
import { bytes, rate } from "./format.js";
import { history } from "./rates.js";

export const isLive = (node) => node.state === "live";

export function showTotals(status) {
  const live = status.nodes.filter(isLive);
  const sum = (items, field) => items.reduce((total, item) => total + item[field], 0);
  const ready = status.instances.filter((one) => one.state.state === "ready").length;
  const [all, of] = [status.instances.length, (whole) => `of ${whole}`];
  const away = status.nodes.length - live.length;
  const figures = [
    ["tokens a second", rate(history.at(-1)?.rate ?? 0), ""],
    ["machines", String(live.length), away > 0 ? `of ${status.nodes.length}` : ""],
    ["models ready", String(ready), ready < all ? `of ${all}` : ""],
    ["memory in use", bytes(sum(live, "memory_used_bytes")), of(bytes(sum(live, "memory_bytes")))],
    ["requests", String(sum(status.instances, "requests_running")), ""],
  ];
  const value = () => element("dd", "", element("span"), element("small"));
  const create = () => element("div", "", element("dt"), value());
  keyed(byId("totals"), figures, ([name]) => name, create, (box, [name, text, more]) => {
    setText(box.querySelector("dt"), name);
    setText(box.querySelector("dd span"), text);
    setText(box.querySelector("small"), more);
  });
}

const WIDTH = 60;
const HEIGHT = 20;

export function showPulse() {
  const svg = byId("pulse");
  setAttributes(svg, { viewBox: `0 0 ${WIDTH} ${HEIGHT}` });
  if (!svg.firstChild) svg.append(shape("path", "area"), shape("path", "line"));
  const most = Math.max(1, ...history.map((one) => one.rate));
  const now = history.at(-1)?.now ?? 0;
  const points = history.map(({ now: at, rate: value }) => {
    const x = WIDTH - (now - at) / 1000;
    return `${x.toFixed(2)} ${(HEIGHT - 1 - (value / most) * (HEIGHT - 2)).toFixed(2)}`;
  });
  if (points.length < 2) return;
  const line = `M${points.join("L")}`;
  const first = points[0].split(" ")[0];
  setAttributes(svg.firstChild, { d: `${line}L${WIDTH} ${HEIGHT}L${first} ${HEIGHT}Z` });
  setAttributes(svg.lastChild, { d: line });
}
