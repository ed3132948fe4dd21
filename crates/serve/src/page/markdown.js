// Converts Markdown to elements. The text comes from a model and may be hostile.
//
// There is no HTML in between: text becomes text nodes, and only the elements created here can
// result. Nothing is fetched: an image is shown as its text and address. A link leads only to http,
// https or mail, shows its target, and sends no referrer.

import { copyButton, element, filled } from "./dom.js";
import { formula } from "./formula.js";
import { highlight } from "./highlight.js";
import { inline as marked } from "./inline.js";

/** Deeper lists and quotes are shown flat: they are unreadable, and a hostile text could nest
 * thousands. */
const DEPTH_MAX = 8;
/** The most cells of a table, which a browser can lay out in a moment; the rest stays text. */
const CELLS_MAX = 5000;

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`\s]*)/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]+[^ \t])/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+(.*)|$)/;
/** A line that may continue a list after a blank line. */
const IN_LIST = /^\s|^(?:[-*+]|\d{1,9}[.)])\s/;
const QUOTE = /^ {0,3}> ?(.*)$/;
/** A line with which a formula of its own begins. */
const FORMULA = /^ {0,3}(?:\$\$|\\\[)/;
const FORMULA_LINES_MAX = 40;
const TABLE_CELL = /^:?-+:?$/;

const FIRST_HEADING = /^ {0,3}(#{1,6})[ \t]+\S/m;
/** The level of the text's first heading. */
let topLevel = 1;

/** Splits a text into the sources of its blocks; new text can change only the last one. */
export function blocks(text) {
  const found = [];
  let held = [];
  let fence = null;
  let hasItem = false;
  const flush = () => {
    if (held.some((line) => line.trim())) found.push(held.join("\n"));
    held = [];
    hasItem = false;
  };
  for (const line of text.split("\n")) {
    const opens = FENCE.exec(line);
    hasItem ||= held.length > 0 && ITEM.test(held.at(-1));
    if (fence) {
      held.push(line);
      const isLike = opens?.[2][0] === fence[0] && opens[2].length >= fence.length;
      if (isLike && !opens[3]) {
        fence = null;
        flush();
      }
    } else if (opens) {
      if (!hasItem || opens[1].length === 0) flush();
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
  topLevel = FIRST_HEADING.exec(text)?.[1].length ?? 1;
  const sources = blocks(text);
  const old = [...place.children];
  sources.forEach((source, at) => {
    if (old[at]?.source === source) return;
    const made = element("div", "md");
    made.source = source;
    for (const node of parse(source.split("\n"), 0)) made.append(node);
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
    // The page itself uses three levels; an answer's first heading has the fourth.
    const level = Math.min(6, Math.max(4, 4 + heading[1].length - topLevel));
    return [filled(`h${level}`, inline(titleOf(line.slice(heading[0].length)))), at + 1];
  }
  const shown = FORMULA.test(line) && displayed(lines, at);
  if (shown) return shown;
  if (RULE.test(line)) return [element("hr"), at + 1];
  if (depth < DEPTH_MAX && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEPTH_MAX && ITEM.test(line)) return list(lines, at, depth);
  if (line.includes("|") && isTableRule(lines[at + 1] ?? "")) return table(lines, at);
  return paragraph(lines, at, depth);
}

/** A heading's text, without the marks that may close it. */
function titleOf(rest) {
  const text = rest.trim();
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  const isClosed = end === 0 || /[ \t]/.test(text[end - 1]);
  return isClosed ? text.slice(0, end).trimEnd() : text;
}

/** A formula of several lines, whose own signs are no marks; null if nothing closes it. */
function displayed(lines, at) {
  const [opens, closes] = lines[at].trimStart().startsWith("$$") ? ["$$", "$$"] : ["\\[", "\\]"];
  const end = Math.min(lines.length, at + FORMULA_LINES_MAX);
  for (let last = at; last < end; last += 1) {
    const line = lines[last].trimEnd();
    if (line.endsWith(closes) && (last > at || line.trim().length > 4)) {
      const whole = lines.slice(at, last + 1).join("\n").trim();
      const source = whole.slice(opens.length, -closes.length);
      const isOne = !source.includes(opens) && !source.includes(closes) && source.length <= 2000;
      return isOne ? [element("p", "", formula(source, true, whole)), last + 1] : null;
    }
  }
  return null;
}

const isTableRule = (line) => line.includes("-") && /^ {0,3}[|:-]/.test(line)
  && cells(line).every((cell) => TABLE_CELL.test(cell));

function code(lines, at, [, indent, marks, language]) {
  const closing = new RegExp(`^ {0,3}\\${marks[0]}{${marks.length},}[ \\t]*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end].trimStart())) end += 1;
  const unindented = (one) => (one.startsWith(indent) ? one.slice(indent.length) : one);
  const text = lines.slice(at + 1, end).map(unindented).join("\n");
  // While code is written, its block is drawn anew with each token: colours come once it is whole.
  const isClosed = end < lines.length;
  const parts = isClosed ? highlight(text, language) : [text];
  const pre = element("pre", "", filled("code", parts));
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
  return [filled("blockquote", parse(inner, depth + 1)), end];
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
    node.append(filled("li", [...box, ...(only ? only.childNodes : []), ...parts]));
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

const inline = (text) => marked(text, formula);

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/)
  .map((cell) => cell.trim().replaceAll("\\|", "|"));

function table(lines, at) {
  const head = cells(lines[at]);
  const aligned = cells(lines[at + 1]).map((rule) => {
    const [left, right] = [rule.startsWith(":"), rule.endsWith(":")];
    return right ? (left ? "center" : "right") : null;
  });
  const cell = (tag, text, align) => {
    const made = filled(tag, inline(text));
    if (align) made.dataset.align = align;
    return made;
  };
  // Cells that are not written are one: a short row makes no thousand elements.
  const row = (tag, texts) => {
    const made = texts.slice(0, head.length).map((text, index) => cell(tag, text, aligned[index]));
    const missing = head.length - made.length;
    if (missing > 0) made.push(cell(tag, "", null));
    if (missing > 1) made.at(-1).colSpan = missing;
    return filled("tr", made);
  };
  const body = element("tbody");
  let end = at + 2;
  let count = head.length;
  for (; end < lines.length && lines[end].includes("|") && count < CELLS_MAX; end += 1) {
    const texts = cells(lines[end]);
    count += texts.length;
    body.append(row("td", texts));
  }
  const made = element("table", "", element("thead", "", row("th", head)), body);
  made.tabIndex = 0;
  return [made, end];
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  const ends = (line) => line.trim() === ""
    || [FENCE, HEADING, RULE, FORMULA].some((one) => one.test(line))
    || (depth < DEPTH_MAX && (QUOTE.test(line) || ITEM.test(line)));
  while (end < lines.length && !ends(lines[end])) end += 1;
  const text = lines.slice(at, end).map((line) => line.trimStart()).join("\n");
  return [filled("p", inline(text)), end];
}
