"""Nodes in network namespaces of their own, joined by a bridge, and what can be done to them."""

import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time

import kinds

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
NOBODY = "02:00:00:00:00:99"
API = 8750


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def has_namespaces():
    """Why the faults cannot be had here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"sinew-{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"this system makes no network namespaces: {error}"
    return None


def connect(namespace, port, timeout):
    """A connection to a port of a namespace's loopback. A socket stays where it was made.

    Without a namespace: of this process's own.
    """
    if namespace is None:
        return socket.create_connection(("127.0.0.1", port), timeout)
    with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{namespace}") as there:
        try:
            if LIBC.setns(there.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            return socket.create_connection(("127.0.0.1", port), timeout)
        finally:
            LIBC.setns(home.fileno(), CLONE_NEWNET)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kill(pid, how=signal.SIGKILL):
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        pass


def until(what, seconds, look):
    """Asks until the answer is true; the answer, and how long it took."""
    begun = time.monotonic()
    while True:
        try:
            found = look()
        except (OSError, http.client.HTTPException, KeyError, ValueError):
            found = None
        if found:
            return found, time.monotonic() - begun
        if time.monotonic() - begun > seconds:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(0.02)


class Stream(threading.Thread):
    """One streamed answer, read to its end."""

    def __init__(self, node, body, path="/v1/completions", port=API):
        super().__init__(daemon=True)
        self.node, self.body, self.path, self.port = node, {**body, "stream": True}, path, port
        self.parts, self.times, self.error, self.finish = {}, [], None, None
        self.ended_at = None
        self.cut = False
        self.start()

    def run(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port)
            self.socket = connection.sock = connect(self.node.namespace, self.port, 120)
            headers = {"Content-Type": "application/json"}
            connection.request("POST", self.path, json.dumps(self.body), headers)
            response = connection.getresponse()
            if response.status != 200:
                self.error = response.read().decode()
                return
            for line in response:
                event = line.removeprefix(b"data: ")
                # Events of server-sent streams, or Ollama's lines.
                if event.startswith(b"{"):
                    self.hear(json.loads(event))
            self.cut = self.finish is None and self.error is None
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.cut = True
            self.why = str(error)
        finally:
            self.ended_at = time.monotonic()

    def hear(self, event):
        if event.get("error"):
            self.error = json.dumps(event["error"])
            return
        if kinds.gather(event, self.parts):
            self.times.append(time.monotonic())
        self.finish = kinds.end_of(event) or self.finish

    def wait_for_tokens(self, count, seconds=60):
        until(f"{count} tokens", seconds, lambda: len(self.times) >= count or self.ended_at)

    def longest_gap(self):
        return max((b - a for a, b in zip(self.times, self.times[1:])), default=0.0)

    def leave(self):
        self.socket.shutdown(socket.SHUT_RDWR)

    def outcome(self, whole, seconds=90):
        """right, error, silently wrong, hung or cut, against the answer without a fault."""
        self.join(seconds)
        if self.is_alive():
            return "hung"
        if self.error:
            return "error"
        if self.cut:
            return "cut"
        same = (self.parts, self.finish) == (whole.parts, whole.finish)
        return "right" if same else "silently wrong"


    def difference(self, whole):
        """The first place that is not the same, and what there is from there on."""
        ends = ("its end", self.finish or "", whole.finish or "")
        places = sorted(self.parts.keys() | whole.parts.keys())
        all = [(at, self.parts.get(at, ""), whole.parts.get(at, "")) for at in places]
        at, is_so, should = next(one for one in [*all, ends] if one[1] != one[2])
        same = len(os.path.commonprefix([is_so, should]))
        return f"{at}, after {same} letters: {is_so[same:][:60]!r}, not {should[same:][:60]!r}"


class Node:
    def __init__(self, cluster, at, name):
        self.cluster, self.at, self.name = cluster, at, name
        self.namespace = f"{cluster.prefix}{name}"
        self.address = f"10.77.0.{at + 1}"
        self.port_name = f"{cluster.prefix}{name}"
        self.home = os.path.join(cluster.work, name)
        self.process = None
        ip("netns", "add", self.namespace)
        ip("link", "add", self.port_name, "netns", cluster.hub, "type", "veth",
           "peer", "name", "eth0", "netns", self.namespace)
        ip("-n", cluster.hub, "link", "set", self.port_name, "master", "br0", "up")
        ip("-n", self.namespace, "link", "set", "lo", "up")
        ip("-n", self.namespace, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.namespace, "link", "set", "eth0", "up")

    def start(self):
        log = open(os.path.join(self.cluster.work, f"{self.name}.log"), "ab")
        command = [
            self.cluster.binary, "up", "--name", self.name, "--data-dir", self.home,
            "--listen", f"{self.address}:8751", "--api", f"127.0.0.1:{API}",
            "--threads", "1", "--memory", self.cluster.memory,
        ]
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *command],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )
        until(f"{self.name} to be up", 60, lambda: self.get("/health") is not None)

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", API)
        connection.sock = connect(self.namespace, API, 5)
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return text if response.status == 200 else None

    def serve(self, spec):
        """Serves a model as a specification says, which knows more than the command; waits."""
        connection = http.client.HTTPConnection("127.0.0.1", API)
        connection.sock = connect(self.namespace, API, 180)
        with open(os.path.join(self.home, "admin.token")) as token:
            headers = {"content-type": "application/json",
                       "authorization": f"Bearer {token.read().strip()}"}
        connection.request("POST", "/sinew/v1/serve", json.dumps({**spec, "wait": True}), headers)
        text = connection.getresponse().read().decode()
        connection.close()
        if json.loads(text.splitlines()[-1]).get("status") != "ready":
            raise RuntimeError(f"{spec}: {text}")

    def status(self):
        return json.loads(self.get("/sinew/v1/status"))

    def instance(self, model):
        found = [one for one in self.status()["instances"] if one["model"] == model]
        return found[0] if found else None

    def node_states(self):
        return {node["name"]: node["state"] for node in self.status()["nodes"]}

    def run(self, *words, seconds=180):
        command = [self.cluster.binary, *words, "--data-dir", self.home]
        ran = subprocess.run(["ip", "netns", "exec", self.namespace, *command],
                             capture_output=True, text=True, timeout=seconds)
        if ran.returncode != 0:
            raise RuntimeError(f"{words}: {ran.stderr}")
        return ran.stdout

    def workers(self):
        """The process ids of this node's workers."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as stat:
                    parent = int(stat.read().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            if self.process and parent == self.process.pid and is_alive(pid):
                found.append(int(pid))
        return found

    def processes(self):
        return [self.process.pid, *self.workers()]

    def is_up(self):
        return self.process is not None and is_alive(self.process.pid)

    def kill(self):
        """The daemon dies; its workers end with it."""
        kill(self.process.pid)
        self.process.wait()

    def lose_power(self):
        """Nothing more is heard of the machine, not even that its connections are closed."""
        self.pull_cable()
        for pid in self.processes():
            kill(pid)
        self.process.wait()

    def pull_cable(self):
        ip("-n", self.cluster.hub, "link", "set", self.port_name, "down")

    def plug_cable(self):
        ip("-n", self.cluster.hub, "link", "set", self.port_name, "up")

    def freeze(self):
        for pid in self.processes():
            kill(pid, signal.SIGSTOP)

    def thaw(self):
        for pid in self.processes():
            kill(pid, signal.SIGCONT)

    def deafen(self, other):
        """Nothing from this node reaches the other one; the other way stays open."""
        ip("-n", self.namespace, "neigh", "replace", other.address, "lladdr", NOBODY,
           "dev", "eth0", "nud", "permanent")

    def hear_again(self, other):
        ip("-n", self.namespace, "neigh", "del", other.address, "dev", "eth0")

    def stop(self):
        if self.is_up():
            self.thaw()
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


class Cluster:
    """So many nodes, each of which knows all others."""

    def __init__(self, binary, work, count, memory="2GiB"):
        self.binary, self.work, self.memory = binary, work, memory
        self.prefix = f"s{os.getpid() % 10000}"
        self.hub = f"{self.prefix}hub"
        self.nodes = []
        ip("netns", "add", self.hub)
        ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
        ip("-n", self.hub, "link", "set", "br0", "up")
        for at in range(count):
            self.nodes.append(Node(self, at, "abcdefgh"[at]))
        for node in self.nodes:
            node.start()
        for node in self.nodes[1:]:
            code = json.loads(self.nodes[0].run("invite", "--json"))["code"]
            node.run("join", code)
        self.whole()

    def whole(self, seconds=60):
        """Waits until every node sees every node; how long that took."""
        states = {node.name: "live" for node in self.nodes}
        return max(until("all to be live", seconds, lambda n=node: n.node_states() == states)[1]
                   for node in self.nodes)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for node in self.nodes:
            node.stop()
        for name in [*[node.namespace for node in self.nodes], self.hub]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
