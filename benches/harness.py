"""What the comparisons share: the CPUs that both sides get, their processes, and their results."""

import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys

import table

RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results")


def require(path, advice):
    """Ends the script unless `path` is a file, or a command that the shell would find."""
    if not os.path.isfile(path) and not shutil.which(path):
        sys.exit(f"{path} is not there. {advice}")


def first_cpus(count):
    """The first CPUs that this process may use; None where there is no pinning."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < count:
        sys.exit(f"{count} threads on {len(allowed)} CPUs measure nothing; ask for fewer")
    return allowed[:count]


def pin(cpus):
    """What a new process does first to stay on its CPUs."""
    return cpus and (lambda: os.sched_setaffinity(0, cpus))


def output(command, cpus):
    """Runs a command on its CPUs and returns what it printed."""
    command = [str(part) for part in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, preexec_fn=pin(cpus), text=True)
    if done.returncode != 0:
        sys.exit(f"this ended with {done.returncode}, its errors are above: {' '.join(command)}")
    return done.stdout


def child(command, cpus):
    """Runs a command on its CPUs and returns what it printed as JSON."""
    return json.loads(output(command, cpus))


def require_sinew(binary):
    require(binary, "Try: cargo build --release -p sinew, or name another with --sinew")


def sinew(binary, cpus, options):
    """Tokens per second of one test of `sinew bench model`, after a run that does not count."""
    rows = child([binary, "bench", "model", *options, "-o", "json"], cpus)
    return rows[0]["median_ts"]


def weight_bytes(binary, model):
    """Bytes of a model's weights, as `sinew bench model` gives them."""
    options = ["-m", model, "-p", 1, "-n", 0, "-r", 1, "-o", "json"]
    return child([binary, "bench", "model", *options], None)[0]["model_size"]


def read_rate(bench, cpus, threads):
    """Bytes per second of a plain read of memory, by the kernels' example `bench`."""
    found = re.search(r"/ +([0-9.]+) GB/s", output([bench, threads, "read"], cpus))
    return float(found[1]) * 1e9


def sinew_version(binary):
    done = subprocess.run([binary, "--version"], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def machine():
    """The processor by name, as far as this system tells."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def add_out(parser):
    name = os.path.basename(sys.argv[0]).removesuffix(".py")
    now = datetime.datetime.now().strftime("%Y-%m-%d-%H%M%S")
    path = os.path.join(RESULTS, f"{name}-{now}.json")
    parser.add_argument("--out", default=path, help="where all single runs go; benches/results/")


class Results:
    """The rows of a comparison: each is printed once it is measured, and kept with its single runs."""

    def __init__(self, path, sinew, rival):
        self.path = path
        self.run = {"sinew": sinew, "rival": rival, "machine": machine(), "rows": []}
        self.run["command"] = sys.argv
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        print(f"{sinew}; {rival}; {self.run['machine']}; medians, lowest and highest beside them")
        print(f"all runs: {path}\n\n{table.HEAD}", flush=True)

    def add(self, model, test, threads, samples, reads=(), token_bytes=0):
        """`samples`: side -> tokens per second of each round; `reads`: bytes per second."""
        row = {"file": os.path.basename(model), "test": test, "threads": threads}
        row.update(samples=samples, reads=list(reads), token_bytes=token_bytes)
        self.run["rows"].append(row)
        with open(self.path, "w") as out:
            json.dump(self.run, out, indent=1)
        print("\n".join(table.lines(row)), flush=True)
