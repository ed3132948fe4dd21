"""The shape of a hand-written question and its answers."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from grammar import rough, sentence, spin

Turn = tuple[str, str]  # what the user says, what the assistant answers


@dataclass(frozen=True)
class Intent:
    """One thing that people ask, in many phrasings, with very few answers.

    `[S]` in a question stands for Sinew, or for "it" when the conversation is already about Sinew.
    Few answers per intent keep greedy decoding fluent: it never has to mix two phrasings.
    """

    questions: list[str]
    answers: list[str]
    is_question: bool = True
    weight: float = 1.0
    follow_ups: list[str] = field(default_factory=list)  # short questions that need the turn before

    def turn(self, rng: random.Random, subject: str = "Sinew") -> Turn:
        question = spin(rng.choice(self.questions), rng).replace("[S]", subject)
        return rough(question, rng, self.is_question), self.answer(rng)

    def answer(self, rng: random.Random) -> str:
        # The first answer is the usual one, so that it is also the greedy one.
        chosen = self.answers[0] if rng.random() < 0.7 else rng.choice(self.answers)
        return sentence(spin(chosen, rng))
