"""What makes a model slow, put to two nodes that serve one: whether it is noticed, in which words,
and how soon. Nothing here may make an answer wrong."""

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import threading
import time

import faults
from cluster import LIBC, CLONE_NEWNET, Cluster, Stream, ip, until

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_BYTES_MAX = 65536
QUEUE_SECONDS = 0.5
ANSWER_TOKENS = 48


class Questions(threading.Thread):
    """Asks one thing after the other, as somebody does who works with a model."""

    def __init__(self, bench):
        super().__init__(daemon=True)
        self.bench, self.rates, self.outcomes, self.is_over = bench, [], {}, False
        self.start()

    def run(self):
        number = 0
        while not self.is_over:
            number = (number + 1) % 4
            whole = self.bench.whole(number, ANSWER_TOKENS)
            stream = Stream(self.bench.cluster.nodes[0], self.bench.body(number, ANSWER_TOKENS))
            outcome = stream.outcome(whole)
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
            if len(stream.times) > 2:
                took = stream.times[-1] - stream.times[0]
                self.rates.append((len(stream.times) - 1) / took)

    def wait_for(self, more):
        wanted = len(self.rates) + more
        until(f"{more} answers", 120, lambda: len(self.rates) >= wanted)

    def end(self):
        self.is_over = True
        self.join()


def notes(bench):
    return bench.cluster.nodes[0].instance(faults.MODEL)["notes"]


def quota(node, percent):
    """Lets a node's processes have so much of a core: by a cgroup of either version."""
    roots = {"/sys/fs/cgroup/cpu": ("cpu.cfs_quota_us", "{}"),
             "/sys/fs/cgroup": ("cpu.max", "{} 100000")}
    for root, (file, words) in roots.items():
        group = os.path.join(root, f"sinew-slow-{os.getpid()}")
        try:
            os.makedirs(group, exist_ok=True)
            with open(os.path.join(group, file), "w", encoding="ascii") as limit:
                limit.write(words.format(percent * 1000))
        except OSError:
            continue
        for pid in node.processes():
            with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as procs:
                procs.write(str(pid))

        def lift():
            with open(os.path.join(group, file), "w", encoding="ascii") as limit:
                limit.write("-1" if file == "cpu.cfs_quota_us" else "max 100000")
        return lift
    return None


def straggler(bench, asking):
    """A node whose processes get a fifth of a core."""
    node = bench.cluster.nodes[1]
    lift = quota(node, 20)
    if lift is None:
        return "not tried: there is no cgroup whose quota could be set"
    try:
        said, took = until("the straggler to be named", 90, lambda: [
            note for note in notes(bench) if f"wait for {node.name}" in note])
    finally:
        lift()
    states = bench.cluster.nodes[0].node_states()
    assert set(states.values()) == {"live"}, states
    return f"named after {took:.0f} s at {asking.rates[-1]:.1f} tokens/s: {said[0]}"


def shape(node, words):
    """Both directions of a node's cable."""
    hub = ("-n", node.cluster.hub, "qdisc", words[0], "dev", node.port_name, *words[1:])
    own = ("-n", node.namespace, "qdisc", words[0], "dev", "eth0", *words[1:])
    for command in [hub, own]:
        subprocess.run(["tc", *command], check=True, capture_output=True)


def throttled(bench, asking):
    """A cable becomes a hundred times slower while it is used."""
    node = bench.cluster.nodes[1]
    shape(node, ["add", "root", "tbf", "rate", "10mbit", "burst", "16kbit", "latency", "50ms"])
    try:
        said, took = until("the link to be blamed", 90, lambda: [
            note for note in notes(bench)
            if "the link between" in note or "a link is slower" in note])

        def measured():
            edges = bench.cluster.nodes[0].status()["nodes"][0]["edges"]
            slow = [edge["bytes_per_sec"] for edge in edges if edge["bytes_per_sec"] < 5e6]
            return slow or None
        rate, known = until("the link to be measured anew", 90, measured)
    finally:
        shape(node, ["del", "root"])
    return (f"noticed after {took:.0f} s, measured anew as {rate[0] * 8 / 1e6:.0f} Mbit/s "
            f"{known:.0f} s later, at {asking.rates[-1]:.1f} tokens/s: {said[0]}")


class Wireless(threading.Thread):
    """A cable through the air: frames are lost, and late, in their order. With a rate, those that
    would wait for half a second are dropped."""

    def __init__(self, node, loss, delay_ms, jitter_ms, kbit=None):
        super().__init__(daemon=True)
        self.loss, self.delay, self.jitter = loss, delay_ms / 1e3, jitter_ms / 1e3
        self.rate = kbit * 125 if kbit else None
        self.is_over, hub = False, node.cluster.hub
        with open("/proc/thread-self/ns/net", encoding="ascii") as home, \
                open(f"/run/netns/{hub}", encoding="ascii") as there:
            try:
                if LIBC.setns(there.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
                self.ends = [self.tap(name) for name in ["air0", "air1"]]
            finally:
                LIBC.setns(home.fileno(), CLONE_NEWNET)
        ip("-n", hub, "link", "add", "br1", "type", "bridge")
        for name, bridge in [("air0", "br0"), ("air1", "br1"), (node.port_name, "br1")]:
            ip("-n", hub, "link", "set", name, "master", bridge, "up")
        ip("-n", hub, "link", "set", "br1", "up")
        self.node = node
        self.start()

    def end(self):
        """The node has its cable again."""
        self.is_over, hub = True, self.node.cluster.hub
        self.join()
        ip("-n", hub, "link", "set", self.node.port_name, "master", "br0", "up")
        ip("-n", hub, "link", "del", "br1")
        for end in self.ends:
            os.close(end)

    @staticmethod
    def tap(name):
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
        return end

    def run(self):
        chance, late, last, number, free = random.Random(1), [], {}, 0, {}
        while not self.is_over:
            wait = late[0][0] - time.monotonic() if late else 0.1
            ready = select.select(self.ends, [], [], max(0, min(wait, 0.1)))[0]
            for end in ready:
                frame = os.read(end, FRAME_BYTES_MAX)
                if chance.random() < self.loss:
                    continue
                delay, now = max(0, chance.gauss(self.delay, self.jitter)), time.monotonic()
                if self.rate:
                    begin = max(now, free.get(end, 0))
                    if begin - now > QUEUE_SECONDS:
                        continue
                    free[end] = begin + len(frame) / self.rate
                    delay += free[end] - now
                due = max(last.get(end, 0), now + delay)
                last[end], number = due, number + 1
                heapq.heappush(late, (due, number, self.ends[1 - self.ends.index(end)], frame))
            while late and late[0][0] <= time.monotonic():
                _, _, end, frame = heapq.heappop(late)
                try:
                    os.write(end, frame)
                except OSError:
                    pass


def wireless(bench, asking):
    """A node on bad Wi-Fi: 3 % of all frames lost, the others 20 ms late, give or take 30."""
    owner, node = bench.cluster.nodes
    asking.end()
    air = Wireless(node, 0.03, 20, 30)
    try:
        owner.run("stop", faults.MODEL)
        known = until("the way to be measured", 90, lambda: [
            edge for edge in owner.status()["nodes"][0]["edges"]
            if edge["round_trip_us"] > 10_000])[0][0]
        owner.run("serve", faults.MODEL, "--ctx", "1024", "--transport", "tcp")
        alone = [rank["node_name"] for rank in owner.instance(faults.MODEL)["ranks"]]
        owner.run("stop", faults.MODEL)
        bench.more = ()
        bench.serve(owner)
        bench.ready()
        again = Questions(bench)
        again.wait_for(4)
        predicted = owner.instance(faults.MODEL)["prediction"]["decode_tokens_per_sec"]
        said = notes(bench)
        again.end()
    finally:
        air.end()
    lost = {event for event, state in owner.node_states().items() if state != "live"}
    return (f"round trip {known['round_trip_us'] / 1e3:.0f} ms; placed on {alone} unless told; on "
            f"both {again.rates[-1]:.2f} tokens/s, {predicted:.2f} predicted; answers "
            f"{again.outcomes}; lost {lost or 'nobody'}; said {said}")


# Kilobits a second, and milliseconds each way.
PATHS = [(20000, 200), (3000, 5), (1000, 200), (300, 25)]
DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../demo-model/sinew-demo.gguf")


def far(binary, work):
    """A node joins over a slow and far path, gets a file and a share of a model over it, and answers.
    Nobody is told to open a port that is open."""
    told = set()
    with Cluster(binary, work, 2) as cluster:
        bench = faults.Bench(cluster, DEMO, 1)
        bench.ready()
        for kbit, delay in PATHS:
            print(f"    {over(bench, told, kbit, delay)}", flush=True)
    return sorted(told)


def over(bench, told, kbit, delay):
    owner, node = bench.cluster.nodes
    whole, took = bench.whole(0, ANSWER_TOKENS), {}
    owner.run("stop", faults.MODEL)
    node.run("rm", faults.MODEL)
    node.run("leave")

    def timed(what, act):
        begun = time.monotonic()
        act()
        took[what] = time.monotonic() - begun
        for one in [owner, node]:
            told.update(notice for notice in one.status()["notices"] if "firewall" in notice)

    air = Wireless(node, 0, delay, 0, kbit)
    try:
        code = json.loads(owner.run("invite", "--json"))["code"]
        timed("join", lambda: node.run("join", code))
        timed("meet", bench.cluster.whole)
        timed("serve on both", lambda: owner.run(
            "serve", faults.MODEL, "--nodes", "2", "--transport", "tcp", "--strategy", "pipeline",
            "--ctx", "1024", "--copies", "1", seconds=900))
        timed("answer", lambda: check(Stream(owner, bench.body(0, ANSWER_TOKENS)), whole))
        owner.run("stop", faults.MODEL)
        # A path that is full may lose a node for a moment.
        timed("meet again", bench.cluster.whole)
        timed("pull", lambda: node.run("pull", faults.MODEL, seconds=900))
    finally:
        air.end()
    bench.cluster.whole()
    bench.serve(owner)
    bench.ready()
    times = ", ".join(f"{what} {seconds:.0f} s" for what, seconds in took.items())
    return f"{kbit / 1000} Mbit/s, {2 * delay} ms: {times}"


def check(stream, whole):
    outcome = stream.outcome(whole, 300)
    assert outcome == "right", f"{outcome}: {stream.error}"


CASES = [straggler, throttled, wireless]


def measure(binary, work, model, words):
    if not words or "far" in words:
        print("far: a slow and far path, for everything", flush=True)
        told = far(binary, work)
        if told or words == ["far"]:
            return told
    with Cluster(binary, work, 2) as cluster:
        # Its ranks wait for each other in every layer, which a pipeline's do not.
        bench = faults.Bench(cluster, model, 1, more=["--strategy", "tensor"])
        for case in (case for case in CASES if not words or case.__name__ in words):
            asking = Questions(bench)
            asking.wait_for(4)
            print(f"{case.__name__}: at first {asking.rates[-1]:.1f} tokens/s, {notes(bench)}",
                  flush=True)
            try:
                print(f"    {case(bench, asking)}", flush=True)
            finally:
                asking.end()
            print(f"    answers: {asking.outcomes}", flush=True)
    return []
