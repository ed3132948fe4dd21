#!/usr/bin/env python3
"""Asks a Prometheus every query of the board, as Grafana would, and names those without data.

    contrib/grafana/check.py http://localhost:9090
"""
import json
import pathlib
import sys
import urllib.parse
import urllib.request

BOARD = pathlib.Path(__file__).with_name("sinew.json")


def ask(prometheus, query):
    """The series that a query finds now."""
    query = query.replace("$__rate_interval", "30s").replace('"$model"', '".*"')
    url = f"{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)["data"]["result"]


def main():
    prometheus = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:9090"
    asked = empty = 0
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            found = ask(prometheus, target["expr"])
            values = [series["value"][1] for series in found]
            asked += 1
            if not found or all(value == "NaN" for value in values):
                empty += 1
                print(f"no data: {panel['title']}: {target['expr']}")
    print(f"{asked} queries, {empty} without data")
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())
