"""Processes killed while prompts go to disk and come from there: every answer must be the one without
a fault."""

import time

from cluster import Stream, kill, until
from faults import MODEL

# Of the 1024 tokens that the model is served with.
WORDS = 240
TOKENS = 8
# A prompt is written within a second after its answer.
WRITTEN_S = 1.5
REPORT_S = 2.5


def ask(bench, number):
    text = f"Text {number}: " + " ".join(f"{(number * 7 + at * at) % 97}" for at in range(WORDS))
    body = {"model": MODEL, "prompt": text, "temperature": 0, "max_tokens": TOKENS}
    return Stream(bench.random.choice(bench.cluster.nodes), body)


def kill_something(bench, seconds):
    """A daemon or one of its workers, within so many seconds."""
    time.sleep(bench.random.uniform(0, seconds))
    node = bench.random.choice(bench.cluster.nodes)
    pid = bench.random.choice(node.processes())
    if pid == node.process.pid:
        node.kill()
    else:
        kill(pid)


def has_read(bench):
    """Whether the model's processes have read prompts from disk; they report each second."""
    def is_reported():
        stats = bench.owner().instance(MODEL).get("stats") or {}
        return (stats.get("prompts") or {}).get("loaded_tokens", 0) > 0
    try:
        return bool(until("a report", REPORT_S, is_reported))
    except TimeoutError:
        return False


def while_written(bench, number):
    """The answer before, and those that must be the same."""
    first = ask(bench, number)
    first.join(120)
    kill_something(bench, 0.5)
    bench.mend()
    return first, [ask(bench, number)]


def while_read(bench, number):
    first = ask(bench, number)
    first.join(120)
    time.sleep(WRITTEN_S)
    for node in bench.cluster.nodes:
        for pid in node.workers():
            kill(pid)
    bench.mend()
    again = ask(bench, number)
    kill_something(bench, 0.3)
    again.join(120)
    bench.mend()
    return first, [again, ask(bench, number)]


def measure(bench, kills):
    """The rows of a table. The last column counts the kills after which the processes that then ran had
    read prompts from disk, for any answer."""
    rows, number = ["| killed while | kills | right | others | processes that read from disk |",
                    "|---|---|---|---|---|"], 0
    for name, act in [("written", while_written), ("read", while_read)]:
        outcomes, found = [], 0
        for _ in range(kills):
            number += 1
            first, others = act(bench, number)
            if first.error or first.cut:
                raise RuntimeError(f"no answer without a fault: {first.error}")
            outcomes += [one.outcome(first) for one in others]
            found += has_read(bench)
        counts = {one: outcomes.count(one) for one in sorted(set(outcomes))}
        right = counts.pop("right", 0)
        rows.append(f"| {name} | {kills} | {right} of {len(outcomes)} | {counts or ''} | {found} |")
        print(rows[-1], flush=True)
    return rows
