#!/usr/bin/env python3
"""An answer as it comes, with Python alone. A stream that does not end with [DONE] is an error."""

import json
import os
import urllib.request

URL = os.environ.get("SINEW_URL", "http://127.0.0.1:8750")


def get(path):
    with urllib.request.urlopen(f"{URL}{path}") as response:
        return json.load(response)


def stream(model, question):
    body = {"model": model, "stream": True, "temperature": 0, "max_tokens": 60,
            "messages": [{"role": "user", "content": question}]}
    request = urllib.request.Request(f"{URL}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        for line in response:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                return
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            for choice in event["choices"]:
                yield choice["delta"].get("content") or ""
    raise RuntimeError("the connection broke before the answer was complete")


model = os.environ.get("SINEW_MODEL") or get("/v1/models")["data"][0]["id"]
for piece in stream(model, "What is Sinew?"):
    print(piece, end="", flush=True)
print()
