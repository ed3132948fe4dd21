#!/usr/bin/env python3
"""Prints the table of runs that were made, from the files that the comparisons wrote.

    python3 benches/table.py benches/results/*.json
"""

import argparse
import json
from statistics import median

HEAD = """\
| file | test | threads | side | t/s | beside | t/s | ratio | of a plain read |
| --- | --- | ---: | --- | ---: | --- | ---: | ---: | --- |"""


def spread(rates, digits=1):
    return f"{median(rates):.{digits}f} ({min(rates):.{digits}f}-{max(rates):.{digits}f})"


def lines(row):
    """A line for each of Sinew's sides, beside the rival's best one. The ratio is that of the
    medians; in brackets the lowest and the highest of the single rounds."""
    rivals = {side: rates for side, rates in row["samples"].items() if not side.startswith("Sinew")}
    best = max(rivals, key=lambda side: median(rivals[side]))
    for side, rates in row["samples"].items():
        if side in rivals:
            continue
        rounds = [ours / theirs for ours, theirs in zip(rates, rivals[best])]
        ratio = f"{median(rates) / median(rivals[best]):.2f} ({min(rounds):.2f}-{max(rounds):.2f})"
        parts = ""
        if row["reads"] and row["token_bytes"]:
            read = median(row["reads"])
            shares = [median(each) * row["token_bytes"] / read for each in (rates, rivals[best])]
            parts = f"{shares[0]:.0%} and {shares[1]:.0%} of {read / 1e9:.1f} GB/s"
        yield (
            f"| {row['file']} | {row['test']} | {row['threads']} | {side} | {spread(rates)} "
            f"| {best} | {spread(rivals[best])} | {ratio} | {parts} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="+", help="what a comparison wrote")
    runs = [json.load(open(path)) for path in parser.parse_args().file]
    for about in sorted({f"{run['sinew']}; {run['rival']}; {run['machine']}" for run in runs}):
        print(about)
    print(f"\n{HEAD}")
    for run in runs:
        for row in run["rows"]:
            print("\n".join(lines(row)))


if __name__ == "__main__":
    main()
