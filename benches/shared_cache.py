#!/usr/bin/env python3
"""What requests to one server are to each other: the first token of a conversation's next turn beside
that of its first, and the pace of an answer while a long prompt is read.

    target/release/sinew up & target/release/sinew serve MODEL.gguf
    python3 benches/shared_cache.py --model MODEL

Needs nothing but Python and a server with OpenAI's completions.
"""

import argparse
import json
import random
import statistics
import threading
import time
import urllib.request


class Server:
    def __init__(self, url, model):
        self.url, self.model = url, model

    def stream(self, prompt, max_tokens):
        """The times at which tokens come, after that of the request; last the usage."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
                "stream": True, "stream_options": {"include_usage": True}}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(), headers)
        yield time.monotonic()
        usage = None
        with urllib.request.urlopen(request) as lines:
            for line in lines:
                if not line.startswith(b"data: {"):
                    continue
                data = json.loads(line[6:])
                usage = data.get("usage") or usage
                if data.get("choices"):
                    yield time.monotonic()
        yield usage

    def first_token(self, prompt):
        """Seconds to the first token, and the usage."""
        times = list(self.stream(prompt, 1))
        return times[1] - times[0], times[-1]


def words(count, seed):
    numbers = random.Random(seed)
    return " ".join(str(numbers.randrange(10)) for _ in range(count))


def turns(server, count, rounds):
    """A prompt, and the same with a few words more."""
    ratios = []
    for seed in range(rounds):
        prompt = words(count, f"{time.time()} {seed}")
        cold, usage = server.first_token(prompt)
        warm, again = server.first_token(prompt + " 5 5 5")
        cached = again["prompt_tokens_details"]["cached_tokens"]
        print(f"first turn of {usage['prompt_tokens']} tokens {cold:.3f} s, next with {cached} in the "
              f"cache {warm:.3f} s")
        ratios.append(cold / warm)
    print(f"ratio {statistics.median(ratios):.0f} ({min(ratios):.0f}-{max(ratios):.0f})")


def beside(server, count):
    """An answer that runs while a prompt is read."""
    tokens, is_done = [], threading.Event()

    def answer():
        for at in server.stream(words(20, time.time()), 100_000):
            tokens.append(at)
            if is_done.is_set():
                return

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    while len(tokens) < 60:
        time.sleep(0.01)
    start = time.monotonic()
    seconds, usage = server.first_token(words(count, time.time() + 1))
    end = time.monotonic()
    time.sleep(3)
    is_done.set()
    thread.join()
    times = [at for at in tokens[1:] if isinstance(at, float)]
    print(f"a prompt of {usage['prompt_tokens']} tokens is read in {seconds:.1f} s beside an answer")
    for what, first, last in [("before", 0, start), ("meanwhile", start, end), ("after", end, end + 3)]:
        inside = [at for at in times if first <= at <= last]
        gaps = sorted(1e3 * (b - a) for a, b in zip(inside, inside[1:]))
        print(f"  {what}: {statistics.median(gaps):.1f} ms a token, 9 of 10 within "
              f"{gaps[len(gaps) * 9 // 10]:.1f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8750")
    parser.add_argument("--model", required=True)
    parser.add_argument("--words", type=int, default=2000, help="of a prompt")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    server = Server(args.url, args.model)
    server.first_token("1 2 3")
    turns(server, args.words, args.rounds)
    beside(server, args.words)


if __name__ == "__main__":
    main()
