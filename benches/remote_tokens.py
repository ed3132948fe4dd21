#!/usr/bin/env python3
"""What two daemons cost beside a token: a client asks one node, and another one owns the model.

Counts the time on a CPU of both daemons and of the worker (`/proc/*/task/*/schedstat`) while one
stream runs, and several at once. Prints microseconds a token, and the daemons' part of the whole.

    sinew dev synth --shape llama-150m --quant q4_0 -o 150m-q4_0.gguf
    python3 benches/remote_tokens.py -m 150m-q4_0.gguf -r 5
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time

import harness

TOKENS = 400
PORTS = [(18751, 18750), (18761, 18760)]


def cpu_us(pid):
    """Of all threads that live."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e3


def ask(tokens):
    connection = http.client.HTTPConnection("127.0.0.1", PORTS[1][1])
    body = {"model": "slow", "prompt": "Number 1:", "max_tokens": tokens, "temperature": 1.0,
            "seed": 1, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    connection.getresponse().read()


def measure(pids, streams):
    """Microseconds a token of the owner's daemon, the client's and the worker."""
    before = [cpu_us(pid) for pid in pids]
    threads = [threading.Thread(target=ask, args=(TOKENS // streams,)) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [(cpu_us(pid) - was) / TOKENS for pid, was in zip(pids, before)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True, help="a GGUF file")
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("--sinew", default="target/release/sinew", help="the program")
    asked = parser.parse_args()
    harness.require_sinew(asked.sinew)
    nodes = []
    with tempfile.TemporaryDirectory() as work:
        def run(at, *words):
            command = [asked.sinew, *words, "--data-dir", f"{work}/{at}"]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout

        try:
            for at, (listen, api) in enumerate(PORTS):
                os.makedirs(f"{work}/{at}/models")
                if at == 0:
                    os.symlink(os.path.abspath(asked.model), f"{work}/0/models/slow.gguf")
                nodes.append(subprocess.Popen(
                    [asked.sinew, "up", "--name", "ab"[at], "--data-dir", f"{work}/{at}",
                     "--listen", f"127.0.0.1:{listen}", "--api", f"127.0.0.1:{api}",
                     "--threads", "1", "--memory", "2GiB"],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            time.sleep(3)
            run(1, "join", json.loads(run(0, "invite", "--json"))["code"])
            run(0, "serve", "slow", "--ctx", "1024", "--nodes", "1")
            worker = json.loads(run(0, "ps", "--json"))[0]["ranks"][0]["pid"]
            pids = [node.pid for node in nodes] + [worker]
            ask(30)
            print("| streams | owner's daemon, us | client's daemon, us | worker, us | daemons |")
            print("|---|---|---|---|---|")
            for streams in (1, 8):
                rounds = [measure(pids, streams) for _ in range(asked.rounds)]
                owner, client, worker_us = (statistics.median(one) for one in zip(*rounds))
                share = (owner + client) / (owner + client + worker_us) * 100
                print(f"| {streams} | {owner:.0f} | {client:.0f} | {worker_us:.0f} "
                      f"| {share:.1f} % |", flush=True)
        finally:
            for node in nodes:
                node.terminate()
            for node in nodes:
                node.wait()


if __name__ == "__main__":
    main()
