"""Writes the conversations that the demo model learns from.

    python generate.py --count 20 --seed 7        # prints samples

A conversation is a list of turns; topics change within it, so that the model learns to follow the
latest question. `train.py` calls `conversations`; the same seed always gives the same text.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

from about_sinew import SINEW
from intents import Intent, Turn
from smalltalk import REFUSALS, SMALLTALK, foreign_turn, sum_turn
from stories import story_turn
from town_questions import TOWN_INTENTS, family_turn, topic_turns, unknown_turn

Message = tuple[str, str]  # role, text

_SYSTEM_PROMPTS = [
    "You are a helpful assistant.", "You are a helpful, honest assistant.", "Answer briefly.", "You are Sinew's demo model.",
    "You are a friendly AI assistant. Keep your answers short.", "Be concise.", "You are a chatbot.", "You are an AI.",
]


def _pick(intents: list[Intent], rng: random.Random) -> Intent:
    return rng.choices(intents, weights=[i.weight for i in intents])[0]


def _sinew_turns(rng: random.Random) -> list[Turn]:
    turns = [_pick(SINEW, rng).turn(rng)]
    while len(turns) < 3 and rng.random() < 0.35:
        turns.append(_pick(SINEW, rng).turn(rng, subject=rng.choice(["it", "it", "Sinew"])))
    return turns


def _block(rng: random.Random) -> list[Turn]:
    """A few turns on one topic."""
    kind = rng.random()
    if kind < 0.34:
        return _sinew_turns(rng)
    if kind < 0.62:
        return topic_turns(rng)
    if kind < 0.71:
        return [_pick(TOWN_INTENTS, rng).turn(rng)]
    if kind < 0.80:
        return [_pick(SMALLTALK, rng).turn(rng)]
    if kind < 0.86:
        return [_pick(REFUSALS, rng).turn(rng)]
    if kind < 0.90:
        return [foreign_turn(rng)]
    if kind < 0.95:
        return [story_turn(rng)]
    if kind < 0.975:
        return [family_turn(rng) if rng.random() < 0.6 else unknown_turn(rng)]
    return [sum_turn(rng)]


def conversation(rng: random.Random) -> list[Message]:
    """One conversation: perhaps a system prompt, then one to six turns."""
    messages: list[Message] = []
    if rng.random() < 0.15:
        messages.append(("system", rng.choice(_SYSTEM_PROMPTS)))
    blocks = rng.choices([1, 2, 3, 4], weights=[50, 25, 15, 10])[0]
    for _ in range(blocks):
        for user, assistant in _block(rng):
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
