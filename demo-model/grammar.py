"""Turns templates into the many ways in which people really type.

`spin` expands `{a|b|c}`; `rough` makes a tidy question look typed by a stranger: fillers,
contractions, missing punctuation, lower case, dropped words, typos. Knows nothing of any world.
"""

from __future__ import annotations

import random
import re

_CHOICE = re.compile(r"\{([^{}]*)\}")

_FILLERS = [
    "hey, ", "hi, ", "hello, ", "please tell me, ", "please tell me ", "can you tell me ",
    "could you tell me ", "tell me, ", "tell me ", "do you know ", "do you happen to know ",
    "I would like to know ", "I want to know ", "I was wondering, ", "I wonder ", "quick question: ",
    "so ", "so, ", "ok, ", "okay, ", "um, ", "and ", "now ", "well, ", "sorry, ", "one more: ",
    "say, ", "explain ", "can you explain ", "just curious, ", "question: ", "thanks. ", "great, ",
]
_TAILS = [" please", ", please", " again", " exactly", " then", " actually", " in short",
          ", do you know", " here", " by the way", " in simple words"]
_CONTRACTIONS = [
    ("what is", "what's"), ("who is", "who's"), ("where is", "where's"), ("how is", "how's"),
    ("do not", "don't"), ("does not", "doesn't"), ("can not", "can't"), ("I am", "I'm"),
    ("when is", "when's"), ("what is", "whats"), ("who is", "whos"), ("what is", "wats"),
]
_DROPPABLE = {"the", "a", "an", "is", "are", "do", "does", "of", "to", "it", "please", "can", "i"}


def spin(template: str, rng: random.Random) -> str:
    """Expands nested `{a|b}` choices from the inside out."""
    while True:
        match = _CHOICE.search(template)
        if match is None:
            return re.sub(r" {2,}", " ", template).strip()
        choice = rng.choice(match.group(1).split("|"))
        template = template[: match.start()] + choice + template[match.end():]


def sentence(text: str) -> str:
    """Upper-cases the first letter only (`str.capitalize` would lower-case the names)."""
    return text[:1].upper() + text[1:]


def _typo(text: str, rng: random.Random) -> str:
    words = text.split(" ")
    long_words = [i for i, w in enumerate(words) if len(w) >= 4 and w.isalpha()]
    if not long_words:
        return text
    i = rng.choice(long_words)
    word = words[i]
    at = rng.randrange(1, len(word) - 1)
    kind = rng.random()
    if kind < 0.4:  # swap two neighbours
        word = word[:at] + word[at + 1] + word[at] + word[at + 2:]
    elif kind < 0.7:  # drop a letter
        word = word[:at] + word[at + 1:]
    elif kind < 0.85:  # double a letter
        word = word[:at] + word[at] + word[at:]
    else:
        word = word[:at] + rng.choice("abcdefghijklmnopqrstuvwxyz") + word[at + 1:]
    words[i] = word
    return " ".join(words)


def _drop_word(text: str, rng: random.Random) -> str:
    words = text.split(" ")
    small = [i for i, w in enumerate(words) if w.lower() in _DROPPABLE]
    if len(words) < 4 or not small:
        return text
    words.pop(rng.choice(small))
    return " ".join(words)


def rough(question: str, rng: random.Random, is_question: bool = True) -> str:
    """One way in which a person might type `question` (given without its end mark)."""
    text = question
    if rng.random() < 0.35:
        source, target = rng.choice(_CONTRACTIONS)
        text = text.replace(source, target, 1)
    if rng.random() < 0.07:
        text += rng.choice(_TAILS)
    if rng.random() < 0.13:
        text = rng.choice(_FILLERS) + text
    if rng.random() < 0.10:
        text = _drop_word(text, rng)
    if rng.random() < 0.10:
        text = _typo(text, rng)
    mark = ("?" if is_question else rng.choice([".", "!", ""])) if rng.random() < 0.62 else ""
    if rng.random() < 0.03:
        mark = rng.choice(["??", "?!", "...", "!", " ?"])
    kind = rng.random()
    if kind < 0.55:
        text = sentence(text)
    elif kind < 0.97:
        text = text.lower() if rng.random() < 0.8 else text
    else:
        text = text.upper()
    return text + mark
