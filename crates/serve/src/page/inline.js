// Marks within a line of Markdown: emphasis, code, links, formulas. Each character is looked at a
// fixed number of times, whatever the text: a search for a closing mark is made once, and its
// result holds for all openings before it.

import { element, filled } from "./dom.js";

const DEPTH_MAX = 4;
/** Longer marks are shown as they are written. */
const MARK_MAX = 2000;
const FORMULA_MAX = 2000;
/** Where a mark may begin. */
const SPECIAL = /[\\`*_~[!$&]|https?:\/\//g;

const ENTITIES = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'" };
const ENTITY = /&(?:amp|lt|gt|quot|#39);/y;
const ESCAPED = /[!-/:-@[-`{-~]/;
const LINK = /!?\[([^[\]\n]{0,1000})\]\(([^()\s]{1,2000})(?:[ \t]+"[^"\n]{0,200}")?\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`]{1,2000}/y;
const DOLLARS = /\$\$([^$]{1,2000})\$\$/y;
const DOLLAR = /\$(?![\s\d])([^$\n]{1,500})(?<!\s)\$(?!\d)/y;
const SLANTED = { "*": /\*(?=[^\s*_])([^*_\n]{1,2000})(?<!\s)\*(?![\w*])/y,
  _: /_(?=[^\s*_])([^*_\n]{1,2000})(?<!\s)_(?![\w*])/y };
const STRUCK = /~~(?=\S)([^~\n]{1,2000})~~/y;
const TRAILING = ".,;:!?)]";

/** Text nodes and elements; a formula is what `formula(source, isBlock)` makes of it. */
export function inline(text, formula, depth = 0) {
  if (depth > DEPTH_MAX) return [text];
  const scan = new Scan(text, formula, depth);
  return scan.nodes();
}

class Scan {
  constructor(text, formula, depth) {
    Object.assign(this, { text, formula, depth });
    /** Where a mark is found next, by mark. */
    this.found = new Map();
    /** Where runs of so many backticks begin, by their number. */
    this.ticks = null;
  }

  nodes() {
    const { text } = this;
    const made = [];
    let done = 0;
    SPECIAL.lastIndex = 0;
    for (let at = this.next(0); at >= 0;) {
      const mark = this.mark(at);
      if (!mark) {
        // A run of backticks that nothing closes is no other run's end.
        at = this.next(at + (text[at] === "`" ? run(text, at) : 1));
        continue;
      }
      if (at > done) made.push(text.slice(done, at));
      made.push(...mark.nodes);
      done = mark.end;
      at = this.next(done);
    }
    if (done < text.length) made.push(text.slice(done));
    return made;
  }

  next(from) {
    // Other scans, of what stands in a mark, move it as well.
    SPECIAL.lastIndex = from;
    return SPECIAL.exec(this.text)?.index ?? -1;
  }

  /** The mark that begins here: its nodes and its end. */
  mark(at) {
    const sign = this.text[at];
    if (sign === "\\") return this.backslash(at);
    if (sign === "`") return this.code(at);
    if (sign === "$") return this.dollars(at);
    if (sign === "&") return this.matched(ENTITY, at, ([whole]) => [ENTITIES[whole]]);
    if (sign === "h") return this.address(at);
    if (sign === "~") return this.matched(STRUCK, at, ([, inner]) => [this.around("s", inner)]);
    if (sign === "*" || sign === "_") return this.strong(at) ?? this.slanted(at);
    return this.matched(LINK, at, ([whole, shown, target]) => {
      if (sign === "!") return [`[image: ${shown || target}] (${target})`];
      const inner = inline(shown || target, this.formula, this.depth + 1);
      return [link(target, inner, whole)];
    });
  }

  matched(pattern, at, make) {
    pattern.lastIndex = at;
    const match = pattern.exec(this.text);
    return match && { nodes: make(match), end: at + match[0].length };
  }

  around(tag, inner) {
    return filled(tag, inline(inner, this.formula, this.depth + 1));
  }

  /** Where a text stands at or after `from`; each place is looked for once. */
  find(what, from) {
    const known = this.found.get(what);
    if (known !== undefined && (known < 0 || known >= from)) return known;
    const place = this.text.indexOf(what, from);
    this.found.set(what, place);
    return place;
  }

  backslash(at) {
    const { text } = this;
    const closing = { "(": "\\)", "[": "\\]" }[text[at + 1]];
    const end = closing ? this.find(closing, at + 2) : -1;
    if (end > at + 2 && end - at <= FORMULA_MAX) {
      const [inner, whole] = [text.slice(at + 2, end), text.slice(at, end + 2)];
      const node = this.formula(inner, text[at + 1] === "[", whole);
      return { nodes: [node], end: end + 2 };
    }
    if (!ESCAPED.test(text[at + 1] ?? "")) return null;
    return { nodes: [text[at + 1]], end: at + 2 };
  }

  dollars(at) {
    const formula = (isBlock) => ([whole, inner]) => [this.formula(inner, isBlock, whole)];
    return this.matched(DOLLARS, at, formula(true)) ?? this.matched(DOLLAR, at, formula(false));
  }

  code(at) {
    const { text } = this;
    const count = run(text, at);
    const places = this.runs().get(count) ?? [];
    while (places.length > 0 && places.at(-1) <= at) places.pop();
    const end = places.at(-1);
    if (end === undefined || end - at > MARK_MAX) return null;
    return { nodes: [element("code", "", text.slice(at + count, end))], end: end + count };
  }

  /** The places of backticks by the length of their run, the first one last. */
  runs() {
    if (this.ticks) return this.ticks;
    this.ticks = new Map();
    for (let at = this.text.indexOf("`"); at >= 0;) {
      const count = run(this.text, at);
      if (!this.ticks.has(count)) this.ticks.set(count, []);
      this.ticks.get(count).push(at);
      at = this.text.indexOf("`", at + count);
    }
    for (const places of this.ticks.values()) places.reverse();
    return this.ticks;
  }

  strong(at) {
    const { text } = this;
    const mark = text.slice(at, at + 2);
    if ((mark !== "**" && mark !== "__") || !/\S/.test(text[at + 2] ?? " ")) return null;
    const end = this.find(mark, at + 3);
    const line = this.find("\n", at);
    if (end < 0 || end - at > MARK_MAX || (line >= 0 && line < end)) return null;
    return { nodes: [this.around("strong", text.slice(at + 2, end))], end: end + 2 };
  }

  slanted(at) {
    if (/[\w*]/.test(this.text[at - 1] ?? " ")) return null;
    const pattern = SLANTED[this.text[at]];
    return this.matched(pattern, at, ([, inner]) => [this.around("em", inner)]);
  }

  address(at) {
    const found = this.matched(ADDRESS, at, ([whole]) => [whole]);
    if (!found) return null;
    let { end } = found;
    while (TRAILING.includes(this.text[end - 1])) end -= 1;
    const whole = this.text.slice(at, end);
    return { nodes: [link(whole, [whole], whole)], end };
  }
}

/** How many backticks stand here. */
function run(text, at) {
  let end = at;
  while (text[end] === "`") end += 1;
  return end - at;
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
  const made = filled("a", children);
  made.href = address.href;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  made.title = address.href;
  return made;
}
