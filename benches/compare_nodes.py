#!/usr/bin/env python3
"""Sinew on several nodes of this machine beside one node: the same GGUF, one thread a node.

Each round measures one node and then each wire, alternately, with a plain read of memory
by all of their cores in front. Prints a markdown table of medians, and keeps all single runs in a file.

    python3 benches/compare_nodes.py -m model.gguf -p 512 -n 32 -r 5
"""

import argparse

import harness
from harness import first_cpus


def words(text):
    return text.split(",")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", action="append", required=True, help="a .gguf; repeatable")
    parser.add_argument("-p", "--n-prompt", type=int, default=512, help="0 leaves prefill out")
    parser.add_argument("-n", "--n-gen", type=int, default=32, help="0 leaves decode out")
    parser.add_argument("-r", "--rounds", type=int, default=5, help="medians are of this many")
    parser.add_argument("--runs", type=int, default=2, help="runs within a process, as one sample")
    parser.add_argument("--nodes", type=int, default=2, help="each has a CPU of its own")
    parser.add_argument("--strategy", default="tensor", help="how the model is split")
    parser.add_argument("--transports", type=words, default=["tcp", "shm"], help="such as tcp,shm")
    parser.add_argument("--sinew", default="target/release/sinew", help="the binary to measure")
    parser.add_argument("--read", metavar="BENCH", help="the kernels' example bench, for decode")
    harness.add_out(parser)
    return parser.parse_args()


def measure(args, model, prompt, generate):
    """Tokens per second of each side, round by round, and bytes per second that all cores read."""
    test = ["-m", model, "-t", 1, "-p", prompt, "-n", generate, "-r", args.runs]
    split = ["--local-nodes", args.nodes, "--strategy", args.strategy, "--transport"]
    sides = {f"Sinew, {args.strategy}, {wire}": [*split, wire] for wire in args.transports}
    samples, reads = {side: [] for side in ["one node", *sides]}, []
    for _ in range(args.rounds):
        if args.read and generate:
            reads.append(harness.read_rate(args.read, first_cpus(args.nodes), args.nodes))
        samples["one node"].append(harness.sinew(args.sinew, first_cpus(1), test))
        for side, options in sides.items():
            rate = harness.sinew(args.sinew, first_cpus(args.nodes), [*test, *options])
            samples[side].append(rate)
    return samples, reads


def main():
    args = arguments()
    harness.require_sinew(args.sinew)
    results = harness.Results(args.out, harness.sinew_version(args.sinew), "one node of the same")
    for model in args.model:
        token_bytes = args.read and harness.weight_bytes(args.sinew, model)
        for prompt, generate in [(args.n_prompt, 0), (0, args.n_gen)]:
            if prompt + generate > 0:
                name = f"pp{prompt}" if prompt else f"tg{generate}"
                samples, reads = measure(args, model, prompt, generate)
                results.add(model, f"{name}, {args.nodes} nodes", 1, samples, reads, token_bytes)


if __name__ == "__main__":
    main()
