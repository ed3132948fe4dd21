#!/usr/bin/env python3
"""Time to the first token of code completion, with a request for every keystroke, of which half are
left after their first token. Servers that speak llama-server's dialect answer the same session in turn.

    target/release/sinew up & target/release/sinew serve qwen2.5-coder-0.5b.gguf
    python3 benches/keystrokes.py Sinew=http://127.0.0.1:8750 llama-server=http://127.0.0.1:8080

`infill` types in the middle of a text (`POST /infill`), `completion` at its end (`POST /completion`).
Prints the times in milliseconds: the first request, and median and 95th percentile of the others.
Needs nothing but Python.
"""

import argparse
import inspect
import json
import json.decoder
import random
import time
import urllib.request

# Lines of code before the first keystroke, typed ones, and those behind the cursor.
BEFORE, TYPED = 40, 8
# Between keystrokes, seconds.
PAUSE = 0.02


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server", nargs="+", help="NAME=URL")
    parser.add_argument("-n", "--keystrokes", type=int, default=200, help="of a session")
    parser.add_argument("-r", "--rounds", type=int, default=3, help="sessions of each server")
    parser.add_argument("--after", type=int, default=40, help="lines behind the cursor, in infill")
    args = parser.parse_args()
    if args.keystrokes < 2:
        parser.error("the first keystroke is apart; -n must be at least 2")
    if not all("=http" in server for server in args.server):
        parser.error("each server is NAME=URL, such as Sinew=http://127.0.0.1:8750")
    return args


def requests(kind, keystrokes, after):
    """The bodies of a session's requests."""
    lines = inspect.getsource(json.decoder).splitlines(keepends=True)
    before, typed = "".join(lines[:BEFORE]), "".join(lines[BEFORE : BEFORE + TYPED])
    behind = "".join(lines[BEFORE + TYPED : BEFORE + TYPED + after])
    for end in range(keystrokes):
        text = before + typed[: 1 + end % (len(typed) - 1)]
        line = text.rfind("\n") + 1
        prompt = {"prompt": text}
        if kind == "infill":
            prompt = {"input_prefix": text[:line], "prompt": text[line:], "input_suffix": behind}
        yield {**prompt, "n_predict": 16, "temperature": 0, "stream": True, "cache_prompt": True}


def first_token(url, body, is_left):
    """Milliseconds to the first token; the rest is read unless the client leaves."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    begun, first = time.perf_counter(), None
    with urllib.request.urlopen(request, timeout=60) as response:
        for line in response:
            if line.startswith(b"data: "):
                first = first or 1e3 * (time.perf_counter() - begun)
                if is_left or json.loads(line[6:]).get("stop"):
                    break
    return first


def session(url, kind, args):
    leaves, times = random.Random(7), []
    for body in requests(kind, args.keystrokes, args.after):
        times.append(first_token(f"{url}/{kind}", body, leaves.random() < 0.5))
        time.sleep(PAUSE)
    return times


def main():
    args = arguments()
    servers = dict(server.split("=", 1) for server in args.server)
    print("| session | server | first | median | 95 % |\n|---|---|---|---|---|")
    for _ in range(args.rounds):
        for kind in ["completion", "infill"]:
            for name, url in servers.items():
                cold, *warm = session(url, kind, args)
                warm.sort()
                median, most = (warm[int(len(warm) * part)] for part in [0.5, 0.95])
                print(f"| {kind} | {name} | {cold:.0f} | {median:.0f} | {most:.0f} |", flush=True)


if __name__ == "__main__":
    main()
