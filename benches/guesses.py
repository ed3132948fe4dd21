#!/usr/bin/env python3
"""What guessed tokens gain on a trained model, by kind of text: none, lookup in the text, a draft model.

One node of one thread answers the same questions greedily with each; rounds alternate. Prints a markdown
table: tokens a second, how many of the tried guesses were right, and whether the texts are the same.

    tests/real/fetch.py target/real qwen2.5-coder-0.5b qwen2.5-coder-1.5b
    python3 benches/guesses.py -m target/real/qwen2.5-coder-1.5b.gguf --draft target/real/qwen2.5-coder-0.5b.gguf
"""

import argparse
import os
import statistics
import sys
import tempfile
import time

import harness

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tests/real"))
import nodes  # noqa: E402

FILE = '''import math


class Circle:
    """A circle around a point."""

    def __init__(self, x, y, r):
        self.x = x
        self.y = y
        self.r = r

    def area(self):
        return math.pi * self.r ** 2

    def circumference(self):
        return 2 * math.pi * self.r

    def contains(self, x, y):
        return (x - self.x) ** 2 + (y - self.y) ** 2 <= self.r ** 2

    def touches(self, other):
        return math.hypot(self.x - other.x, self.y - other.y) <= self.r + other.r
'''

# How long a worker may keep its counts to itself.
STATS_S = 1.5

QUESTIONS = {
    "code": "Write a Python class for a queue with a maximum length, and tests for it.",
    "prose": "Tell a story about a lighthouse keeper and her first winter on the rock.",
    "translation": "Translate into French: The harbour town had no clock. The fishermen went out with the "
    "tide and came home with it, and since the tide moves by fifty minutes each day, so did breakfast. "
    "Visitors found this maddening. In the end the railway settled the matter: a station needs a clock.",
    "an edited file": f"Rename `r` to `radius` everywhere in this file, and print the whole file:\n\n{FILE}",
}

WAYS = {
    "none": ["--speculation", "off"],
    "lookup": ["--speculation", "prompt"],
    "lookup and draft": ["--speculation", "prompt", "--draft"],
}


def counts(served):
    """Guesses that were tried so far, and those that were right."""
    stats = served.instance()["stats"]
    return stats["guessed_tokens"], stats["guessed_right_tokens"]


def ask(served, question, tokens):
    """The text, tokens a second after the first, and guesses tried and right."""
    before = counts(served)
    answer = served.chat([{"role": "user", "content": question}], max_tokens=tokens)
    time.sleep(STATS_S)
    tried, right = (after - first for after, first in zip(counts(served), before))
    rate = answer["timings"]["predicted_per_second"]
    return answer["choices"][0]["message"]["content"], rate, tried, right


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True, help="an instruct model, a .gguf")
    parser.add_argument("--draft", required=True, help="a smaller one with the same vocabulary")
    parser.add_argument("-n", "--tokens", type=int, default=160)
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("--sinew", default="target/release/sinew", help="the binary to measure")
    return parser.parse_args()


def measure(args, cluster):
    """The answers of every round, by kind of text and way to guess."""
    found = {(kind, way): [] for kind in QUESTIONS for way in WAYS}
    for _ in range(args.rounds):
        for way, options in WAYS.items():
            options = options + [args.draft] * options.count("--draft")
            with cluster.serving(args.model, "a", options=options) as served:
                served.chat([{"role": "user", "content": "Hello"}], max_tokens=8)
                for kind, question in QUESTIONS.items():
                    found[kind, way].append(ask(served, question, args.tokens))
    return found


def cell(answers, base, text):
    rate, slow = (statistics.median(one[1] for one in of) for of in (answers, base))
    tried, right = (sum(one[at] for one in answers) for at in (2, 3))
    same = all(one[0] == text for one in answers)
    guesses = f", {right} of {tried} right" if tried else ""
    return f"{rate:.1f} ({rate / slow:.2f}{guesses}){'' if same else ' OTHER TEXT'}"


def main():
    args = arguments()
    harness.require_sinew(args.sinew)
    for path in (args.model, args.draft):
        harness.require(path, "Try: tests/real/fetch.py target/real")
    paths = {name: os.path.abspath(getattr(args, name)) for name in ("sinew", "model", "draft")}
    vars(args).update(paths)
    with tempfile.TemporaryDirectory() as work, nodes.Cluster(args.sinew, work, "a") as cluster:
        found = measure(args, cluster)
    print(f"{harness.sinew_version(args.sinew)}; {harness.machine()}; medians of {args.rounds}\n")
    print(f"| {args.tokens} tokens of | {' | '.join(WAYS)} |\n|---|{'---|' * len(WAYS)}")
    for kind in QUESTIONS:
        base = found[kind, "none"]
        cells = [cell(found[kind, way], base, base[0][0]) for way in WAYS]
        print(f"| {kind} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
