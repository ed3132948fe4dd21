#!/usr/bin/env python3
"""`sinew serve` beside `llama-server`: the same GGUF, CPUs, client and requests.

Each row is a load: streams at once, tokens of a prompt, tokens of an answer. Both servers stay up
for a row, and `sinew bench serve` asks one after the other, a round each, after a round that does not
count; the servers' threads and the client share the same CPUs. Every round has prompts of its own,
but in rows named "cached", where each side answers the same prompts again. Sinew guesses no tokens
ahead (random weights repeat themselves, which would flatter). Prints a markdown table of output tokens
per second, all streams together, and keeps all single runs in a file.

    python3 benches/compare_llama_server.py --llama llama.cpp/build/bin -m model.gguf -r 3
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import harness
from compare_llama_rpc import end, free_port
from harness import child, first_cpus, pin, require

# What a server may take to be ready, seconds.
START_MAX = 120
# Streams at once, requests of a round, tokens of a prompt and of an answer, whether prompts are cached.
LOADS = {
    "8 streams, 32 in, 128 out": (8, 16, 32, 128, False),
    "8 streams, 250 in, 128 out": (8, 16, 250, 128, False),
    "8 streams, 250 in cached, 128 out": (8, 16, 250, 128, True),
    "32 streams, 32 in, 128 out": (32, 32, 32, 128, False),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama", required=True, help="folder of llama-server")
    parser.add_argument("-m", "--model", action="append", required=True, help="a .gguf; repeatable")
    parser.add_argument("-t", "--threads", type=int, default=2, help="of each side, on CPUs of their own")
    parser.add_argument("-r", "--rounds", type=int, default=3, help="medians are of this many")
    parser.add_argument("--loads", default="", help="only rows whose names begin so, such as 32")
    parser.add_argument("--sinew", default="target/release/sinew", help="the binary to measure")
    harness.add_out(parser)
    return parser.parse_args()


def start(command, cpus, ready, stack):
    """Starts a server and returns once `ready` answers 200; `stack` ends it."""
    log = stack.enter_context(tempfile.TemporaryFile("w+"))
    command = [str(part) for part in command]
    process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=pin(cpus))
    stack.callback(end, process)
    deadline = time.monotonic() + START_MAX
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            if urllib.request.urlopen(ready, timeout=5).status == 200:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            log.seek(0)
            sys.exit(f"{' '.join(command)} is not ready. It wrote:\n{log.read()[-2000:]}")
        time.sleep(0.1)


def llama_server(args, model, streams, context, cpus, stack):
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [os.path.join(args.llama, "llama-server"), "-m", model, "--port", port, "-t", args.threads]
    command += ["-np", streams, "-c", streams * context, "--no-ui"]
    start(command, cpus, f"{url}/health", stack)
    return url


def sinew(args, model, streams, context, cpus, stack):
    url = f"http://127.0.0.1:{(port := free_port())}"
    data = ["--data-dir", stack.enter_context(tempfile.TemporaryDirectory())]
    command = [args.sinew, "up", *data, "--api", f"127.0.0.1:{port}", "--listen", "127.0.0.1:0"]
    start([*command, "--threads", args.threads], cpus, f"{url}/health", stack)
    command = [args.sinew, "serve", model, *data, "--parallel", streams, "--ctx", context]
    harness.output([*command, "--speculation", "off"], cpus)
    return url


def ask(args, url, load, seed, cpus):
    """Output tokens per second of one round."""
    streams, requests, prompt, answer, _ = load
    command = [args.sinew, "bench", "serve", "--url", url, "--endpoint", "completions", "--json"]
    command += ["--requests", requests, "--concurrency", streams, "--seed", seed, "--warmup", 0]
    command += ["--input-tokens", prompt, "--output-tokens", answer]
    report = child(command, cpus)
    if report["failed"]:
        sys.exit(f"{report['failed']} of {requests} requests failed at {url}")
    return report["output_throughput"]


def measure(args, model, load, cpus):
    """Tokens per second of each side, round by round."""
    streams, _, _, _, is_cached = load
    context = 1024
    samples = {"Sinew": [], "llama-server": []}
    with contextlib.ExitStack() as stack:
        servers = [sinew, llama_server]
        urls = [start(args, model, streams, context, cpus, stack) for start in servers]
        for round_ in range(args.rounds + 1):
            for url, rates in zip(urls, samples.values()):
                rates.append(ask(args, url, load, 1 if is_cached else 1 + round_, cpus))
    return {side: rates[1:] for side, rates in samples.items()}


def main():
    args = arguments()
    require(os.path.join(args.llama, "llama-server"), "benches/README.md says how to build llama.cpp")
    harness.require_sinew(args.sinew)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    version = f"llama-server of {args.llama}"
    results = harness.Results(args.out, harness.sinew_version(args.sinew), version)
    for model in args.model:
        require(model, "Try: sinew dev synth --shape llama-3.2-1b --quant q4_0 -o FILE")
        for name, load in LOADS.items():
            if name.startswith(args.loads):
                samples = measure(args, model, load, first_cpus(args.threads))
                results.add(model, name, args.threads, samples)


if __name__ == "__main__":
    main()
