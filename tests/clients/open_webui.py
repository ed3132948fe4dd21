"""Open WebUI itself, in front of a node in both of the ways that it knows: as OpenAI's API and as Ollama.

It is started without the internet, and asked through its own HTTP API, as its page does.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from harness import ANSWER, MODEL, QUESTION, URL, main

# Loading its libraries takes most of a minute on a busy machine.
START_SECS_MAX = 240


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class WebUi:
    def __init__(self, folder):
        self.base = f"http://127.0.0.1:{free_port()}"
        self.token = None
        self.log = pathlib.Path(folder, "log")
        settings = {
            "DATA_DIR": folder,
            "WEBUI_SECRET_KEY": "of this test",
            "OPENAI_API_BASE_URL": f"{URL}/v1",
            "OPENAI_API_KEY": "any",
            "OLLAMA_BASE_URL": URL,
            # Else it looks for models of its own on the internet.
            "OFFLINE_MODE": "true",
            "HF_HUB_OFFLINE": "1",
            "RAG_EMBEDDING_ENGINE": "openai",
            "RAG_OPENAI_API_BASE_URL": f"{URL}/v1",
            "RAG_OPENAI_API_KEY": "any",
        }
        program = os.path.join(os.path.dirname(sys.executable), "open-webui")
        port = self.base.rsplit(":", 1)[1]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [program, "serve", "--host", "127.0.0.1", "--port", port],
                env={**os.environ, **settings}, stdout=log, stderr=log, cwd=folder,
            )

    def wait(self):
        until = time.monotonic() + START_SECS_MAX
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.base}/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        raise AssertionError("it did not start:\n" + self.log.read_text()[-3000:])

    def ask(self, path, body=None):
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, headers)
        return urllib.request.urlopen(request, timeout=120)

    def json(self, path, body=None):
        with self.ask(path, body) as answer:
            return json.load(answer)


def conversation(**more):
    return {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, **more}


def test_sign_up():
    account = {"name": "Somebody", "email": "somebody@example.org", "password": "only for this test"}
    UI.token = UI.json("/api/v1/auths/signup", account)["token"]


def test_its_menu_has_the_model():
    models = UI.json("/api/models")["data"]
    assert MODEL in [model["id"] for model in models], models


def test_chat():
    answer = UI.json("/api/chat/completions", conversation(stream=False))
    assert ANSWER in answer["choices"][0]["message"]["content"], answer
    assert answer["usage"]["completion_tokens"] > 0, answer


def test_chat_streams():
    with UI.ask("/api/chat/completions", conversation(stream=True)) as answer:
        lines = [line.decode().strip() for line in answer]
    data = [line[len("data: "):] for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]", data[-3:]
    chunks = [json.loads(one) for one in data[:-1]]
    pieces = [one["choices"][0]["delta"].get("content") or "" for one in chunks if one.get("choices")]
    assert len(pieces) > 5 and ANSWER in "".join(pieces), pieces


def test_the_same_as_ollama():
    # What it shows of Ollama has the names that Ollama's clients expect.
    names = [model["model"] for model in UI.json("/ollama/api/tags")["models"]]
    found = next(name for name in names if name.split(":")[0] == MODEL)
    body = {**conversation(stream=False), "model": found, "options": {"temperature": 0}}
    del body["temperature"]
    with UI.ask("/ollama/api/chat", body) as answer:
        lines = [json.loads(line) for line in answer if line.strip()]
    said = "".join(line["message"]["content"] for line in lines)
    assert lines[-1]["done"] and ANSWER in said, lines


def test_an_unknown_model_is_said_to_be_unknown():
    try:
        UI.ask("/openai/chat/completions", {**conversation(), "model": "nobody"}).read()
    except urllib.error.HTTPError as error:
        assert error.code in (400, 404), error.code
    else:
        raise AssertionError("it was answered")


with tempfile.TemporaryDirectory() as folder:
    UI = WebUi(folder)
    try:
        UI.wait()
        main(globals())
    finally:
        UI.process.terminate()
        UI.process.wait()
