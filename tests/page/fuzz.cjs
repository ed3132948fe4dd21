// Texts that are hostile to a parser: pieces of Markdown, repeated and mixed from a printed seed. Each
// is drawn in a time that grows with its length, and makes no more elements than it has characters.

const assert = require("node:assert/strict");

const PIECES = ["# ", "a", "b ", " ", "\n", "\n\n", "|", "|-", "|-|\n", "-", "- ", "* ", "**", "*", "_", "__", "`", "``",
  "```", "```js\n", "~~", "~~~", "[", "]", "](", "(", ")", "![", ">", "> ", "\\", "\\(", "\\)", "\\[", "\\]", "$", "$$",
  "x^", "{", "}", "\\frac", "\\left(", "&amp;", "&", "<", "https://", "\"", "1. ", "    ", "\t", ":", " #", "word",
  "x".repeat(50), " ".repeat(200)];
const CHARS = 65_536;

module.exports = async (page, rounds = 400) => {
  const seed = Number(process.env.SINEW_SEED ?? Date.now() % 1_000_000);
  console.log(`    seed   ${seed} (SINEW_SEED)`);
  const found = await page.evaluate(async ([pieces, chars, first, times]) => {
    const { render } = await import("/assets/markdown.js");
    let state = first;
    const below = (count) => {
      state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
      return Math.floor((state / 4_294_967_296) * count);
    };
    const some = (count) => Array.from({ length: count }, () => pieces[below(pieces.length)]).join("");
    const filled = (begin, unit) => begin + unit.repeat(Math.ceil(chars / unit.length));
    const texts = [`# a${" ".repeat(chars)}b`, `-${" ".repeat(chars)}x|\n|`,
      `${"|a".repeat(3000)}\n${"|-".repeat(3000)}\n${"a|\n".repeat(3000)}`];
    for (let round = 0; round < times; round += 1) {
      texts.push(filled(some(below(4)), some(1 + below(5))));
      texts.push(some(chars / 32));
    }
    const worst = { ms: 0, text: "" };
    const crowded = [];
    for (const text of texts) {
      const place = document.createElement("div");
      const began = performance.now();
      render(place, text);
      const ms = performance.now() - began;
      if (ms > worst.ms) Object.assign(worst, { ms, text: text.slice(0, 80) });
      if (place.querySelectorAll("*").length > 2 * text.length + 10) crowded.push(text.slice(0, 80));
      // The page's own tasks have their turn.
      await new Promise((resolve) => { setTimeout(resolve); });
    }
    return { worst, crowded };
  }, [PIECES, CHARS, seed, rounds]);
  console.log(`    worst  ${Math.round(found.worst.ms)} ms for ${CHARS} characters of ${JSON.stringify(found.worst.text)}`);
  assert.deepEqual(found.crowded, []);
  // Half a second where others use the processor: what grows with the square takes minutes.
  assert.ok(found.worst.ms < 15_000, JSON.stringify(found.worst));
};
