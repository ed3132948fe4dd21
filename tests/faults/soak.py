"""Requests and idle gaps for some minutes: whether memory, open files and threads of any process
grow, and whether the first request after a gap takes longer than others."""

import os
import statistics
import time

import pressure
from cluster import Stream

GAP_S = 20
BUSY_S = 10
PROMPTS = 8


def sample(pid):
    """Resident MiB, open files and threads of a process."""
    try:
        return (pressure.resident(pid) / 2**20, len(os.listdir(f"/proc/{pid}/fd")),
                len(os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return None


def processes(bench):
    named = {}
    for node in bench.cluster.nodes:
        named[f"daemon {node.name}"] = node.process.pid
        for at, pid in enumerate(node.workers()):
            named[f"worker {node.name}{at}"] = pid
    return named


def ask(bench, outcomes):
    """One answer on any node; its seconds to the first token."""
    number = bench.random.randrange(PROMPTS)
    begun = time.monotonic()
    stream = Stream(bench.random.choice(bench.cluster.nodes), bench.body(number, 60))
    outcomes.append(stream.outcome(bench.whole(number, 60)))
    return stream.times[0] - begun if stream.times else 90.0


def measure(bench, minutes):
    """The rows of a table."""
    outcomes, first, others = [], [], []
    for number in range(PROMPTS):
        bench.whole(number, 60)
    end = time.monotonic() + minutes * 60
    before, begun = None, None
    while time.monotonic() < end:
        busy_until = time.monotonic() + BUSY_S
        first.append(ask(bench, outcomes))
        while time.monotonic() < busy_until:
            others.append(ask(bench, outcomes))
        time.sleep(GAP_S)
        # What the first minute fills (caches, pools) is no growth.
        if before is None and time.monotonic() > end - minutes * 60 + 60:
            before = {name: sample(pid) for name, pid in processes(bench).items()}
            begun = time.monotonic()
    after = {name: sample(pid) for name, pid in processes(bench).items()}
    hours = (time.monotonic() - begun) / 3600
    right = outcomes.count("right")
    rows = [f"{len(outcomes)} answers, {right} right; first token after a gap of {GAP_S} s "
            f"{statistics.median(first) * 1e3:.0f} ms (median), else "
            f"{statistics.median(others) * 1e3:.0f} ms; {hours * 60:.0f} minutes after the first",
            "| process | resident MiB | open files | threads |", "|---|---|---|---|"]
    for name, was in before.items():
        now = after.get(name)
        cells = [f"{a:.1f} -> {b:.1f}" if isinstance(a, float) else f"{a} -> {b}"
                 for a, b in zip(was, now)] if was and now else ["gone"] * 3
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return rows
