"""The byte-level BPE tokenizer of the demo model, and how a conversation becomes tokens.

The pre-tokenizer is GPT-2's, so that any GGUF engine knows it by its name ("gpt-2").
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from generate import Message

VOCAB_SIZE = 1536
SPECIALS = ["<|bos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]  # ids 0 to 4
BOS, SYSTEM, USER, ASSISTANT, END = range(len(SPECIALS))
_ROLES = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}

# One line without white space between the parts, because white space would become tokens.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], path: Path) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=SPECIALS, show_progress=False,
                         initial_alphabet=sorted(ByteLevel.alphabet()))
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE, tokenizer.get_vocab_size()
    tokenizer.save(str(path))
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))


def encode_conversation(tokenizer: Tokenizer, messages: list[Message],
                        bos_count: int = 1) -> tuple[list[int], list[bool]]:
    """Token ids as the chat template would give, and which of them the assistant writes."""
    ids, written = [BOS] * bos_count, [False] * bos_count
    for role, text in messages:
        body = tokenizer.encode(text, add_special_tokens=False).ids + [END]
        ids += [_ROLES[role], *body]
        written += [False] + [role == "assistant"] * len(body)
    return ids, written
