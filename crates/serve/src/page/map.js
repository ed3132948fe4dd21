// The cluster as a graph: machines as rings of memory, links with their measurements and current
// traffic. A table below it has the same data, for screen readers.

import { byId, element, keyed, setAttributes, setText, shape } from "./dom.js";
import { bandwidth, bytes, time } from "./format.js";
import { KINDS, memoryOf, tints } from "./machines.js";
import { traffic } from "./rates.js";

/** With more links than this, or more than one on a phone, only the table labels them. */
const LABELS_MAX = 7;

let last = null;
new ResizeObserver(() => last && draw(last)).observe(byId("map"));

export function showMap(status) {
  last = status;
  draw(status);
  showTable(status);
}

/** The position of each machine on a canvas of `width` pixels. */
function places(count, width) {
  const narrow = width < 460;
  const radius = count > 12 ? 20 : narrow ? 32 : 40;
  if (count === 1) return { height: 150, radius, at: () => [width / 2, 62] };
  if (count === 2) {
    const inset = narrow ? 62 : Math.max(90, width * 0.2);
    return { height: 160, radius, at: (index) => [index ? width - inset : inset, 66] };
  }
  const height = Math.min(Math.max(width * 0.95, 300), 330 + count * 12);
  const [x, y] = [width / 2 - radius - 44, height / 2 - radius - 34];
  const at = (index) => {
    const angle = (2 * Math.PI * index) / count - Math.PI / 2;
    return [width / 2 + x * Math.cos(angle), height / 2 - 20 + y * Math.sin(angle)];
  };
  return { height, radius, at };
}

/** The links measured from this node, and those between ranks. */
function linksOf(status) {
  const flows = traffic(status);
  const links = new Map();
  const add = (a, b, more) => {
    const key = [a, b].sort().join(" ");
    const known = links.get(key) ?? { key, ends: key.split(" "), now: flows.get(key) ?? 0 };
    links.set(key, { ...known, ...more });
  };
  const gone = new Set(status.nodes.filter((node) => node.state === "lost").map((node) => node.id));
  for (const node of status.nodes) {
    if (node.id !== status.node) add(status.node, node.id, {});
    for (const edge of node.edges ?? []) {
      // The fastest path to each peer comes first.
      const key = [node.id, edge.peer].sort().join(" ");
      if (edge.is_up && !links.get(key)?.link) add(node.id, edge.peer, { link: edge });
    }
  }
  for (const { ranks } of status.instances) {
    for (const rank of ranks) {
      for (const link of rank.stats?.links ?? []) {
        const other = ranks[link.peer];
        if (other && other.node !== rank.node) add(rank.node, other.node, {});
      }
    }
  }
  const known = new Set(status.nodes.map((node) => node.id));
  const shown = [...links.values()].filter((one) => one.ends.every((end) => known.has(end)));
  return shown.map((one) => ({ ...one, isGone: one.ends.some((end) => gone.has(end)) }));
}

function linkWords({ link, now, isGone }) {
  if (isGone) return [];
  const words = [];
  if (link) words.push(time(link.round_trip_us));
  if (link?.bytes_per_sec) words.push(bandwidth(link.bytes_per_sec));
  return now > 1000 ? [words.join(" · "), `${bytes(now)}/s now`] : [words.join(" · ")];
}

function layers(svg) {
  if (!svg.firstChild) {
    svg.append(...["links", "labels", "nodes"].map((name) => shape("g", name)));
  }
  return [...svg.children];
}

function draw(status) {
  const svg = byId("map");
  const width = Math.max(280, svg.clientWidth || 600);
  const { height, radius, at } = places(status.nodes.length, width);
  setAttributes(svg, { viewBox: `0 0 ${width} ${height}`, height });
  const spot = new Map(status.nodes.map((node, index) => [node.id, at(index)]));
  const links = linksOf(status);
  const [lines, labels, nodes] = layers(svg);
  keyed(lines, links, (one) => one.key, createLink, (group, one) => updateLink(group, one, spot));
  const labelled = links.length <= (width < 460 ? 1 : LABELS_MAX) ? links : [];
  keyed(labels, labelled, (one) => one.key, createLabel, (group, one) => {
    updateLabel(group, one, spot);
  });
  const tintOf = tints(status);
  keyed(nodes, status.nodes, (node) => node.id, createNode, (group, node) => {
    updateNode(group, node, status, { at: spot.get(node.id), radius, tint: tintOf(node.id) });
  });
  const words = status.nodes.map((node) => `${node.name}, ${node.state}`).join("; ");
  setAttributes(svg, { "aria-label": `Machines: ${words}. Links are in the table below.` });
}

function createLink() {
  const group = shape("g");
  group.append(shape("line", "link"), shape("line", "flow"));
  return group;
}

function updateLink(group, { ends, link, now, isGone }, spot) {
  const [[x1, y1], [x2, y2]] = ends.map((end) => spot.get(end));
  const [line, flow] = group.children;
  const gbit = link ? (link.bytes_per_sec * 8) / 1e9 : 0;
  const width = link ? Math.min(9, 1.5 + Math.log2(1 + gbit)) : 1.5;
  for (const one of [line, flow]) setAttributes(one, { x1, y1, x2, y2 });
  setAttributes(line, { "stroke-width": width.toFixed(1) });
  line.toggleAttribute("data-far", Boolean(isGone));
  setAttributes(flow, { "stroke-width": 3, visibility: now > 1000 ? "visible" : "hidden" });
}

function createLabel() {
  const group = shape("g");
  group.append(shape("rect", "plate", { rx: 6 }), shape("text", "small"), shape("text", "small"));
  return group;
}

function updateLabel(group, one, spot) {
  const [[x1, y1], [x2, y2]] = one.ends.map((end) => spot.get(end));
  const [x, y] = [(x1 + x2) / 2, (y1 + y2) / 2 + (x1 === x2 ? 14 : 0)];
  const words = linkWords(one).filter(Boolean);
  const [plate, ...texts] = group.children;
  const width = 14 + 6.4 * Math.max(0, ...words.map((word) => word.length));
  const height = 17 * words.length + 4;
  setAttributes(group, { visibility: words.length > 0 ? "visible" : "hidden" });
  setAttributes(plate, { x: x - width / 2, y: y - height / 2, width, height });
  texts.forEach((text, at) => {
    setText(text, words[at] ?? "");
    setAttributes(text, { x, y: y - height / 2 + 15 + 17 * at });
  });
}

function createNode() {
  const group = shape("g");
  group.append(shape("circle", "core"), shape("circle", "track"));
  for (const kind of KINDS) {
    const arc = shape("circle", "arc");
    arc.dataset.kind = kind;
    group.append(arc);
  }
  group.append(shape("text", "name"), shape("text", "small mood"), shape("text", "small"));
  return group;
}

function updateNode(group, node, status, { at: [x, y], radius, tint }) {
  group.dataset.state = node.state;
  group.style.setProperty("--tint", tint);
  const [core, track, ...rest] = group.children;
  const thick = radius > 30 ? 11 : 7;
  setAttributes(core, { cx: x, cy: y, r: radius + 6 });
  setAttributes(track, { cx: x, cy: y, r: radius, "stroke-width": thick });
  const memory = memoryOf(node, status);
  const round = 2 * Math.PI * radius;
  let before = 0;
  for (const arc of rest.slice(0, KINDS.length)) {
    const part = node.memory_bytes > 0 ? memory[arc.dataset.kind] / node.memory_bytes : 0;
    const length = Math.min(part, 1) * round;
    setAttributes(arc, {
      cx: x, cy: y, r: radius, "stroke-width": thick,
      "stroke-dasharray": `${length.toFixed(1)} ${(round - length).toFixed(1)}`,
      transform: `rotate(${(360 * before - 90).toFixed(1)} ${x} ${y})`,
    });
    before += part;
  }
  const [name, mood, inside] = rest.slice(KINDS.length);
  setText(name, node.name.length > 18 ? `${node.name.slice(0, 17)}…` : node.name);
  setAttributes(name, { x, y: y + radius + 25 });
  const away = { suspect: "not answering", lost: "lost" }[node.state];
  setText(mood, away ?? (node.id === status.node ? "this node" : ""));
  setAttributes(mood, { x, y: y + radius + 41 });
  setText(inside, radius > 30 && node.memory_bytes > 0 ? bytes(node.memory_bytes) : "");
  setAttributes(inside, { x, y: y + 4 });
}

function showTable(status) {
  const names = new Map(status.nodes.map((node) => [node.id, node.name]));
  const links = linksOf(status);
  byId("links-details").hidden = links.length === 0;
  const create = () => element("tr", "", ...Array.from({ length: 5 }, () => element("td")));
  keyed(byId("links").tBodies[0], links, (one) => one.key, create, (row, one) => {
    const cells = [
      one.ends.map((end) => names.get(end)).join(" – "),
      one.isGone ? "lost" : one.link ? time(one.link.round_trip_us) : "–",
      one.link && !one.isGone ? bandwidth(one.link.bytes_per_sec) : "–",
      one.link ? `${one.link.address}, ${one.link.age_secs} s ago` : "–",
      one.now > 1000 ? `${bytes(one.now)}/s` : "idle",
    ];
    cells.forEach((text, at) => setText(row.cells[at], text));
  });
}
