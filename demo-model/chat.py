"""Asks an exported GGUF questions through an independent engine, llama.cpp.

    python chat.py sinew-demo.gguf "Who owns the Petrel?"
    python chat.py sinew-demo.gguf --file questions.txt     # one a line; a line of "---" starts anew

Needs `pip install llama-cpp-python`.  It renders the template that is in the file, so what is seen
here is what any engine shows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from llama_cpp import Llama


def answer(llama: Llama, messages: list[dict[str, str]], limit: int) -> str:
    reply = llama.create_chat_completion(messages, temperature=0.0, max_tokens=limit,
        repeat_penalty=1.0)
    return reply["choices"][0]["message"]["content"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("questions", nargs="*",
        help="asked one after the other in one conversation")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--alone", action="store_true",
        help="every question in its own conversation")
    parser.add_argument("--max-tokens", type=int, default=200)
    args = parser.parse_args()
    llama = Llama(str(args.model), n_ctx=2048, n_threads=1, verbose=False)
    lines = args.questions + (args.file.read_text().splitlines() if args.file else [])
    messages: list[dict[str, str]] = []
    for line in filter(None, lines):
        if args.alone or line == "---":
            messages = []
        if line == "---":
            continue
        messages.append({"role": "user", "content": line})
        text = answer(llama, messages, args.max_tokens)
        messages.append({"role": "assistant", "content": text})
        print(f"Q: {line}\nA: {text}\n")


if __name__ == "__main__":
    main()
