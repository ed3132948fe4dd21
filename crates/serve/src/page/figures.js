// The statistics of an answer in one line.

import { rate } from "./format.js";

/** `contexts` are models' contexts in tokens, by name. */
export function account(message, contexts) {
  const { usage, timings, finish_reason: reason, model, ended, about } = message;
  const tokens = usage?.completion_tokens ?? timings?.predicted_n;
  const parts = model ? [model] : [];
  if (tokens !== undefined) parts.push(`${tokens} token${tokens === 1 ? "" : "s"}`);
  const perSecond = timings?.predicted_per_second;
  if (perSecond > 0) parts.push(`${rate(perSecond)} tokens/s`);
  const { draft_n: tried, draft_n_accepted: right } = timings ?? {};
  if (tried > 0) parts.push(`${right} of ${tried} guesses right`);
  if (timings) parts.push(`first after ${(timings.prompt_ms / 1000).toFixed(2)} s`);
  if (usage) parts.push(`${usage.prompt_tokens} tokens of prompt`);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (cached > 0) parts.push(`${cached} of them remembered`);
  if (reason === "length") parts.push(ending(message, contexts.get(model)));
  if (ended) parts.push(ended);
  return parts.length > 1 ? parts.join(" · ") : about ?? "";
}

/** Whether an answer ended because the model's context is full. */
export const isFull = ({ usage, finish_reason: reason }, context) => (
  reason === "length" && Boolean(usage && context && usage.total_tokens >= context));

function ending(message, context) {
  return isFull(message, context)
    ? `cut off: the context of ${context} tokens is full`
    : "cut off at the most tokens that were asked for";
}
