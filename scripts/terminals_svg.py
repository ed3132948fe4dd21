"""Draws terminals side by side: `terminals_svg.py COLUMNS TITLE=FILE... >picture.svg`.

Each file is what `tmux capture-pane -e -p` tells. Every run of text is stretched to its columns, so
that the picture is the same whatever font there is.
"""

import re
import sys
from html import escape

CELL, LINE, PAD, BAR, GAP = 7.2, 17, 14, 30, 16
INK, SOFT, GROUND, EDGE = "#e6ecea", "#9daba8", "#161d1c", "#2b3533"
COLOURS = {"31": "#ff8f86", "32": "#6fce97", "33": "#e2b45a", "34": "#7ba6ea", "36": "#63cdb9"}


def runs(line):
    """Pieces of one look: (column, text, colour, is bold)."""
    column, colour, bold = 0, INK, False
    for text, codes in re.findall(r"([^\x1b]*)(?:\x1b\[([0-9;]*)m)?", line):
        for piece in re.finditer(r"\S+(?: \S+)*", text):
            yield column + piece.start(), piece.group(), colour, bold
        column += len(text)
        for code in codes.split(";"):
            if code in ("", "0", "39"):
                colour, bold = INK, bold and code == "39"
            elif code == "1":
                bold = True
            elif code == "2":
                colour = SOFT
            colour = COLOURS.get(code, colour)


def window(left, columns, rows, title, lines):
    width, height = columns * CELL + 2 * PAD, BAR + rows * LINE + 2 * PAD
    yield (f'<rect x="{left}" y="0.5" width="{width:g}" height="{height}" rx="9" '
           f'fill="{GROUND}" stroke="{EDGE}"/>')
    yield f'<text x="{left + PAD}" y="20" fill="{SOFT}" font-weight="600">{escape(title)}</text>'
    for row, line in enumerate(lines):
        y = BAR + PAD + row * LINE + 8
        for column, text, colour, bold in runs(line):
            weight = ' font-weight="600"' if bold or (column == 0 and text[0] == "$") else ""
            paint = "" if colour == INK else f' fill="{colour}"'
            yield (f'<text x="{left + PAD + column * CELL:g}" y="{y}"{paint}{weight} '
                   f'textLength="{len(text) * CELL:g}" lengthAdjust="spacingAndGlyphs">'
                   f"{escape(text)}</text>")


def main():
    columns, terminals = int(sys.argv[1]), [arg.split("=", 1) for arg in sys.argv[2:]]
    texts = []
    for title, path in terminals:
        with open(path, encoding="utf-8") as file:
            texts.append((title, file.read().rstrip().split("\n")))
    rows = max(len(lines) for _, lines in texts)
    each = columns * CELL + 2 * PAD
    width = len(texts) * (each + GAP) - GAP + 1
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} '
          f'{BAR + rows * LINE + 2 * PAD + 1}" font-family="ui-monospace, Menlo, Consolas, '
          f'monospace" font-size="12" fill="{INK}" xml:space="preserve">')
    for at, (title, lines) in enumerate(texts):
        print("\n".join(window(0.5 + at * (each + GAP), columns, rows, title, lines)))
    print("</svg>")


main()
