#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws a timeline that TESSERA_TRACE has written: `timeline_svg.py trace.json picture.svg`."""

import json
import sys

ROW, WIDTH, LEFT = 26, 860, 60
COLOURS = {"fwd": "#4e79a7", "bwd": "#f28e2b", "update": "#59a14f"}


def draw(events):
    """The text of the picture: a row per IPU, a box per task with the number of its micro-batch."""
    events = [e for e in events if e["ph"] == "X"]
    start = min(e["ts"] for e in events)
    scale = WIDTH / (max(e["ts"] + e["dur"] for e in events) - start)
    rows = max(e["tid"] for e in events) + 1
    size = f'width="{LEFT + WIDTH + 10}" height="{rows * ROW + 10}"'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">']
    out += [f'<text x="4" y="{i * ROW + 22}" font-size="12">IPU {i}</text>' for i in range(rows)]
    for e in events:
        x, y = LEFT + (e["ts"] - start) * scale, e["tid"] * ROW + 6
        width = max(e["dur"] * scale, 1)
        out.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 4}" stroke="white" '
            f'fill="{COLOURS[e["cat"]]}"/>'
        )
        if width > 12 and e["cat"] != "update":
            out.append(
                f'<text x="{x + width / 2:.1f}" y="{y + 15}" font-size="10" fill="white" '
                f'text-anchor="middle">{e["args"]["micro_batch"]}</text>'
            )
    return "\n".join([*out, "</svg>"]) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as trace:
        picture = draw(json.load(trace)["traceEvents"])
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(picture)
