#!/usr/bin/env python3
"""An answer that is held to a JSON schema: whatever the model is, it cannot answer otherwise."""

import json
import os
import urllib.request

URL = os.environ.get("SINEW_URL", "http://127.0.0.1:8750")
SCHEMA = {
    "type": "object",
    "properties": {"boat": {"type": "string", "maxLength": 12}, "blue": {"type": "boolean"}},
    "required": ["boat", "blue"],
    "additionalProperties": False,
}


def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{URL}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


model = os.environ.get("SINEW_MODEL") or ask("/v1/models")["data"][0]["id"]
answer = ask("/v1/chat/completions", {
    "model": model, "temperature": 0, "max_tokens": 80,
    "messages": [{"role": "user", "content": "Which boat is blue?"}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "boat", "schema": SCHEMA}},
})
boat = json.loads(answer["choices"][0]["message"]["content"])
assert set(boat) == {"boat", "blue"}, boat
print(boat)
