// Converts Markdown to elements. The text comes from a model and may be hostile.
//
// There is no HTML in between: text becomes text nodes, and only the elements created here can
// result. Nothing is fetched: an image is shown as its text and address. A link leads only to http,
// https or mail, shows its target, and sends no referrer.

import { copyButton, element } from "./dom.js";
import { highlight } from "./highlight.js";

/** Deeper lists and quotes are shown flat: they are unreadable, and a hostile text could nest
 * thousands. */
const DEPTH_MAX = 8;
/** Longer paragraphs are shown without marks, because searching for them takes time. */
const INLINE_MAX = 20_000;

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`\s]*)/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+(.*)|$)/;
/** A line that may continue a list after a blank line. */
const IN_LIST = /^\s|^(?:[-*+]|\d{1,9}[.)])\s/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const TABLE_RULE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

/** Splits a text into the sources of its blocks; new text can change only the last one. */
export function blocks(text) {
  const found = [];
  let held = [];
  let fence = null;
  const flush = () => {
    if (held.some((line) => line.trim())) found.push(held.join("\n"));
    held = [];
  };
  for (const line of text.split("\n")) {
    const opens = FENCE.exec(line);
    if (fence) {
      held.push(line);
      const isLike = opens?.[2][0] === fence[0] && opens[2].length >= fence.length;
      if (isLike && !opens[3]) {
        fence = null;
        flush();
      }
    } else if (opens) {
      const inList = held.some((one) => ITEM.test(one)) && opens[1].length > 0;
      if (!inList) flush();
      fence = opens[2];
      held.push(line);
    } else if (line.trim() === "" && !goesOn(held)) {
      flush();
    } else if (line.trim() !== "" && held.at(-1)?.trim() === "" && !IN_LIST.test(line)) {
      flush();
      held.push(line);
    } else {
      held.push(line);
    }
  }
  flush();
  return found;
}

/** A list may continue after a blank line. */
const goesOn = (held) => held.length > 0 && ITEM.test(held[0]);

/** Shows a text in `place`; blocks that have not changed keep their elements. */
export function render(place, text) {
  const sources = blocks(text);
  const old = [...place.children];
  sources.forEach((source, at) => {
    if (old[at]?.source === source) return;
    const made = element("div", "md");
    made.source = source;
    made.append(...parse(source.split("\n"), 0));
    if (old[at]) old[at].replaceWith(made);
    else place.append(made);
  });
  old.slice(sources.length).forEach((child) => child.remove());
}

/** Parses lines into elements. */
function parse(lines, depth) {
  const made = [];
  let at = 0;
  while (at < lines.length) {
    const [node, next] = block(lines, at, depth);
    if (node) made.push(node);
    at = Math.max(next, at + 1);
  }
  return made;
}

function block(lines, at, depth) {
  const line = lines[at];
  if (line.trim() === "") return [null, at + 1];
  const fence = FENCE.exec(line);
  if (fence) return code(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    // The page itself uses the first two levels.
    const level = Math.min(6, heading[1].length + 2);
    return [element(`h${level}`, "", ...inline(heading[2])), at + 1];
  }
  if (RULE.test(line)) return [element("hr"), at + 1];
  if (depth < DEPTH_MAX && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEPTH_MAX && ITEM.test(line)) return list(lines, at, depth);
  if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "")) return table(lines, at);
  return paragraph(lines, at, depth);
}

function code(lines, at, [, indent, marks, language]) {
  const closing = new RegExp(`^ {0,3}\\${marks[0]}{${marks.length},}[ \\t]*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end].trimStart())) end += 1;
  const unindented = (one) => (one.startsWith(indent) ? one.slice(indent.length) : one);
  const text = lines.slice(at + 1, end).map(unindented).join("\n");
  // While code is written, its block is drawn anew with each token: colours come once it is whole.
  const isClosed = end < lines.length;
  const parts = isClosed ? highlight(text, language) : [text];
  const pre = element("pre", "", element("code", "", ...parts));
  pre.tabIndex = 0;
  const box = element("div", "code", pre, copyButton(() => text, "Copy this code"));
  if (language) box.append(element("span", "lang", language.slice(0, 20)));
  return [box, end + 1];
}

function quote(lines, at, depth) {
  const inner = [];
  let end = at;
  for (; end < lines.length && QUOTE.test(lines[end]); end += 1) {
    inner.push(QUOTE.exec(lines[end])[1]);
  }
  return [element("blockquote", "", ...parse(inner, depth + 1)), end];
}

function list(lines, at, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(mark);
  const node = element(isOrdered ? "ol" : "ul");
  if (isOrdered && Number.parseInt(mark, 10) !== 1) node.start = Number.parseInt(mark, 10);
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || item[1].length < indent.length || /\d/.test(item[2]) !== isOrdered) break;
    const inner = [item[3] ?? ""];
    const width = item[1].length + 2;
    end += 1;
    while (end < lines.length) {
      const line = lines[end];
      const next = ITEM.exec(line);
      if (next && next[1].length < width) break;
      const deep = /^ */.exec(line)[0].length;
      if (line.trim() !== "" && deep === 0 && lines[end - 1].trim() === "") break;
      inner.push(line.slice(Math.min(deep, width)));
      end += 1;
    }
    const task = /^\[([ xX])\]\s+(.*)$/.exec(inner[0]);
    if (task) inner[0] = task[2];
    const parts = parse(inner, depth + 1);
    // An item with a single paragraph is shown as its text.
    const only = parts.length > 0 && parts[0].tagName === "P" ? parts.shift() : null;
    const box = task ? [tick(task[1] !== " ")] : [];
    node.append(element("li", "", ...box, ...(only ? only.childNodes : []), ...parts));
  }
  return [node, end];
}

/** The box of a task, which nobody can click. */
function tick(isDone) {
  const box = element("input");
  box.type = "checkbox";
  box.disabled = true;
  box.checked = isDone;
  box.setAttribute("aria-label", isDone ? "done" : "to do");
  return box;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/)
  .map((cell) => cell.trim().replaceAll("\\|", "|"));

function table(lines, at) {
  const head = cells(lines[at]);
  const aligned = cells(lines[at + 1]).map((rule) => {
    const [left, right] = [rule.startsWith(":"), rule.endsWith(":")];
    return right ? (left ? "center" : "right") : null;
  });
  const cell = (tag, text, align) => {
    const made = element(tag, "", ...inline(text ?? ""));
    if (align) made.dataset.align = align;
    return made;
  };
  const row = (tag, texts) => element("tr", "",
    ...head.map((_, index) => cell(tag, texts[index], aligned[index])));
  const body = element("tbody");
  let end = at + 2;
  for (; end < lines.length && lines[end].includes("|"); end += 1) {
    body.append(row("td", cells(lines[end])));
  }
  const made = element("table", "", element("thead", "", row("th", head)), body);
  made.tabIndex = 0;
  return [made, end];
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  const ends = (line) => line.trim() === ""
    || [FENCE, HEADING, RULE].some((one) => one.test(line))
    || (depth < DEPTH_MAX && (QUOTE.test(line) || ITEM.test(line)));
  while (end < lines.length && !ends(lines[end])) end += 1;
  const text = lines.slice(at, end).map((line) => line.trimStart()).join("\n");
  return [element("p", "", ...inline(text)), end];
}

const ENTITIES = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'" };

// Each mark is found from its start, in one pass.
const MARKS = new RegExp([
  // Formulas are shown as they are written; their signs are no marks.
  "(?<math>\\$\\$[^$]{1,2000}\\$\\$|\\\\\\([\\s\\S]{1,2000}?\\\\\\)|\\\\\\[[\\s\\S]{1,2000}?\\\\\\]"
    + "|\\$(?![\\s\\d])[^$\\n]{1,500}(?<!\\s)\\$(?!\\d))",
  "(?<entity>&(?:amp|lt|gt|quot|#39);)",
  "(?<escape>\\\\[!-/:-@[-`{-~])",
  "(?<ticks>`+)(?<code>[^`]|[^`][\\s\\S]{0,2000}?[^`])\\k<ticks>(?!`)",
  "(?<image>!)?\\[(?<text>[^\\[\\]\\n]{0,1000})\\]"
    + "\\((?<target>[^()\\s]{1,2000})(?:[ \\t]+\"[^\"\\n]{0,200}\")?\\)",
  "(?<bare>https?:\\/\\/[^\\s<>\"'`]{1,2000})",
  "(?<strong>\\*\\*|__)(?=\\S)(?<bold>[^\\n]{1,2000}?\\S?)\\k<strong>",
  "(?<![\\w*])(?<em>[*_])(?=[^\\s*_])(?<slanted>[^*_\\n]{1,2000})(?<!\\s)\\k<em>(?![\\w*])",
  "(?<strike>~~)(?=\\S)(?<struck>[^~\\n]{1,2000})~~",
].join("|"), "g");

/** Parses a line into text nodes and the elements of its marks. */
function inline(text, depth = 0) {
  if (text.length > INLINE_MAX || depth > 4) return [text];
  const nodes = [];
  let done = 0;
  for (const match of text.matchAll(MARKS)) {
    if (match.index > done) nodes.push(text.slice(done, match.index));
    nodes.push(...marked(match.groups, match[0], depth));
    done = match.index + match[0].length;
  }
  if (done < text.length) nodes.push(text.slice(done));
  return nodes;
}

function marked(groups, whole, depth) {
  if (groups.math) return [element("span", "math", whole)];
  if (groups.entity) return [ENTITIES[whole]];
  if (groups.escape) return [whole[1]];
  if (groups.ticks) return [element("code", "", groups.code)];
  if (groups.target !== undefined) {
    const shown = groups.text || groups.target;
    if (groups.image) return [`[image: ${shown}] (${groups.target})`];
    return [link(groups.target, inline(shown, depth + 1), whole)].flat();
  }
  if (groups.bare) {
    const trimmed = /^(.*?)([.,;:!?)\]]*)$/s.exec(groups.bare);
    return [link(trimmed[1], [trimmed[1]], trimmed[1]), trimmed[2]].flat();
  }
  if (groups.strong) return [element("strong", "", ...inline(groups.bold, depth + 1))];
  if (groups.em) return [element("em", "", ...inline(groups.slanted, depth + 1))];
  return [element("s", "", ...inline(groups.struck, depth + 1))];
}

/** A link if its address is harmless, otherwise its source text. */
function link(target, children, source) {
  let address;
  try {
    address = new URL(target);
  } catch {
    return source;
  }
  if (!["http:", "https:", "mailto:"].includes(address.protocol)) return source;
  const made = element("a", "", ...children);
  made.href = address.href;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  made.title = address.href;
  return made;
}
