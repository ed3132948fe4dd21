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
    "I would like to know ", "I want to know ", "I was wondering, ", "I wonder ",
    "quick question: ",
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

# phrase -> ways to say the same.  Templates are written once; this multiplies them.
_SYNONYMS: list[tuple[str, list[str]]] = [
    ("how do I", ["how can I", "how could I", "how would I", "how do you", "how do we",
        "how does one", "how should I", "in what way do I"]),
    ("where can I", ["where could I", "where do I", "where would I", "where may I",
        "where should I go to", "in which place can I"]),
    ("tell me about", ["say something about", "I want to know about", "talk about",
        "tell me all about", "tell us about", "give me information about", "teach me about",
        "I would love to hear about"]),
    ("who is", ["who exactly is", "who might be", "who was", "whos"]),
    ("what is", ["what exactly is", "what might be", "what would be", "wat is", "what's"]),
    ("which", ["what"]),
    ("can I", ["could I", "may I", "is it possible to", "am I able to", "can we", "can you"]),
    ("do I need", ["must I have", "do I require", "will I need", "would I need", "do you need",
        "do we need", "should I have"]),
    ("what happens (if|when)", ["what would happen if", "what if", "what will happen when",
        "what happens in case"]),
    ("machine", ["computer", "box", "laptop", "PC", "node", "Mac", "host", "system"]),
    ("machines", ["computers", "boxes", "laptops", "PCs", "nodes", "Macs", "hosts", "systems"]),
    ("is there", ["do they have", "is there perhaps", "have they got", "does there exist"]),
    ("favourite", ["favorite", "preferred", "best loved"]),
    ("colour", ["color"]),
    ("own", ["have", "possess"]),
    ("owns", ["has", "possesses", "is the owner of"]),
    ("called", ["named"]),
    ("does Sinew", ["can Sinew", "will Sinew", "could Sinew", "would Sinew"]),
    ("Sinew", ["this Sinew thing", "the sinew program", "the Sinew software", "this program"]),
    ("cluster", ["group", "setup", "network", "system"]),
    ("model", ["language model", "LLM", "AI model", "AI"]),
    ("has", ["has got", "keeps", "owns"]),
    ("lives", ["is living", "resides"]),
    ("live", ["stay", "dwell"]),
    ("find", ["meet", "see"]),
    ("buy", ["get", "purchase"]),
    ("like", ["enjoy", "love", "prefer"]),
    ("explain", ["describe", "clarify", "teach me", "help me understand"]),
    ("faster", ["quicker", "speedier", "more rapid"]),
    ("add", ["connect", "attach", "include", "hook up"]),
    ("dies", ["fails", "crashes", "breaks down", "goes offline", "loses power", "is turned off",
        "stops working"]),
    ("secure", ["safe", "protected"]),
    ("story", ["tale", "short story"]),
    ("list", ["name", "give me", "show me"]),
    ("animals", ["pets", "beasts"]),
    ("boats", ["ships", "vessels"]),
    ("boat", ["ship", "vessel"]),
    ("people", ["persons", "folks", "inhabitants"]),
]
_SYNONYM_PATTERNS = [(re.compile(rf"\b{phrase}\b"), others) for phrase, others in _SYNONYMS]


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


def _reword(text: str, rng: random.Random) -> str:
    found = [(pattern, others) for pattern, others in _SYNONYM_PATTERNS if pattern.search(text)]
    if not found:
        return text
    pattern, others = rng.choice(found)
    return pattern.sub(rng.choice(others), text, count=1)


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
    if rng.random() < 0.30:
        text = _reword(text, rng)
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
