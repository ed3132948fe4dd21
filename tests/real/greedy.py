"""Greedy text beside llama.cpp's: equal but for near ties.

Both engines round activations, each in its own way, so their logits differ a little; where
llama.cpp's two best ones are closer than that, either token is right, and the texts part. From
there Sinew goes on with llama.cpp's text, so that every token is compared.

A near tie is a gap below twice the error. The error is measured on the tokens on which both
agree, so that a wrong token cannot excuse itself; 19 of 20 log-probabilities are within it,
because single ones, mostly of unlikely tokens, are far off.
"""

from typing import NamedTuple

WITHIN = 0.95


class Part(NamedTuple):
    """Where two texts part, and how sure llama.cpp was there."""
    case: int
    step: int
    gap: float


class Comparison(NamedTuple):
    equal_tokens: int
    error: float
    parts: list

    def bound(self):
        return 2 * self.error

    def wrong(self):
        """Differences that no near tie explains."""
        return [part for part in self.parts if part.gap >= self.bound()]


def steps(choice):
    """[(token, {token: log-probability})] of an answer; one that ends itself ends with None."""
    found = choice["logprobs"]
    if "tokens" in found:
        rows = list(zip(found["tokens"], found["top_logprobs"]))
    else:
        rows = [(one["token"], {top["token"]: top["logprob"] for top in one["top_logprobs"]})
                for one in found["content"]]
    return rows + [(None, {})] * (choice["finish_reason"] == "stop")


def errors(row, likely):
    """How far the log-probabilities of the two best tokens are from llama.cpp's."""
    best, second, logprob, gap = row
    pairs = [(best, logprob), (second, logprob - gap)]
    return [abs(likely[token] - value) for token, value in pairs if token in likely]


def compare(cases, choices, resume):
    """Of cases of llama_cpp.json and Sinew's answer to each; `resume(case, step)` is Sinew's answer
    to the prompt and the first tokens of llama.cpp's."""
    equal_tokens, off, parts = 0, [], []
    for at, (case, choice) in enumerate(zip(cases, choices, strict=True)):
        ours = steps(choice)
        for step, row in enumerate(case["steps"]):
            token, likely = ours.pop(0) if ours else ("", {})
            if token == row[0]:
                equal_tokens += 1
                off += errors(row, likely)
                continue
            parts.append(Part(at, step, row[3]))
            if step + 1 < len(case["steps"]):
                ours = steps(resume(case, step + 1))
    error = sorted(off)[int(len(off) * WITHIN)] if off else 0.0
    return Comparison(equal_tokens, error, parts)
