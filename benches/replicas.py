#!/usr/bin/env python3
"""What two replicas on two nodes of one core each give, compared with one such node.

    python3 benches/replicas.py -m 1b-q4_0.gguf

Prints the tokens a second of 8 answers at once; which part of 8 conversations of 5 turns came from the
cache; how ten new prompts were shared; and what the choice costs: the median seconds of short requests.
"""

import argparse
import concurrent.futures
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
import urllib.request

APIS = ["127.0.0.1:18870", "127.0.0.1:18871"]
PORTS = ["127.0.0.1:17870", "127.0.0.1:17871"]
# Of all tests, so that prompts of one are new in the next.
SEEDS = iter(range(1 << 30))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--sinew", default="target/release/sinew")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    found = {count: measure(args, count) for count in (1, 2)}
    one, two = (statistics.median(found[count]["rates"]) for count in (1, 2))
    print(f"{args.streams} answers at once: {one:.1f} tokens/s by one node, {two:.1f} by two "
          f"replicas, {two / one:.2f} times")
    one, two = (found[count]["cached"] for count in (1, 2))
    print(f"8 conversations of 5 turns: {one} tokens from the cache of one, {two} from those of two, "
          f"{two / one:.3f}")
    print(f"ten new prompts, one after the other: {found[2]['shared']}")
    one, two = (found[count]["short"] for count in (1, 2))
    print(f"a short request: {one * 1e3:.2f} ms at one, {two * 1e3:.2f} ms with a choice, "
          f"{(two - one) * 1e3:+.2f} ms")


def measure(args, count):
    folders = [tempfile.mkdtemp() for _ in range(count)]
    nodes = [up(args, at, folder) for at, folder in enumerate(folders)]
    try:
        if count == 2:
            code = json.loads(run(args, folders[0], "invite", "--json"))["code"]
            run(args, folders[1], "join", code)
        context = str(args.streams * 2 * (args.prompt + args.generate) + 8192)
        run(args, folders[0], "serve", args.model, "--name", "m", "--ctx", context, "--replicas",
            str(count))
        while sum(one["has_generated"] for one in replicas(args, folders[0])) < count:
            time.sleep(0.2)
        time.sleep(2)
        return {
            "rates": [rate(args) for _ in range(args.runs)],
            "cached": conversations(),
            "shared": shared(args, folders[0]),
            "short": short(),
        }
    finally:
        for node in nodes:
            node.terminate()
            node.wait()
        for folder in folders:
            shutil.rmtree(folder)


def up(args, at, folder):
    core = sorted(os.sched_getaffinity(0))[at]
    command = ["taskset", "-c", str(core), args.sinew, "up", "--data-dir", folder, "--name",
               "ab"[at], "--threads", "1", "--listen", PORTS[at], "--api", APIS[at],
               "--prompt-cache", "off"]
    node = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        try:
            urllib.request.urlopen(f"http://{APIS[at]}/v1/models").read()
            return node
        except OSError:
            assert node.poll() is None, "the node ended"
            time.sleep(0.1)


def run(args, folder, *words):
    command = [args.sinew, words[0], "--data-dir", folder, *words[1:]]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def replicas(args, folder):
    return json.loads(run(args, folder, "ps", "--json"))


def rate(args):
    """The tokens a second of all answers together."""
    with concurrent.futures.ThreadPoolExecutor(args.streams) as pool:
        begun = time.monotonic()
        prompts = [words(args.prompt) for _ in range(args.streams)]
        answers = list(pool.map(lambda prompt: complete(prompt, args.generate), prompts))
        took = time.monotonic() - begun
    return sum(answer["usage"]["completion_tokens"] for answer in answers) / took


def conversations():
    """The tokens of prompts that came from a cache."""
    def talk(_):
        text, cached = words(200), 0
        for _ in range(5):
            answer = complete(text, 16)
            cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            text += words(100)
        return cached
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return sum(pool.map(talk, range(8)))


def shared(args, folder):
    """How many prompt tokens of ten new prompts each replica computed, in prompts."""
    def computed():
        time.sleep(1.5)
        return [one["stats"]["prompt_tokens"] for one in replicas(args, folder)]
    before = computed()
    for _ in range(10):
        complete(words(300), 1)
    after = computed()
    whole = sum(after) - sum(before)
    parts = [round(10 * (b - a) / whole) for a, b in zip(before, after)]
    return " and ".join(map(str, parts))


def short():
    """The median time of a request for one token."""
    def once():
        begun = time.monotonic()
        complete([100, 200, 300], 1)
        return time.monotonic() - begun
    return statistics.median(once() for _ in range(100))


def words(count):
    """Random tokens, which no other prompt begins with."""
    draw = random.Random(next(SEEDS))
    return [draw.randrange(100, 30000) for _ in range(count)]


def complete(prompt, tokens):
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True}
    request = urllib.request.Request(f"http://{APIS[0]}/v1/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    return json.loads(urllib.request.urlopen(request).read())


if __name__ == "__main__":
    main()
