#!/usr/bin/env python3
"""What other work on a machine costs: decode beside 0, 1 and 2 busy loops.

Two nodes of one core each, over shared memory and TCP, beside one node with two threads, of one
GGUF on the same two cores, to which the loops are held as well. The ways alternate in each round, so
that a machine that slows down slows all of them. Prints a markdown table of medians and the ratio
to one node under the same load.

    python3 benches/busy_machine.py -m 150m-q4_0.gguf -n 96 -r 5
"""

import argparse
import contextlib
import statistics
import subprocess
import sys

import harness

TWO = ["-t", 1, "--local-nodes", 2, "--strategy", "tensor", "--transport"]
WAYS = {"one node, two threads": ["-t", 2], "two nodes, shm": TWO + ["shm"], "two nodes, tcp": TWO + ["tcp"]}

LOOP = [sys.executable, "-c", "while True: pass"]


@contextlib.contextmanager
def busy_loops(count, cpus):
    loops = [subprocess.Popen(LOOP, preexec_fn=harness.pin(cpus)) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True, help="a GGUF file")
    parser.add_argument("-n", "--tokens", type=int, default=96, help="tokens of one run")
    parser.add_argument("-r", "--rounds", type=int, default=5, help="runs of each way and load")
    parser.add_argument("--sinew", default="target/release/sinew", help="the program")
    asked = parser.parse_args()
    harness.require_sinew(asked.sinew)
    cpus = harness.first_cpus(2)
    print(f"{harness.sinew_version(asked.sinew)}; {harness.machine()}; medians of {asked.rounds}")
    print("| busy loops | " + " | ".join(WAYS) + " |\n|" + "---|" * (len(WAYS) + 1), flush=True)
    for count in range(3):
        runs = {way: [] for way in WAYS}
        with busy_loops(count, cpus):
            for _ in range(asked.rounds):
                for way, options in WAYS.items():
                    options = ["-m", asked.model, "-p", 0, "-n", asked.tokens, "-r", 1, *options]
                    runs[way].append(harness.sinew(asked.sinew, cpus, options))
        medians = [statistics.median(samples) for samples in runs.values()]
        cells = [f"{median:.0f} ({median / medians[0]:.2f}x)" for median in medians]
        print(f"| {count} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
