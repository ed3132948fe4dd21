"""Writes the conversations that the demo model learns from.

    python generate.py --count 20 --seed 7        # prints samples

A conversation is a list of turns; topics change within it, so that the model learns to follow the
latest question. `train.py` calls `conversations`; the same seed always gives the same text.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator

from about_sinew import SINEW
from intents import Intent, Turn
from smalltalk import REFUSALS, SMALLTALK, foreign_turn, sum_turn
from stories import story_turn
from town_intents import TOWN_INTENTS
from town_questions import family_turn, topic_turns, unknown_turn

Message = tuple[str, str]  # role, text

LONG_SHARE = 0.04  # of the conversations: about a third of the tokens then lie in long ones

_SYSTEM_PROMPTS = [
    "You are a helpful assistant.", "You are a helpful, honest assistant.", "Answer briefly.",
    "You are Sinew's demo model.",
    "You are a friendly AI assistant. Keep your answers short.", "Be concise.",
    "You are a chatbot.", "You are an AI.",
]


def _pick(intents: list[Intent], rng: random.Random) -> Intent:
    return rng.choices(intents, weights=[i.weight for i in intents])[0]


def _sinew_turns(rng: random.Random) -> list[Turn]:
    turns = [_pick(SINEW, rng).turn(rng)]
    while len(turns) < 3 and rng.random() < 0.35:
        turns.append(_pick(SINEW, rng).turn(rng, subject=rng.choice(["it", "it", "Sinew"])))
    return turns


def _joined(first: Turn, second: Turn) -> Turn:
    """Two questions in one breath, and both answers."""
    question = f"{first[0].rstrip('?!. ')} and {second[0][:1].lower()}{second[0][1:]}"
    return question, f"{first[1]} {second[1]}"


def _block(rng: random.Random) -> list[Turn]:
    """A few turns on one topic."""
    makers: list[tuple[float, Callable[[], list[Turn]]]] = [
        (0.40, lambda: _sinew_turns(rng)),
        (0.21, lambda: topic_turns(rng)),
        (0.08, lambda: [_pick(TOWN_INTENTS, rng).turn(rng)]),
        (0.11, lambda: [_pick(SMALLTALK, rng).turn(rng)]),
        (0.06, lambda: [_pick(REFUSALS, rng).turn(rng)]),
        (0.04, lambda: [foreign_turn(rng)]),
        (0.04, lambda: [story_turn(rng)]),
        (0.02, lambda: [family_turn(rng)]),
        (0.01, lambda: [unknown_turn(rng)]),
        (0.03, lambda: [sum_turn(rng)]),
    ]
    shares, functions = zip(*makers)
    return rng.choices(functions, weights=shares)[0]()


def conversation(rng: random.Random) -> list[Message]:
    """One conversation: perhaps a system prompt, then a few turns, or now and then many."""
    messages: list[Message] = []
    if rng.random() < 0.15:
        messages.append(("system", rng.choice(_SYSTEM_PROMPTS)))
    blocks = rng.choices([1, 2, 3, 4], weights=[50, 25, 15, 10])[0]
    if rng.random() < LONG_SHARE:
        blocks = rng.randint(8, 40)
    for _ in range(blocks):
        turns = _block(rng)
        if len(turns) > 1 and len(turns[0][1]) + len(turns[1][1]) < 420 and rng.random() < 0.2:
            turns[:2] = [_joined(turns[0], turns[1])]
        for user, assistant in turns:
            messages += [("user", user), ("assistant", assistant)]
    return messages


def conversations(seed: int, count: int) -> Iterator[list[Message]]:
    rng = random.Random(seed)
    for _ in range(count):
        yield conversation(rng)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    for messages in conversations(args.seed, args.count):
        for role, text in messages:
            print(f"{role:>9}: {text}")
        print()


if __name__ == "__main__":
    main()
