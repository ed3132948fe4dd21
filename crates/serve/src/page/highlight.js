// Colours for code: comments, strings, numbers and keywords, by the language of the block. One
// expression finds the next token and always consumes what it has read, so the time grows with the
// length alone. Code of an unknown language stays plain.

import { element } from "./dom.js";

/** A longer block stays plain. */
const CODE_MAX = 30_000;

const SLASHES = "//.*|/\\*[\\s\\S]*?(?:\\*/|$)";
// Inside of a word, # is another sign.
const HASH = "(?<!\\S)#.*";
const DASHES = "--.*";
const DOUBLE = '"(?:[^"\\\\\\n]|\\\\[\\s\\S])*"?';
const SINGLE = "'(?:[^'\\\\\\n]|\\\\[\\s\\S])*'?";
const TICKS = "`(?:[^`\\\\]|\\\\[\\s\\S])*`?";
const TRIPLE = '"""[\\s\\S]*?(?:"""|$)|\'\'\'[\\s\\S]*?(?:\'\'\'|$)';
/** A character; a lifetime has no second quote. */
const LETTER = "'(?:[^'\\\\\\n]|\\\\[^\\n][^'\\n]{0,9})'";
/** The value of an attribute. */
const VALUE = '(?<==)"[^"]*"?';
const NUMBER = "\\d[\\p{L}\\p{N}_]*(?:\\.\\d[\\p{L}\\p{N}_]*)?";
const WORD = "[\\p{L}_$][\\p{L}\\p{N}_$]*";
const TAG = "</?[\\p{L}][\\p{L}\\p{N}:_-]*|/?>";

const FLOW = "break case continue default do else for if return switch while";
const C = `${FLOW} auto bool char const double enum extern false float goto inline int long
  namespace new nullptr private protected public short signed sizeof static struct template this
  true typedef typename union unsigned using virtual void volatile class delete override try catch
  throw constexpr noexcept operator NULL`;
const JAVA = `${FLOW} abstract boolean byte catch char class const double enum extends false final
  finally float implements import instanceof int interface long new null package private protected
  public record short static super this throw throws true try var void volatile async await string
  namespace using override sealed virtual in is object val fun when data open internal`;
const JS = `${FLOW} as async await catch class const declare delete enum export extends false
  finally from function get implements import in instanceof interface let new null of private
  public readonly set static super this throw true try type typeof undefined var void yield`;
const RUST = `as async await break const continue crate dyn else enum extern false fn for if impl
  in let loop match mod move mut pub ref return self Self static struct super trait true type
  unsafe use where while`;
const GO = `${FLOW} chan const defer fallthrough false func go goto import interface map nil
  package range select struct true type var`;
const SWIFT = `${FLOW} as catch class deinit enum extension false fileprivate func guard import in
  init inout internal is let nil open private protocol public repeat self Self static struct super
  throw throws true try var where async await`;
const PYTHON = `and as assert async await break class continue def del elif else except False
  finally for from global if import in is lambda match None nonlocal not or pass raise return True
  try while with yield case`;
const RUBY = `and begin break case class def do else elsif end ensure false for if in module next
  nil not or redo rescue retry return self super then true undef unless until when while yield`;
const SHELL = `case do done elif else esac exit export fi for function if in local return set then
  until while`;
const SQL = `add all alter and as asc begin between by case check column commit constraint create
  cross default delete desc distinct drop else end exists foreign from full group having if in
  index inner insert into is join key left like limit not null offset on or order outer primary
  references right rollback select set table then union unique update values view when where with`;
const LUA = `and break do else elseif end false for function goto if in local nil not or repeat
  return then true until while`;
const CONSTANTS = "true false null yes no on off";

/** Each row: the names of languages, what is a comment, what are strings, the keywords. */
const ROWS = [
  ["c h cpp c++ cc cxx hpp cuda objc", SLASHES, [DOUBLE, SINGLE], C],
  ["java kotlin kt cs csharp c# scala dart", SLASHES, [TRIPLE, DOUBLE, SINGLE], JAVA],
  ["js javascript jsx ts typescript tsx mjs cjs", SLASHES, [DOUBLE, SINGLE, TICKS], JS],
  ["rust rs", SLASHES, [DOUBLE, LETTER], RUST],
  ["go golang", SLASHES, [DOUBLE, LETTER, TICKS], GO],
  ["swift", SLASHES, [TRIPLE, DOUBLE], SWIFT],
  ["json jsonc json5", SLASHES, [DOUBLE], CONSTANTS],
  ["css scss less", "/\\*[\\s\\S]*?(?:\\*/|$)", [DOUBLE, SINGLE], ""],
  ["python py python3", HASH, [TRIPLE, DOUBLE, SINGLE], PYTHON],
  ["ruby rb", HASH, [DOUBLE, SINGLE], RUBY],
  ["sh bash shell zsh console dockerfile make makefile", HASH, [DOUBLE, SINGLE], SHELL],
  ["yaml yml toml ini", HASH, [TRIPLE, DOUBLE, SINGLE], CONSTANTS],
  ["sql postgresql mysql sqlite", `${DASHES}|/\\*[\\s\\S]*?(?:\\*/|$)`, [SINGLE, DOUBLE], SQL],
  ["lua", DASHES, [DOUBLE, SINGLE], LUA],
  ["html xml svg vue", "<!--[\\s\\S]*?(?:-->|$)", [VALUE], null],
];

const LANGUAGES = new Map(ROWS.flatMap(([names, comment, strings, keywords]) => {
  const isMarkup = keywords === null;
  const language = {
    token: new RegExp([`(?<comment>${comment})`, `(?<string>${strings.join("|")})`,
      isMarkup ? `(?<keyword>${TAG})` : `(?<number>${NUMBER})|(?<word>${WORD})`].join("|"), "gu"),
    keywords: new Set((keywords ?? "").split(/\s+/)),
    ignoresCase: keywords === SQL,
  };
  return names.split(" ").map((name) => [name, language]);
}));

/** Parses code into text and coloured elements; `info` begins with the name of its language. */
export function highlight(text, info) {
  const [name] = /^[\w+#]*/.exec(info.toLowerCase());
  const language = LANGUAGES.get(name);
  if (!language || text.length > CODE_MAX) return [text];
  const nodes = [];
  let done = 0;
  for (const match of text.matchAll(language.token)) {
    const kind = kindOf(match.groups, language);
    if (!kind) continue;
    if (match.index > done) nodes.push(text.slice(done, match.index));
    nodes.push(element("span", kind, match[0]));
    done = match.index + match[0].length;
  }
  if (done < text.length) nodes.push(text.slice(done));
  return nodes;
}

function kindOf({ comment, string, number, word, keyword }, { keywords, ignoresCase }) {
  if (comment) return "comment";
  if (string) return "string";
  if (number) return "number";
  const isKeyword = keyword || (word && keywords.has(ignoresCase ? word.toLowerCase() : word));
  return isKeyword ? "keyword" : null;
}
