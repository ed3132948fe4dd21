"""Faults, each put to a running cluster once: what became of the streams, and what was measured.

A fault is a generator function of a bench: it breaks something before its `yield`, and mends it
after, when the streams have ended. Figures are seconds unless their name says otherwise.
"""

import http.client
import os
import random
import shutil
import signal
import threading
import time

import kinds
import pressure
from cluster import Stream, is_alive, kill, until

MODEL = "slow"
LONG = 300


class Bench:
    """A cluster that serves a model, with answers to compare with."""

    def __init__(self, cluster, model_file, seed, nodes=None, more=(), kinds=(), spec=None):
        self.cluster, self.random = cluster, random.Random(seed)
        # Of the streams; plain completions if none is named.
        self.kinds = list(kinds)
        self.wholes, self.more, self.spec = {}, more, spec
        for node in cluster.nodes:
            os.makedirs(os.path.join(node.home, "models"), exist_ok=True)
            shutil.copy(model_file, os.path.join(node.home, "models", f"{MODEL}.gguf"))
        # Asked for, or a model as small as this one may be planned on fewer.
        self.nodes = spec["nodes"] if spec else nodes or len(cluster.nodes)
        self.serve(cluster.nodes[0])

    def serve(self, node):
        # The nodes share a machine, whose memory a pulled cable would not cut.
        if self.spec:
            shared = {"model": MODEL, "context_tokens": 1024, "transport": "tcp"}
            return node.serve({**shared, **self.spec})
        options = ["--nodes", str(self.nodes), "--transport", "tcp", *self.more]
        node.run("serve", MODEL, "--ctx", "1024", *options)

    def body(self, number, tokens=LONG):
        return {"model": MODEL, "prompt": f"Number {number}:", "temperature": 1.0,
                "seed": number, "max_tokens": tokens}

    def kind(self, number):
        return self.kinds[number % len(self.kinds)] if self.kinds else "completion"

    def stream(self, node, number, tokens=LONG):
        """Begins the answer of that number."""
        if not self.kinds:
            return Stream(node, self.body(number, tokens))
        path, body = kinds.request(self.kind(number), number, MODEL)
        return Stream(node, body, path)

    def whole(self, number, tokens=LONG):
        """The answer without a fault."""
        key = (number, tokens)
        if key not in self.wholes:
            stream = self.stream(self.some_node(), number, tokens)
            stream.join(120)
            if stream.is_alive() or stream.error or stream.cut:
                raise RuntimeError(f"no answer without a fault: {stream.error}")
            self.wholes[key] = stream
        return self.wholes[key]

    def some_node(self):
        return next(node for node in self.cluster.nodes if node.is_up())

    def owner(self):
        instance = self.some_node().instance(MODEL)
        ids = {node["id"]: node["name"] for node in self.some_node().status()["nodes"]}
        return self.by_name(ids[instance["owner"]])

    def by_name(self, name):
        return next(node for node in self.cluster.nodes if node.name == name)

    def ranks(self):
        """The node and process of each rank."""
        ranks = self.owner().instance(MODEL)["ranks"]
        return [(self.by_name(rank["node_name"]), rank["pid"]) for rank in ranks]

    def follower(self):
        """A node that does not own the model; one with a rank if there is one."""
        owner = self.owner()
        others = [node for node, _ in self.ranks() if node is not owner]
        return others[0] if others else self.not_(owner)

    def not_(self, *nodes):
        return next(n for n in self.cluster.nodes if n not in nodes and n.is_up())

    def mend(self):
        """Starts what is down and waits until all is well."""
        for node in self.cluster.nodes:
            if not node.is_up():
                node.start()
        self.cluster.whole()
        self.ready()
        if len(self.ranks()) < self.nodes:
            self.some_node().run("stop", MODEL)
            self.serve(self.cluster.nodes[0])

    def begin_anew(self):
        """After a round that went wrong: all nodes are started again."""
        for node in self.cluster.nodes:
            node.plug_cable()
            node.stop()
            node.start()
        self.mend()

    def is_ready(self):
        return self.some_node().instance(MODEL)["state"]["state"] == "ready"

    def ready(self, seconds=120):
        """Waits until the model answers. What was given up is tried again when somebody asks."""
        asked = []

        def answers():
            state = (self.some_node().instance(MODEL) or {}).get("state", {}).get("state")
            if state == "failed" and (not asked or asked[-1].ended_at):
                time.sleep(1)
                asked.append(Stream(self.some_node(), self.body(0, 2)))
            return state == "ready"

        until("the model to be ready", seconds, answers)


class Splits(threading.Thread):
    """Looks which nodes have the ranks, in their order, and when that changes."""

    def __init__(self, bench):
        super().__init__(daemon=True)
        self.bench, self.seen, self.is_over, self.begun = bench, [], False, time.monotonic()
        self.start()

    def run(self):
        while not self.is_over:
            for node in self.bench.cluster.nodes:
                try:
                    ranks = node.instance(MODEL)["ranks"]
                except (OSError, http.client.HTTPException, TypeError, KeyError, ValueError):
                    continue
                names = " ".join(rank["node_name"] for rank in ranks)
                told = [split for by, _, split in self.seen if by == node.name]
                if names and told[-1:] != [names]:
                    self.seen.append((node.name, time.monotonic() - self.begun, names))
            time.sleep(0.2)

    def end(self):
        self.is_over = True
        self.join()
        return "; ".join(f"{names} by {by} at {at:.1f} s" for by, at, names in self.seen)


def lost_at(node, name, seconds=15):
    """When a node sees that another one is gone."""
    return until(f"{name} to be lost", seconds, lambda: node.node_states()[name] != "live")[1]


def kill_a_worker(bench):
    _, pid = bench.random.choice(bench.ranks())
    kill(pid)
    yield {}
    bench.ready()


def kill_the_owner(bench):
    owner = bench.owner()
    witness = bench.not_(owner)
    owner.kill()
    figures = {"seen": lost_at(witness, owner.name)}
    claimed = lambda: bench.owner() is not owner
    figures["taken over"] = until("a new owner", 20, claimed)[1]
    yield figures
    bench.mend()


def restart_the_owner(bench):
    """Its daemon dies and is started again at once, as by a service manager."""
    owner = bench.owner()
    owner.kill()
    owner.start()
    yield {}
    bench.mend()


def power_loss(bench):
    victim = bench.follower()
    witness = bench.not_(victim)
    victim.lose_power()
    yield {"seen": lost_at(witness, victim.name)}
    victim.plug_cable()
    bench.mend()


def freeze_2_s(bench):
    victim = bench.follower()
    epoch = bench.owner().instance(MODEL)["epoch"]
    victim.freeze()
    time.sleep(2)
    victim.thaw()
    evicted = any("lost" in node.node_states().values() for node in bench.cluster.nodes)
    yield {"evictions, count": int(evicted)}
    after = bench.owner().instance(MODEL)["epoch"]
    if after != epoch:
        print(f"    the epoch went from {epoch} to {after}")


def freeze_60_s(bench):
    victim = bench.follower()
    victim.freeze()
    seen = lost_at(bench.not_(victim), victim.name)
    time.sleep(60 - seen)
    victim.thaw()
    back = bench.cluster.whole(30)
    yield {"seen": seen, "rejoined": back}
    bench.mend()


def pull_a_cable(bench):
    victim = bench.follower()
    victim.pull_cable()
    yield {"seen": lost_at(bench.not_(victim), victim.name)}
    victim.plug_cable()
    bench.mend()


def one_way_loss(bench):
    """Nothing from the owner reaches a node with a rank; the other way, all does."""
    owner, other = bench.owner(), bench.follower()
    owner.deafen(other)
    seen = lost_at(other, owner.name)
    yield {"seen": seen}
    owner.hear_again(other)
    bench.mend()


def two_halves(bench):
    """The owner is alone on one side."""
    owner = bench.owner()
    owner.pull_cable()
    time.sleep(8)
    owner.plug_cable()
    _, healed = until("both to agree on one owner", 30, lambda: len({
        node.instance(MODEL)["owner"] for node in bench.cluster.nodes}) == 1)
    yield {"agreed after": healed}
    bench.mend()


def flapping_link(bench):
    victim = bench.follower()
    evictions, was = 0, "live"
    for _ in range(10):
        victim.pull_cable()
        time.sleep(1)
        victim.plug_cable()
        for _ in range(10):
            time.sleep(0.1)
            now = bench.not_(victim).node_states()[victim.name]
            evictions += now == "lost" != was
            was = now
    yield {"evictions, count": evictions}
    bench.mend()


def twice(bench):
    """Another process dies while the first loss is being mended."""
    ranks = bench.ranks()
    _, pid = bench.random.choice(ranks)
    kill(pid)
    time.sleep(bench.random.uniform(0, 1.5))
    owner = bench.owner()
    owner.kill()
    yield {}
    bench.mend()


def delete_the_file(bench):
    """The file goes away under the running model, and its owner's worker dies."""
    owner = bench.owner()
    path = os.path.join(owner.home, "models", f"{MODEL}.gguf")
    aside = os.path.join(bench.cluster.work, "aside.gguf")
    shutil.copy(path, aside)
    os.remove(path)
    time.sleep(0.3)
    yield {}
    shutil.copy(aside, path)
    bench.mend()


def client_leaves(bench):
    """How soon nothing is computed any more for a client that has gone."""
    stream = Stream(bench.not_(bench.owner()), bench.body(99, 800))
    stream.wait_for_tokens(5)
    stream.leave()
    idle = lambda: bench.owner().instance(MODEL)["requests_running"] == len(bench.running())
    yield {"freed": until("the request to end", 20, idle)[1]}


def worker_out_of_memory(bench):
    """The kernel ends workers for want of memory, again and again for half a minute."""
    kills, end = 0, time.monotonic() + 30
    daemons = [node.process.pid for node in bench.cluster.nodes]
    while time.monotonic() < end:
        pids = [pid for node in bench.cluster.nodes for pid in node.workers()]
        if pids:
            kill(bench.random.choice(pids))
            kills += 1
        time.sleep(2)
    alive = all(is_alive(pid) for pid in daemons)
    yield {"kills, count": kills, "daemons that died, count": int(not alive)}
    bench.mend()


def kill_anything(bench):
    """Any process of any node but the one where the clients are."""
    victims = [pid for node in bench.cluster.nodes[1:] for pid in node.processes()]
    victims += bench.cluster.nodes[0].workers()
    kill(bench.random.choice(victims), signal.SIGKILL)
    yield {}
    for node in bench.cluster.nodes:
        if node.process and not node.is_up():
            node.process.wait()
    bench.mend()


def followers_apart(bench):
    """Two nodes with ranks do not reach each other; the owner reaches both."""
    owner = bench.owner()
    one, other = [node for node in bench.cluster.nodes if node is not owner][:2]
    one.deafen(other)
    epoch = owner.instance(MODEL)["epoch"]
    goes_on = lambda: owner.instance(MODEL)["epoch"] > epoch and bench.is_ready()
    try:
        yield {"goes on": until("a placement without that link", 60, goes_on)[1]}
    finally:
        one.hear_again(other)
    bench.mend()


def out_of_memory_while_loading(bench):
    """The kernel does not give what another model would take; the first one answers meanwhile."""
    owner = bench.owner()
    path = os.path.join(owner.home, "models", "big.gguf")
    pressure.synth(bench.cluster.binary, "llama-3.2-1b", "q4_0", path)
    group = pressure.Group(owner)
    daemons = [node.process.pid for node in bench.cluster.nodes]
    held = sum(pressure.resident(pid) for pid in owner.processes())
    try:
        group.limit(held + (200 << 20))
        try:
            owner.run("serve", "big", "--nodes", "1", "--ctx", "1024")
            why = "it was loaded"
        except RuntimeError as error:
            why = str(error)
        print(f"    {why.strip()[-300:]}")
        alive = all(is_alive(pid) for pid in daemons)
        yield {"daemons that died, count": int(not alive),
               "loaded after all, count": int("signal 9" not in why)}
    finally:
        group.limit(1 << 40)
        group.remove()
        owner.run("stop", "big")
        os.remove(path)
    bench.mend()


def drain_a_node(bench):
    """A node is to be empty while answers run; it is used again after."""
    victim = bench.random.choice(bench.cluster.nodes[1:])
    begun = time.monotonic()
    bench.some_node().run("drain", victim.name)
    figures = {"empty": time.monotonic() - begun}
    assert not victim.workers(), "a worker is left"
    yield figures
    bench.some_node().run("undrain", victim.name)
    bench.mend()


# The fault's name, the fault, how many streams, and where their clients are: "any" node that
# lives on, or "first".
FAULTS = [
    ("`kill -9` of a worker", kill_a_worker, 4, "any"),
    ("`kill -9` of the owner's daemon", kill_the_owner, 4, "other"),
    ("the same, and it is started again at once", restart_the_owner, 4, "other"),
    ("power loss of a node with a rank", power_loss, 4, "owner"),
    ("a node with a rank frozen for 2 s", freeze_2_s, 4, "owner"),
    ("the same for 60 s", freeze_60_s, 4, "owner"),
    ("the cable of a node with a rank pulled", pull_a_cable, 4, "owner"),
    ("nothing passes from the owner to a rank, for good", one_way_loss, 4, "owner"),
    ("the owner cut off from all others for 8 s", two_halves, 4, "owner"),
    ("a link 1 s down, 1 s up, ten times", flapping_link, 4, "owner"),
    ("a worker killed every 2 s for 30 s", worker_out_of_memory, 2, "owner"),
    ("a client leaves in mid-answer", client_leaves, 2, "owner"),
    ("the model's file deleted under its owner", delete_the_file, 2, "owner"),
    ("two followers do not reach each other", followers_apart, 4, "owner"),
    ("the kernel has no memory for a second model", out_of_memory_while_loading, 4, "owner"),
    ("a node is drained under 16 streams", drain_a_node, 16, "first"),
    ("a worker, then the owner's daemon 0 to 1.5 s later", twice, 4, "other"),
    ("`kill -9` of any process, 16 streams", kill_anything, 16, "first"),
]
