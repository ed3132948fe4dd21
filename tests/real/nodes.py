"""Nodes on this machine's loopback, of one thread each, and models served by them."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../faults"))
import cluster as clusters  # noqa: E402
from cluster import connect, until  # noqa: E402

CONTEXT = 4096
ANSWER_S = 300


class Node(clusters.Node):
    """A node in this process's own network; its ports are free ones."""

    namespace = None

    def __init__(self, cluster, name):
        self.cluster, self.name = cluster, name
        self.home = os.path.join(cluster.work, name)
        self.process, self.port = None, 0

    def start(self):
        path = os.path.join(self.cluster.work, f"{self.name}.log")
        command = [self.cluster.binary, "up", "--name", self.name, "--data-dir", self.home,
                   "--api", f"127.0.0.1:{self.port}", "--listen", "127.0.0.1:0",
                   "--threads", "1", "--device", "cpu",
                   # Each split computes everything itself.
                   "--prompt-cache", "off"]
        with open(path, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, start_new_session=True)

        def address():
            with open(path, encoding="utf-8") as log:
                return re.search(r"http://127\.0\.0\.1:(\d+)", log.read())
        self.port = int(until(f"{self.name} to be up", 60, address)[0].group(1))

    def request(self, method, path, body=None):
        """The status and the JSON of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.sock = connect(None, self.port, ANSWER_S)
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, body and json.dumps(body), headers)
        response = connection.getresponse()
        status, text = response.status, response.read()
        connection.close()
        return status, json.loads(text)

    def status(self):
        return self.request("GET", "/sinew/v1/status")[1]

    def run(self, *words):
        command = [self.cluster.binary, *words, "--data-dir", self.home]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=180)
        if ran.returncode != 0:
            raise RuntimeError(f"{words}: {ran.stderr}")
        return ran.stdout


class Served:
    """A model on some of the nodes, as its clients see it."""

    def __init__(self, node, model):
        self.node, self.model = node, model

    def post(self, path, **body):
        status, answer = self.node.request("POST", path, {"model": self.model, **body})
        if status != 200:
            raise RuntimeError(f"{path} answered {status}: {json.dumps(answer)}")
        return answer

    def complete(self, prompt, **options):
        """Greedy unless the options say otherwise; `prompt` is a text or tokens."""
        return self.post("/v1/completions", prompt=prompt, **{"temperature": 0, **options})

    def chat(self, messages, **options):
        return self.post("/v1/chat/completions", messages=messages,
                         **{"temperature": 0, **options})

    def embed(self, texts):
        answer = self.post("/v1/embeddings", input=texts)
        return [one["embedding"] for one in answer["data"]]

    def stream(self, path, **body):
        return clusters.Stream(self.node, {"model": self.model, "temperature": 0, **body}, path,
                               port=self.node.port)

    def instance(self):
        return self.node.instance(self.model)


class Cluster(clusters.Cluster):
    """Nodes of these names, each of which knows the others."""

    def __init__(self, binary, work, names="abc"):
        self.binary, self.work, self.hub = binary, work, None
        self.nodes = [Node(self, name) for name in names]
        try:
            for node in self.nodes:
                node.start()
            for node in self.nodes[1:]:
                code = json.loads(self.nodes[0].run("invite", "--json"))["code"]
                node.run("join", code)
            self.whole()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        for node in self.nodes:
            if node.process:
                node.stop()

    def revive(self):
        """Starts the nodes that were killed."""
        for node in self.nodes:
            if not node.is_up():
                node.start()
        self.whole()

    @contextlib.contextmanager
    def serving(self, path, names, strategy="auto", suffix="", options=()):
        """The model on the nodes of these names, the first of which is asked."""
        model = os.path.basename(path).removesuffix(".gguf") + suffix
        node = next(node for node in self.nodes if node.name == names[0])
        # Between machines it would be TCP; alone a node needs none.
        node.run("serve", path, "--name", model, "--nodes", ",".join(names), "--strategy", strategy,
                 "--transport", "tcp", "--ctx", str(CONTEXT), *options)
        served = Served(node, model)
        until(f"{model} to be ready on {names}", 120,
              lambda: served.instance()["state"]["state"] == "ready")
        found = [rank["node_name"] for rank in served.instance()["ranks"]]
        assert found == list(names), f"{model} was asked for on {names} and is on {found}"
        try:
            yield served
        finally:
            node.run("stop", model)
            until(f"{model} to be gone", 60, lambda: not served.instance())
