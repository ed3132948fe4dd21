"""Lets schemathesis attack a node with what /openapi.json allows and forbids.

Every request must be answered with a status and a body that the document has, never with an error of
the server's, and what the document forbids must be refused.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request

from harness import MODEL, URL

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)


def main():
    document = json.load(urllib.request.urlopen(f"{URL}/openapi.json"))
    # Only what names the served model gets further than to a 404.
    for name, schema in document["components"]["schemas"].items():
        if name.endswith("Request") and "model" in schema["properties"]:
            is_optional = "null" in schema["properties"]["model"]["type"]
            schema["properties"]["model"] = {"enum": [MODEL, None] if is_optional else [MODEL]}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "openapi.json")
        with open(path, "w") as file:
            json.dump(document, file)
        command = [os.path.join(os.path.dirname(sys.executable), "st"), "run", path, "--url", URL]
        command += ["--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing"]
        # What Ollama can do and this node does not is said with 501, which counts as its error; a
        # stream of events has no end.
        command += ["--exclude-path-regex", "^(/api/(create|copy|push)|/sinew/v1/events)$"]
        command += ["--max-examples", os.environ.get("SINEW_SCHEMA_EXAMPLES", "20"), "--seed", "1"]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if run.returncode:
        print(run.stdout[-6000:], run.stderr[-2000:])
        print("    FAILED what the document says")
        sys.exit(1)
    lines = (line.strip() for line in run.stdout.splitlines())
    cases = next(line for line in lines if line[:1].isdigit() and " generated" in line)
    print(f"    ok     what the document says: {cases}")


main()
