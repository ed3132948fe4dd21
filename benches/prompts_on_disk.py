#!/usr/bin/env python3
"""How soon the first token of a prompt comes that another process has computed before.

Serves a model on one node, asks a prompt of random tokens twice, waits until it is on disk, kills the
node and asks again, three times. Prints the seconds, and the seconds that reading the same files takes
at their plain rate: with O_DIRECT, 16 threads at once, in the same run.

With --beside: what writing costs an answer that is computed meanwhile.

    python3 benches/prompts_on_disk.py -m 1b-q4_0.gguf -n 16000
"""

import argparse
import concurrent.futures
import json
import mmap
import os
import shutil
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

API = "127.0.0.1:18850"
PIECE = 1 << 20


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-n", "--tokens", type=int, default=16000)
    parser.add_argument("--sinew", default="target/release/sinew")
    parser.add_argument("--dir", help="a folder on the disk to be measured")
    parser.add_argument("--beside", action="store_true")
    args = parser.parse_args()
    folder = tempfile.mkdtemp(dir=args.dir)
    try:
        beside(args, folder) if args.beside else measure(args, folder)
    finally:
        shutil.rmtree(folder)


def measure(args, folder):
    node = up(args, folder)
    serve = [args.sinew, "serve", args.model, "--name", "m", "--ctx", str(args.tokens + 64)]
    subprocess.run([*serve, "--data-dir", folder], check=True, stdout=subprocess.DEVNULL)
    cold, first = ask(args.tokens)
    warm, _ = ask(args.tokens)
    print(f"{args.tokens} tokens: computed in {cold:.2f} s, from memory in {warm:.2f} s")
    written = -1
    while written != (stats := instance(args, folder)["stats"]["prompts"])["written_bytes"]:
        written = stats["written_bytes"]
        time.sleep(1.5)
    rate = plain_rate(os.path.join(folder, "prompts"))
    bound = 1.25 * written / rate + 0.2
    print(f"{written / 1e6:.0f} MB on disk, plain rate {rate / 1e9:.2f} GB/s, bound {bound:.2f} s")
    for _ in range(3):
        node.kill()
        node.wait()
        node = up(args, folder)
        instance(args, folder)
        time.sleep(2)
        again, answer = ask(args.tokens)
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        same = "same" if text(answer) == text(first) else "ANOTHER"
        print(f"after kill -9: {again:.2f} s, {cold / again:.0f} times sooner, "
              f"{cached} tokens from disk, {same} answer")
    node.kill()
    node.wait()


def beside(args, folder):
    """An answer of 256 tokens beside ten new prompts of 1,000, with and without a disk for prompts, in
    turn: the seconds of both, of which the median counts."""
    found = {"off": [], "8GiB": []}
    for run in range(10):
        kept = list(found)[run % 2]
        node = up(args, folder, kept)
        if run == 0:
            serve = [args.sinew, "serve", args.model, "--name", "m", "--ctx", "2048", "--data-dir", folder]
            subprocess.run(serve, check=True, stdout=subprocess.DEVNULL)
        instance(args, folder)
        ask(64)
        start = time.time()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            answer = pool.submit(ask, 16, 256)
            for prompt in range(10):
                ask(1000, 1, 1000 * run + prompt + 1)
            answer.result()
        found[kept].append(time.time() - start)
        stats = instance(args, folder)["stats"]["prompts"] or {"written_bytes": 0}
        print(f"{kept}: {found[kept][-1]:.2f} s, {stats['written_bytes'] / 1e6:.0f} MB written")
        node.kill()
        node.wait()
    off, on = (statistics.median(times) for times in found.values())
    print(f"with a disk for prompts {on / off:.3f} of the time without")


def up(args, folder, kept="8GiB"):
    command = [args.sinew, "up", "--data-dir", folder, "--api", API, "--listen", "127.0.0.1:0"]
    node = subprocess.Popen([*command, "--prompt-cache", kept], stdout=subprocess.DEVNULL)
    while True:
        try:
            urllib.request.urlopen(f"http://{API}/health")
            return node
        except urllib.error.HTTPError:
            return node
        except OSError:
            time.sleep(0.1)


def instance(args, folder):
    while True:
        command = [args.sinew, "ps", "--json", "--data-dir", folder]
        found = json.loads(subprocess.run(command, capture_output=True).stdout or "[]")
        if found and found[0]["state"]["state"] == "ready":
            return found[0]
        time.sleep(0.1)


def ask(tokens, answer=1, seed=0):
    prompt = [((at + seed) * 7919) % 30000 + 100 for at in range(tokens)]
    body = {"model": "m", "temperature": 0, "max_tokens": answer, "ignore_eos": True, "prompt": prompt}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(
        f"http://{API}/v1/completions", json.dumps(body).encode(), headers)
    start = time.time()
    answer = json.load(urllib.request.urlopen(request))
    return time.time() - start, answer


def text(answer):
    return answer["choices"][0]["text"]


def plain_rate(folder):
    """Bytes per second of all files with O_DIRECT, 16 pieces of a mebibyte at once."""
    names = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names]
    pieces = []
    for name in names:
        file = os.open(name, os.O_RDONLY | os.O_DIRECT)
        pieces += [(file, at) for at in range(0, os.path.getsize(name), PIECE)]

    def read(piece):
        file, at = piece
        return os.preadv(file, [mmap.mmap(-1, PIECE)], at)

    start = time.time()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        total = sum(pool.map(read, pieces))
    return total / (time.time() - start)


if __name__ == "__main__":
    main()
