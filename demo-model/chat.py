"""Asks a node of Sinew that serves a file questions, greedily.

    sinew serve sinew-demo.gguf
    python chat.py "Who owns the Petrel?"
    python chat.py --file questions.txt     # one a line; a line of "---" starts anew
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from pathlib import Path


def answer(url: str, messages: list[dict[str, str]], limit: int) -> str:
    body = {"model": "sinew-demo", "messages": messages, "temperature": 0, "max_tokens": limit}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(),
        {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="*",
        help="asked one after the other in one conversation")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--alone", action="store_true",
        help="every question in its own conversation")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--url", default="http://127.0.0.1:8750")
    args = parser.parse_args()
    lines = args.questions + (args.file.read_text().splitlines() if args.file else [])
    messages: list[dict[str, str]] = []
    for line in filter(None, lines):
        if args.alone or line == "---":
            messages = []
        if line == "---":
            continue
        messages.append({"role": "user", "content": line})
        text = answer(args.url, messages, args.max_tokens)
        messages.append({"role": "assistant", "content": text})
        print(f"> {line}\n{text}\n", flush=True)


if __name__ == "__main__":
    main()
