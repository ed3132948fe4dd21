"""Checks an exported GGUF against two independent readers.

    python verify.py sinew-demo.gguf

1. The chat template renders alike under jinja2 and minijinja, and gives the tokens of the training.
2. llama.cpp splits text into the same tokens as the `tokenizers` library does.
3. The logits of llama.cpp agree with our PyTorch forward pass over the file's own weights.

Needs llama-cpp-python, jinja2 and minijinja beside the requirements of the training.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jinja2
import minijinja
import numpy as np
import torch
from gguf import GGUFReader
from llama_cpp import Llama as LlamaCpp
from tokenizers import Tokenizer

from generate import Message, conversations
from load_gguf import load_tokenizer_of, load_weights
from model import Config, Llama
from tokenizer import SPECIALS, encode_conversation

_HARD_TEXTS = ["naïve café, 12345 + 678 = ?", "  two  spaces\n\nand\tlines ", "你好 привет 🙂",
    "it's `sinew join CODE`!", "<|user|"]


def check_template(template: str, messages: list[Message], tokenizer: Tokenizer) -> None:
    values = {"messages": [{"role": r, "content": c} for r, c in messages],
        "bos_token": SPECIALS[0],
              "add_generation_prompt": False}
    text = jinja2.Template(template).render(**values)
    assert text == minijinja.Environment().render_str(template, **values)
    assert tokenizer.encode(text).ids == encode_conversation(tokenizer, messages)[0], text


def main() -> None:
    path = sys.argv[1]
    reader = GGUFReader(path)
    tokenizer, model = load_tokenizer_of(Path(path)), Llama(Config())
    model.load_state_dict(load_weights(Path(path)))
    engine = LlamaCpp(path, n_ctx=2048, logits_all=True, verbose=False, n_threads=1)
    template = reader.fields["tokenizer.chat_template"].contents()
    samples = list(conversations(seed=99, count=200))

    for messages in samples:
        check_template(template, messages, tokenizer)
    texts = _HARD_TEXTS + [text for messages in samples for _, text in messages]
    for text in texts:
        ours = tokenizer.encode(text, add_special_tokens=False).ids
        theirs = engine.tokenize(text.encode(), add_bos=False, special=False)
        assert ours == theirs, (text, ours, theirs)
    print(f"template: {len(samples)} conversations agree; tokens: {len(texts)} texts agree")

    worst, same, total = 0.0, 0, 0
    for messages in samples[:20]:
        ids = encode_conversation(tokenizer, messages)[0][:2048]
        engine.reset()
        engine.eval(ids)
        theirs = np.array(engine.scores[: len(ids)])
        with torch.no_grad():
            ours = model(torch.tensor([ids]))[0].numpy()
        worst = max(worst, float(np.abs(ours - theirs).max() / np.abs(ours).max()))
        same += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
        total += len(ids)
    print(f"logits: {same} of {total} positions pick the same token; "
          f"largest difference {100 * worst:.2f} % of the largest logit")
    assert same > 0.97 * total


if __name__ == "__main__":
    main()
