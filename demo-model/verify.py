"""Checks an exported GGUF against two independent readers.

    python verify.py sinew-demo.gguf

1. The chat template renders alike under jinja2 and minijinja, and gives the tokens of the training.
2. llama.cpp splits text into the same tokens as the `tokenizers` library does.
3. The logits of llama.cpp agree with our PyTorch forward pass over the file's own weights.

Needs llama-cpp-python, jinja2 and minijinja beside the requirements of the training.
"""

from __future__ import annotations

import sys

import jinja2
import minijinja
import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from llama_cpp import Llama as LlamaCpp
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from export_gguf import gguf_name
from generate import Message, conversations
from model import Config, Llama
from tokenizer import SPECIALS, encode_conversation

_HARD_TEXTS = ["naïve café, 12345 + 678 = ?", "  two  spaces\n\nand\tlines ", "你好 привет 🙂",
    "it's `sinew join CODE`!", "<|user|"]


def tokenizer_of(reader: GGUFReader) -> Tokenizer:
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


def model_of(reader: GGUFReader) -> Llama:
    model = Llama(Config())
    tensors = {t.name: torch.from_numpy(dequantize(t.data,
        t.tensor_type).copy()) for t in reader.tensors}
    model.load_state_dict({name: tensors[gguf_name(name)] for name in model.state_dict()})
    return model


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
    tokenizer, model = tokenizer_of(reader), model_of(reader)
    engine = LlamaCpp(path, n_ctx=512, logits_all=True, verbose=False, n_threads=1)
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
        ids = encode_conversation(tokenizer, messages)[0][:512]
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
