#!/usr/bin/env python3
"""Writes llama_cpp.json beside this file: what llama.cpp says with the same files.

    pip install llama-cpp-python
    tests/real/reference.py FOLDER [MODEL...]

`run` compares it with what Sinew says. FOLDER is where `fetch.py` puts the models. The file in
the repository is of the bindings 0.3.36 and llama.cpp's CPU libraries 0.5.0, on one thread of an
x86 processor with AVX-512, with llama.cpp's own defaults for everything else (cache f16). Jinja2
itself renders the chats, from the template in the model's file, and llama.cpp encodes them.

Each step of a greedy text is [token, runner-up, log-probability of the token, gap]: the gap is the
logit of the token minus that of the runner-up. A token that ends the text is null. `answer` has the
tokens' ids.
"""

import ctypes
import json
import os
import sys

import numpy as np

import fetch

PROMPTS = [
    "The capital of France is",
    "Water boils at a lower temperature on a mountain because",
    "def fibonacci(n):\n    \"\"\"The n-th Fibonacci number.\"\"\"\n",
    "Once upon a time, in a village by the sea, there lived",
    "The first five prime numbers are",
    "Dear Sir or Madam,\n\nI am writing to",
]
CHATS = [
    [{"role": "user", "content": "What is the capital of Italy?"}],
    [{"role": "system", "content": "You answer in one short sentence."},
     {"role": "user", "content": "Why is the sky blue?"}],
    [{"role": "user", "content": "My name is Ada."},
     {"role": "assistant", "content": "Hello, Ada!"},
     {"role": "user", "content": "Say hello to me in French."}],
]
TEXTS = [
    "The cat sleeps on the sofa.",
    "A kitten is lying on the couch.",
    "Interest rates rose by half a per cent.",
    "for i in range(10): print(i)",
]
STEPS = 48
CONTEXT = 512
# Of a unit vector: enough to tell any other vector from it.
HEAD = 32


class Model:
    """A file that llama.cpp has loaded."""

    def __init__(self, api, path, **options):
        self.api = api
        self.llama = api.Llama(path, n_ctx=CONTEXT, n_threads=1, n_threads_batch=1,
                               verbose=False, **options)
        self.vocab = api.llama_model_get_vocab(self.llama.model)

    def encode(self, text, special):
        return self.llama.tokenize(text.encode(), add_bos=True, special=special)

    def piece(self, token):
        """The token's text, or None where it ends one."""
        if self.api.llama_vocab_is_eog(self.vocab, token):
            return None
        room = ctypes.create_string_buffer(256)
        length = self.api.llama_token_to_piece(self.vocab, token, room, len(room), 0, False)
        return room.raw[:length].decode("utf-8", "replace")

    def logits(self):
        """Of the last position: [vocabulary] f32."""
        last = self.api.llama_get_logits_ith(self.llama.ctx, -1)
        return np.ctypeslib.as_array(last, (self.llama.n_vocab(),)).astype(np.float64)

    def step(self):
        """The likeliest next token, and the row about it."""
        logits = self.logits()
        best, second = (int(token) for token in np.argsort(-logits)[:2])
        total = logits[best] + np.log(np.exp(logits - logits[best]).sum())
        figures = [logits[best] - total, logits[best] - logits[second]]
        row = [self.piece(best), self.piece(second), *(round(float(one), 4) for one in figures)]
        return best, row

    def greedy(self, tokens):
        """The tokens that follow, and a row about each."""
        self.llama.reset()
        self.llama.eval(tokens)
        answer, rows = [], []
        while len(rows) < STEPS and (not rows or rows[-1][0] is not None):
            token, row = self.step()
            answer.append(token)
            rows.append(row)
            self.llama.eval([token])
        return {"tokens": tokens, "answer": answer, "steps": rows}

    def render(self, template, messages):
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter
        return Jinja2ChatFormatter(template, eos_token="", bos_token="")(messages=messages).prompt


def describe(api, name, path):
    """All that is compared of one model."""
    model = Model(api, path)
    cases = []
    for prompt in PROMPTS:
        tokens = model.encode(prompt, special=False)
        cases.append({"prompt": prompt, **model.greedy(tokens)})
    template = model.llama.metadata.get("tokenizer.chat_template")
    for messages in CHATS if template else []:
        text = model.render(template, messages)
        tokens = model.encode(text, special=True)
        cases.append({"messages": messages, "rendered": text, **model.greedy(tokens)})
    pooled = Model(api, path, embedding=True, pooling_type=api.LLAMA_POOLING_TYPE_LAST)
    vectors = [pooled.llama.embed(text, normalize=True)[:HEAD] for text in TEXTS]
    embeddings = [{"text": text, "head": [round(value, 5) for value in vector]}
                  for text, vector in zip(TEXTS, vectors)]
    return {"sha256": fetch.SOURCES[name].sha256, "cases": cases, "embeddings": embeddings}


def write(path, models):
    """One line a case, so that a difference between two versions shows which one changed."""
    def lines(values):
        return ",\n".join(f"  {json.dumps(value)}" for value in values)

    parts = [f'"{name}": {{\n "sha256": "{model["sha256"]}",\n'
             f' "cases": [\n{lines(model["cases"])}\n ],\n'
             f' "embeddings": [\n{lines(model["embeddings"])}\n ]\n}}'
             for name, model in models.items()]
    with open(path, "w", encoding="utf-8") as out:
        out.write("{\n" + ",\n".join(parts) + "\n}\n")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        import llama_cpp as api
    except ImportError:
        sys.exit("the bindings are missing. Try: pip install llama-cpp-python")
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llama_cpp.json")
    models = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as old:
            models = json.load(old)
    for name in sys.argv[2:] or fetch.SOURCES:
        models[name] = describe(api, name, fetch.fetch(name, sys.argv[1]))
        print(f"{name}: {sum(len(case['steps']) for case in models[name]['cases'])} steps")
    write(path, models)


if __name__ == "__main__":
    main()
