"""llama.cpp's server with two RPC servers, put through the faults that they can be put through."""

import http.client
import json
import os
import signal
import subprocess
import time
from collections import Counter

import cluster as clusters
from cluster import API, NOBODY, Stream, ip, kill, until


class Machine:
    """A namespace with one process."""

    def __init__(self, bench, at, name):
        self.bench, self.name, self.process = bench, name, None
        self.namespace = self.port_name = f"{bench.prefix}{name}"
        self.address = f"10.78.0.{at + 1}"
        ip("netns", "add", self.namespace)
        ip("link", "add", self.port_name, "netns", bench.hub, "type", "veth",
           "peer", "name", "eth0", "netns", self.namespace)
        ip("-n", bench.hub, "link", "set", self.port_name, "master", "br0", "up")
        ip("-n", self.namespace, "link", "set", "lo", "up")
        ip("-n", self.namespace, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.namespace, "link", "set", "eth0", "up")

    def start(self, *command):
        log = open(os.path.join(self.bench.work, f"llama-{self.name}.log"), "ab")
        environment = {**os.environ, "LD_LIBRARY_PATH": self.bench.folder}
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *command], stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, env=environment, start_new_session=True)

    def is_up(self):
        return self.process is not None and self.process.poll() is None

    def cable(self, state):
        ip("-n", self.bench.hub, "link", "set", self.port_name, state)


class Bench:
    def __init__(self, folder, work, model):
        self.folder, self.work, self.model = os.path.abspath(folder), work, model
        self.prefix = f"l{os.getpid() % 10000}"
        self.hub = f"{self.prefix}hub"
        ip("netns", "add", self.hub)
        ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
        ip("-n", self.hub, "link", "set", "br0", "up")
        self.server = Machine(self, 0, "a")
        self.helpers = [Machine(self, 1, "b"), Machine(self, 2, "c")]

    def start(self):
        """Starts everything anew, as a person would have to."""
        self.end()
        for machine in self.helpers:
            machine.cable("up")
            machine.start(os.path.join(self.folder, "ggml-rpc-server"),
                          "-H", machine.address, "-p", "50052", "-t", "1")
        time.sleep(1)
        addresses = ",".join(f"{machine.address}:50052" for machine in self.helpers)
        self.server.start(os.path.join(self.folder, "llama-server"), "-m", self.model,
                          "--rpc", addresses, "-ngl", "99", "-c", "1024", "-t", "1", "-np", "1",
                          "--host", "127.0.0.1", "--port", str(API), "--no-webui")
        until("llama-server to be up", 120, self.healthy)

    def healthy(self):
        connection = http.client.HTTPConnection("127.0.0.1", API)
        connection.sock = clusters.connect(self.server.namespace, API, 5)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200

    def end(self):
        for machine in [self.server, *self.helpers]:
            if machine.process:
                kill(machine.process.pid, signal.SIGCONT)
                kill(machine.process.pid)
                machine.process.wait()

    def ask(self):
        body = {"prompt": "Number 1:", "temperature": 0.0, "seed": 1, "max_tokens": 120,
                "ignore_eos": True, "model": "m"}
        return Stream(self.server, body)


def kill_helper(bench):
    kill(bench.helpers[0].process.pid)


def freeze_2_s(bench):
    kill(bench.helpers[0].process.pid, signal.SIGSTOP)
    time.sleep(2)
    kill(bench.helpers[0].process.pid, signal.SIGCONT)


def freeze(bench):
    kill(bench.helpers[0].process.pid, signal.SIGSTOP)


def pull_cable(bench):
    bench.helpers[0].cable("down")


def one_way(bench):
    ip("-n", bench.server.namespace, "neigh", "replace", bench.helpers[0].address, "lladdr",
       NOBODY, "dev", "eth0", "nud", "permanent")


FAULTS = [
    ("llama.cpp: `kill -9` of an RPC server", kill_helper),
    ("llama.cpp: an RPC server frozen for 2 s", freeze_2_s),
    ("llama.cpp: the same until the end", freeze),
    ("llama.cpp: the cable of an RPC server pulled", pull_cable),
    ("llama.cpp: nothing passes to an RPC server", one_way),
]


def measure(folder, work, model, rounds):
    bench, rows = Bench(folder, work, model), []
    try:
        bench.start()
        whole = bench.ask()
        whole.join(120)
        for name, fault in FAULTS:
            outcomes, gone, answers = Counter(), 0, 0
            for _ in range(rounds):
                bench.start()
                stream = bench.ask()
                stream.wait_for_tokens(5)
                fault(bench)
                outcomes[stream.outcome(whole)] += 1
                time.sleep(1)
                gone += not bench.server.is_up()
                # Whatever was lost is back; does the server answer again by itself?
                answers += answers_again(bench, whole)
            told = f"the server itself died: {gone}; answers again without help: {answers}"
            cells = [name, rounds, *(outcomes[one] for one in
                     ["right", "error", "silently wrong", "hung", "cut"]), 0, told]
            rows.append("| " + " | ".join(map(str, cells)) + " |")
            print(rows[-1], flush=True)
    finally:
        bench.end()
        for name in [bench.server.namespace, *(m.namespace for m in bench.helpers), bench.hub]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return rows


def answers_again(bench, whole):
    for machine in bench.helpers:
        machine.cable("up")
        if machine.is_up():
            kill(machine.process.pid, signal.SIGCONT)
        else:
            machine.start(os.path.join(bench.folder, "ggml-rpc-server"),
                          "-H", machine.address, "-p", "50052", "-t", "1")
    subprocess.run(["ip", "-n", bench.server.namespace, "neigh", "flush", "dev", "eth0",
                    "nud", "permanent"], capture_output=True)
    time.sleep(2)
    if not bench.server.is_up():
        return 0
    return int(bench.ask().outcome(whole, 30) == "right")
