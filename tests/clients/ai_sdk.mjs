// Vercel's AI SDK: a text, a stream of it, and a call that the model has to make.

import assert from "node:assert";
import { createRequire } from "node:module";

const load = createRequire(`${process.argv[2]}/`);
const { generateText, streamText, tool } = load("ai");
const { createOpenAICompatible } = load("@ai-sdk/openai-compatible");
const { z } = load("zod");
const { SINEW_URL, SINEW_MODEL } = process.env;

const provider = createOpenAICompatible({ name: "sinew", baseURL: `${SINEW_URL}/v1`, apiKey: "any" });
const ask = {
  model: provider(SINEW_MODEL),
  prompt: "What is Sinew?",
  temperature: 0,
  maxOutputTokens: 200,
  maxRetries: 0,
};
const { text, usage } = await generateText(ask);
assert(text.includes("one AI computer") && usage.outputTokens > 10, text);
let streamed = "";
for await (const piece of streamText(ask).textStream) streamed += piece;
assert.equal(streamed, text);
console.log("    ok     a text, whole and streamed");

const asked = [];
const weather = tool({
  description: "The weather at a place",
  inputSchema: z.object({ at: z.enum(["Rome", "Oslo"]) }),
  execute: async ({ at }) => {
    asked.push(at);
    return "Sunny.";
  },
});
const { toolResults } = await generateText({ ...ask, tools: { weather }, toolChoice: "required" });
assert(["Rome", "Oslo"].includes(asked[0]), `${asked}`);
assert.equal(toolResults[0].output, "Sunny.");
console.log("    ok     a call and its result");
