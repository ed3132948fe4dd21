#!/usr/bin/env python3
"""Measures file types, mixtures, depths and nodes beside llama.cpp, and prints tables: some hours.

    cargo build --release -p sinew && cargo build --release -p kernels --example bench
    python3 benches/performance.py --llama llama.cpp/build/bin

Models are made in benches/results/models, and each comparison leaves its single runs in
benches/results. `--llama` is the folder of llama.cpp's RPC servers; without it that part is left out.
"""

import argparse
import os
import subprocess
import sys

import harness

HERE = os.path.dirname(os.path.abspath(__file__))
# Name: what `sinew dev synth` is told, and how much of the file a token reads, if not all.
MODELS = {
    "1b-q4_0": ("llama-3.2-1b", "q4_0", []),
    "1b-q4_k_m": ("llama-3.2-1b", "q4_k_m", []),
    "1b-q8_0": ("llama-3.2-1b", "q8_0", []),
    "moe-q4_0": ("qwen3-moe", "q4_0", ["--token-bytes", 470_000_000]),
    "150m-q4_0": ("150m", "q4_0", []),
}
BESIDE_LLAMA_CPP = ["1b-q4_0", "1b-q4_k_m", "1b-q8_0", "moe-q4_0"]
ON_TWO_NODES = ["1b-q4_0", "150m-q4_0", "moe-q4_0"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama", help="folder of llama-bench and ggml-rpc-server")
    parser.add_argument("--sinew", default="target/release/sinew", help="the binary to measure")
    parser.add_argument("--read", default="target/release/examples/bench", help="the kernels' bench")
    parser.add_argument("-r", "--rounds", type=int, default=5, help="medians are of this many")
    return parser.parse_args()


def file(args, name):
    """The model's file, made if it is not there."""
    path = os.path.join(harness.RESULTS, "models", f"{name}.gguf")
    if not os.path.isfile(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shape, quant, _ = MODELS[name]
        command = [args.sinew, "dev", "synth", "--shape", shape, "--quant", quant, "-o", path]
        subprocess.run(command, check=True)
    return path


def comparisons(args):
    """Each comparison: script, models and options."""
    two, sinew = ["-t", "1,2"], ["--sinew", args.sinew]
    read = [*sinew, "--read", args.read]
    for name in BESIDE_LLAMA_CPP:
        yield "compare_llama_cpp", [name], [*read, *two, *MODELS[name][2], "-r", args.rounds]
    # Filling a context takes long: once a side, which the page says.
    deep = [*two, "-n", 16, "-d", 4096, "-r", 1, "--runs", 3]
    yield "compare_llama_cpp", ["1b-q4_0"], [*read, *deep]
    yield "compare_nodes", ON_TWO_NODES, [*read, "-r", args.rounds]
    pipeline = ["-n", 0, "-r", args.rounds, "--strategy", "pipeline", "--transports", "tcp"]
    yield "compare_nodes", ["1b-q4_0"], [*sinew, *pipeline]
    if args.llama:
        rpc = [*sinew, "--llama", args.llama, "-r", args.rounds, "--runs", 1]
        yield "compare_llama_rpc", ["1b-q4_0", "150m-q4_0"], rpc


def main():
    args = arguments()
    harness.require_sinew(args.sinew)
    harness.require(args.read, "Try: cargo build --release -p kernels --example bench")
    files = []
    for number, (script, names, options) in enumerate(comparisons(args)):
        files.append(os.path.join(harness.RESULTS, f"performance-{number}.json"))
        models = [part for name in names for part in ("-m", file(args, name))]
        command = [f"{HERE}/{script}.py", *models, *options, "--out", files[-1]]
        subprocess.run([sys.executable, *map(str, command)], check=True)
    print()
    subprocess.run([sys.executable, f"{HERE}/table.py", *files], check=True)


if __name__ == "__main__":
    main()
