"""What the comparisons share: the CPUs that both sides get, their processes, and the figures."""

import json
import os
import re
import shutil
import subprocess
import sys


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


def spread(rates):
    return f"{min(rates):.1f}-{max(rates):.1f}"
