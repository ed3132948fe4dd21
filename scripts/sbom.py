#!/usr/bin/env python3
"""Prints a bill of materials of the program `sinew` as CycloneDX 1.5: each crate that a build for one
target contains or runs, with its version, licence and checksum, and what it depends on.

    scripts/sbom.py TARGET       a Rust target, such as aarch64-apple-darwin

Cargo resolves it from Cargo.lock; the same lock gives the same bytes.
"""

import json
import pathlib
import re
import subprocess
import sys
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent


def checksums():
    """Of Cargo.lock: (name, version) -> SHA-256 of the crate's archive."""
    found = {}
    for package in (ROOT / "Cargo.lock").read_text().split("[[package]]")[1:]:
        fields = dict(re.findall(r'^(name|version|checksum) = "([^"]+)"$', package, re.M))
        if "checksum" in fields:
            found[fields["name"], fields["version"]] = fields["checksum"]
    return found


def reached(nodes, root):
    """The ids below `root`, with what each needs to be built or to run; tests are left out."""
    below, waiting = {}, [root]
    while waiting:
        id = waiting.pop()
        if id in below:
            continue
        needed = [
            dependency["pkg"]
            for dependency in nodes[id]["deps"]
            if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"])
        ]
        below[id] = sorted(needed)
        waiting += needed
    return below


def main(target):
    metadata = json.loads(
        subprocess.check_output(
            ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform", target],
            cwd=ROOT,
        )
    )
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    [root] = [id for id, package in packages.items() if package["name"] == "sinew"]
    below, sums = reached(nodes, root), checksums()

    def reference(id):
        return "pkg:cargo/{name}@{version}".format(**packages[id])

    def component(id):
        package = packages[id]
        about = {
            "type": "application" if id == root else "library",
            "bom-ref": reference(id),
            "name": package["name"],
            "version": package["version"],
        }
        if package["source"]:
            about["purl"] = reference(id)
            checksum = sums[package["name"], package["version"]]
            about["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        if package["license"]:
            # Old crates write "MIT/Apache-2.0", which is no SPDX expression.
            about["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        return about

    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": component(root),
            "properties": [{"name": "rust:target", "value": target}],
        },
        "components": [component(id) for id in sorted(below, key=reference) if id != root],
        "dependencies": [
            {"ref": reference(id), "dependsOn": sorted(map(reference, below[id]))}
            for id in sorted(below, key=reference)
        ],
    }
    content = json.dumps(bill, sort_keys=True)
    bill["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, content).urn
    print(json.dumps(bill, indent=1, sort_keys=True))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
