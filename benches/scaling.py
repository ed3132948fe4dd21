#!/usr/bin/env python3
"""Draws docs/images/scaling-*.svg: what `sinew plan --scale` says of 1 to 64 machines.

    cargo build --release -p sinew && python3 benches/scaling.py target/release/sinew
"""

import json
import math
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COUNTS = "1,2,3,4,6,8,12,16,24,32,48,64"
# A model, the machines, what to call them, and a colour that tells from the others in any sight.
LINES = [
    ("qwen3-235b:q8_0", "mac-studio-512", "Qwen3-235B Q8_0, Mac Studios, RDMA", "#0072b2"),
    ("qwen3-235b:q8_0", "mac-studio-tcp", "the same over TCP, 300 us a message", "#56b4e9"),
    ("llama-3.3-70b:q8_0", "gb10-pair", "Llama-3.3-70B Q8_0, GB10s", "#009e73"),
    ("llama-3.3-70b:q8_0", "pc-pair-10g", "the same, PCs on 10-gigabit Ethernet", "#d55e00"),
    ("llama-3.2-1b:q8_0", "raspberry-pis", "Llama-3.2-1B Q8_0, Raspberry Pis", "#cc79a7"),
]
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 420, 60, 48, 40, 16


def rows(sinew, model, cluster, mix):
    command = [sinew, "plan", model, "--cluster", ROOT / f"examples/clusters/{cluster}.toml"]
    command += ["--scale", COUNTS, "--json", *mix]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def picture(title, of, sinew, mix):
    series = [
        (name, colour, [(row["nodes"], row["simulated"][of]) for row in found if row["simulated"]])
        for model, cluster, name, colour in LINES
        for found in [rows(sinew, model, cluster, mix)]
    ]
    rates = [rate for *_, points in series for _, rate in points]
    low, high = math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates)))
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM - 20 * len(series)

    def place(nodes, rate):
        across = math.log2(nodes) / 6
        up = (math.log10(rate) - low) / (high - low)
        return LEFT + across * plot_width, TOP + (1 - up) * plot_height

    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{title}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{title}</text>',
    ]
    for power in range(low, high + 1):
        for step in (1, 2, 5) if power < high else (1,):
            _, y = place(1, step * 10**power)
            label = f"{step * 10**power:g}"
            text.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
            text.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for nodes in (1, 2, 4, 8, 16, 32, 64):
        x, y = place(nodes, 10**low)
        text.append(f'<text x="{x:.1f}" y="{y + 20:.1f}" text-anchor="middle">{nodes}</text>')
    for at, (name, colour, points) in enumerate(series):
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        text.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in (place(*point) for point in points):
            text.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        y = TOP + plot_height + 46 + 20 * at
        text.append(f'<path d="M{LEFT} {y - 4}h28" stroke="{colour}" stroke-width="3"/>')
        text.append(f'<text x="{LEFT + 38}" y="{y}">{name}</text>')
    return "\n".join([*text, "</svg>", ""])


def main():
    sinew = sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/release/sinew"
    for name, title, of, mix in [
        ("one", "Tokens a second of one user, by machines", "decode_tokens_per_sec", []),
        (
            "many",
            "Tokens a second of 16 users together, by machines",
            "total_tokens_per_sec",
            ["--mix", "many", "--parallel", "16"],
        ),
    ]:
        (ROOT / f"docs/images/scaling-{name}.svg").write_text(picture(title, of, sinew, mix))


main()
