#!/usr/bin/env python3
"""Sinew on several nodes beside llama.cpp over RPC: the same GGUF and CPUs, one core a node.

Starts one RPC server of llama.cpp a node on loopback, each pinned to a CPU of its own with one
thread, and measures decode with llama-bench, by layers and by tensors, with both attention modes
where the split knows both. Sinew splits by tensors on the same CPUs, one thread a node. The sides
alternate, so that a machine that slows down slows both. llama-bench may use all of the CPUs. Prints
a markdown table of medians and their ratio to the best of llama.cpp, and keeps all single runs in a
file.

    python3 benches/compare_llama_rpc.py --llama llama.cpp/build/bin -m model.gguf -n 32 -r 3
"""

import argparse
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import harness
from harness import child, first_cpus, pin, require

# What a server may take to answer, seconds.
START_MAX = 30
# The attention modes that llama.cpp has for a split: by tensors it needs flash attention.
ATTENTION = {"layer": ["on", "off"], "tensor": ["on"]}
BUILD = "benches/README.md says how to build llama.cpp with RPC"


def words(text):
    return text.split(",")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama", required=True, help="folder of llama-bench and ggml-rpc-server")
    parser.add_argument("-m", "--model", action="append", required=True, help="a .gguf; repeatable")
    parser.add_argument("-n", "--n-gen", type=int, default=32, help="tokens of decode")
    parser.add_argument("-r", "--rounds", type=int, default=3, help="medians are of this many")
    parser.add_argument("--runs", type=int, default=3, help="runs within a process, as one sample")
    parser.add_argument("--nodes", type=int, default=2, help="each has a CPU of its own")
    parser.add_argument("--transports", type=words, default=["tcp", "shm"], help="of Sinew")
    parser.add_argument("--sinew", default="target/release/sinew", help="the binary to measure")
    harness.add_out(parser)
    return parser.parse_args()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


def end(process):
    """Ends a server that we started, and waits for it."""
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def serve(binary, cpus, stack):
    """Starts a server and returns its address once it answers; `stack` ends it."""
    port = free_port()
    log = stack.enter_context(tempfile.TemporaryFile("w+"))
    command = [binary, "-H", "127.0.0.1", "-p", str(port), "-t", "1"]
    process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=pin(cpus))
    stack.callback(end, process)
    deadline = time.monotonic() + START_MAX
    while not answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            log.seek(0)
            code = process.poll()
            state = f"answers nothing after {START_MAX} s" if code is None else f"ended with {code}"
            sys.exit(f"{' '.join(command)} {state}. It wrote:\n{log.read()[-2000:]}")
        time.sleep(0.05)
    return f"127.0.0.1:{port}"


def llama_bench(args, model, servers, cpus, split):
    """Tokens per second of a split, by attention mode, after a run that does not count."""
    command = [os.path.join(args.llama, "llama-bench"), "-m", model, "--rpc", ",".join(servers)]
    command += ["-ngl", 99, "-sm", split, "-fa", ",".join(ATTENTION[split]), "-t", 1]
    command += ["-p", 0, "-n", args.n_gen, "-r", args.runs, "-o", "json"]
    rows = child(command, cpus)
    return [statistics.median(row["samples_ts"]) for row in rows]


def sinew(args, model, cpus, transport):
    options = ["-m", model, "--local-nodes", args.nodes, "-t", 1, "--transport", transport]
    options += ["--strategy", "tensor", "-p", 0, "-n", args.n_gen, "-r", args.runs]
    return harness.sinew(args.sinew, cpus, options)


def measure(args, model, servers, cpus):
    """Tokens per second of each side, round by round."""
    name = "llama.cpp RPC, {}, flash {}".format
    theirs = {name(split, mode): [] for split, modes in ATTENTION.items() for mode in modes}
    ours = {f"Sinew, tensor, {transport}": [] for transport in args.transports}
    for _ in range(args.rounds):
        for split, modes in ATTENTION.items():
            for mode, rate in zip(modes, llama_bench(args, model, servers, cpus, split)):
                theirs[name(split, mode)].append(rate)
        for transport, rates in zip(args.transports, ours.values()):
            rates.append(sinew(args, model, cpus, transport))
    return {**ours, **theirs}


def main():
    args = arguments()
    server = os.path.join(args.llama, "ggml-rpc-server")
    require(server, BUILD)
    require(os.path.join(args.llama, "llama-bench"), BUILD)
    harness.require_sinew(args.sinew)
    for model in args.model:
        require(model, "Try: sinew dev synth --shape llama-3.2-1b --quant q4_0 -o FILE")
    cpus = first_cpus(args.nodes)
    # So that the servers are ended as well when the script is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    with contextlib.ExitStack() as stack:
        own = [[cpu] for cpu in cpus] if cpus else [None] * args.nodes
        servers = [serve(server, cpu, stack) for cpu in own]
        version = f"llama.cpp of {args.llama}"
        results = harness.Results(args.out, harness.sinew_version(args.sinew), version)
        for model in args.model:
            samples = measure(args, model, servers, cpus)
            results.add(model, f"tg{args.n_gen}, {args.nodes} nodes", 1, samples)


if __name__ == "__main__":
    main()
