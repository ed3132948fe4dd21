// Anthropic's TypeScript SDK: its runner of tools begins with a thread, which the server would keep,
// and goes on without one.

import assert from "node:assert";
import { createRequire } from "node:module";

const load = createRequire(`${process.argv[2]}/`);
const { default: Anthropic } = load("@anthropic-ai/sdk");
const { betaTool } = load("@anthropic-ai/sdk/helpers/beta/json-schema");
const { SINEW_URL: baseURL, SINEW_MODEL: model } = process.env;

const client = new Anthropic({ baseURL, apiKey: "any", maxRetries: 0 });
const asked = [];
const weather = betaTool({
  name: "weather",
  description: "The weather at a place",
  inputSchema: {
    type: "object",
    properties: { at: { type: "string", enum: ["Rome", "Oslo"] } },
    required: ["at"],
    additionalProperties: false,
  },
  run: ({ at }) => {
    asked.push(at);
    return "Sunny.";
  },
});
const runner = client.beta.messages.toolRunner({
  model,
  max_tokens: 200,
  max_iterations: 2,
  tools: [weather],
  tool_choice: { type: "tool", name: "weather" },
  messages: [{ role: "user", content: "How is the weather?" }],
});
const sizes = [];
for await (const message of runner) {
  const { input_tokens, cache_read_input_tokens } = message.usage;
  sizes.push(input_tokens + (cache_read_input_tokens ?? 0));
}
assert(["Rome", "Oslo"].includes(asked[0]), `${asked}`);
assert(sizes.length === 2 && sizes[1] > sizes[0] + 10, `${sizes}`);
console.log("    ok     the runner of tools sends the whole conversation");
