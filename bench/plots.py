#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""Draws what the GPU benches measured.

plots.py [--out DIR] [--temperature cold|warm] CSV...

Takes the CSV files that the benches write (--csv) and writes pack.svg, lse_combine.svg,
share_of_copy.svg and peer_pool.svg, each if its bench is among the files. The pictures have no
background, and colours that can be read on a light and on a dark one.
"""

import argparse
import csv
import html
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]

INK = "#767676"  # contrast above 4 to white and to #0d1117
GRID = "#76767640"
BLUE, ORANGE, GREEN, PURPLE = "#3f83f8", "#e0700f", "#219653", "#a35ee8"

# bench: title, shapes (one panel per N), variants as (name, label, colour, dashed)
TIMES = {
    "pack": (
        "kernel::pack, 128 heads of 512 bf16, to all peers",
        r"N=(?P<n>\d+) B=(?P<b>\d+) 128 of 144 heads",
        [
            ("head-sliced", "128 of 144 heads", BLUE, False),
            ("dense", "dense", ORANGE, False),
            ("memcpy", "copy of the payload", GREEN, True),
            ("empty_kernel", "empty kernel", INK, True),
        ],
    ),
    "lse_combine": (
        "kernel::lse_combine, 128 / N heads of 512 bf16",
        r"N=(?P<n>\d+) B=(?P<b>\d+) of 128 heads",
        [
            ("received shards", "N messages into one output", BLUE, False),
            ("memcpy of as many bytes", "copy of as many bytes", GREEN, True),
            ("empty_kernel", "empty kernel", INK, True),
        ],
    ),
}
# the shares, as (bench, variant, label, colour, dashed)
SHARES = [
    ("pack", "head-sliced", "pack, 128 of 144 heads", BLUE, False),
    ("pack", "dense", "pack, dense", ORANGE, False),
    ("lse_combine", "received shards", "combine", PURPLE, False),
]
# the pool, warm: panels as (title, shapes), variants as (name, label, colour, dashed)
POOL_PANELS = [
    ("lse_reduce_scatter, 128 of 144 heads", r"(?P<b>\d+)x128 of 144 N=2"),
    ("lse_reduce_scatter, 22 of 32 heads", r"(?P<b>\d+)x22 of 32 N=2"),
    ("all_gather_heads, 64 heads of 576", r"gather (?P<b>\d+)x64x576 N=2"),
]
POOL_VARIANTS = [
    ("nccl, launches overlap", "over NCCL", ORANGE, False),
    ("pool, launches overlap", "peer pool", BLUE, False),
    ("ll, launches overlap", "ll", GREEN, True),
    ("push, launches overlap", "push", PURPLE, True),
]
WIRE_BYTES_PER_US = 364e3  # one way over 18 NVLinks, as a large copy has it

PANEL_WIDTH, PANEL_HEIGHT = 330, 250
LEFT, TOP, GAP, BOTTOM, RIGHT = 64, 78, 74, 52, 18


def read(paths):
    rows = []
    for path in paths:
        with open(path, newline="") as file:
            rows += csv.DictReader(file)
    return rows


def points(rows, bench, variant, temperature, column):
    """{N: [(B, value)]}, by rising B."""
    shape = re.compile(TIMES[bench][1])
    found = {}
    for row in rows:
        match = shape.fullmatch(row["shape"])
        if match is None or (row["bench"], row["variant"], row["temperature"]) != (
            bench,
            variant,
            temperature,
        ):
            continue
        found.setdefault(int(match["n"]), {})[int(match["b"])] = float(row[column])
    return {n: sorted(values.items()) for n, values in found.items()}


class Axis:
    """Maps numbers to places along an axis of a panel."""

    def __init__(self, low, high, length, ticks, logarithmic):
        self.change = math.log if logarithmic else float
        self.low, self.high = self.change(low), self.change(high)
        self.length = length
        self.ticks = ticks

    def place(self, value):
        return (self.change(value) - self.low) / (self.high - self.low) * self.length


def log_axis(values, length):
    """From one of 1, 2, 5, 10, .. to another, around all values."""
    steps = [m * 10.0**e for e in range(-3, 7) for m in (1, 2, 5)]
    low = max((s for s in steps if s <= min(values)), default=steps[0])
    high = min((s for s in steps if s > max(values)), default=steps[-1])
    return Axis(low, high, length, [s for s in steps if low <= s <= high], True)


def text(x, y, what, anchor="middle", size=12, colour=INK, extra=""):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{colour}" {extra}>{html.escape(what)}</text>'
    )


def line(x1, y1, x2, y2, colour, extra=""):
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {extra}/>'
    )


def panel(left, title, x_axis, y_axis, y_label, curves):
    """`curves`: (points, colour, dashed)."""
    bottom = TOP + PANEL_HEIGHT
    out = [text(left + PANEL_WIDTH / 2, TOP - 10, title, size=13)]
    for tick in y_axis.ticks:
        y = bottom - y_axis.place(tick)
        out.append(line(left, y, left + PANEL_WIDTH, y, GRID))
        out.append(text(left - 7, y + 4, f"{tick:g}", "end"))
    for tick in x_axis.ticks:
        x = left + x_axis.place(tick)
        out.append(line(x, TOP, x, bottom, GRID))
        out.append(text(x, bottom + 17, f"{tick:g}"))
    out.append(line(left, bottom, left + PANEL_WIDTH, bottom, INK))
    out.append(line(left, TOP, left, bottom, INK))
    out.append(text(left + PANEL_WIDTH / 2, bottom + 38, "B (tokens)"))
    middle = TOP + PANEL_HEIGHT / 2
    turn = f'transform="rotate(-90 {left - 44:.1f} {middle:.1f})"'
    out.append(text(left - 44, middle, y_label, extra=turn))
    for series, colour, dashed in curves:
        places = [(left + x_axis.place(b), bottom - y_axis.place(v)) for b, v in series]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dash = 'stroke-dasharray="5 4" ' if dashed else ""
        out.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" {dash}/>'
        )
        if not dashed:
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    return out


def picture(title, panels, legend):
    width = LEFT + len(panels) * PANEL_WIDTH + (len(panels) - 1) * GAP + RIGHT
    height = TOP + PANEL_HEIGHT + BOTTOM
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" role="img">',
        f"<title>{html.escape(title)}</title>",
        text(LEFT, 20, title, "start", 15),
    ]
    x = LEFT
    for label, colour, dashed in legend:
        dash = 'stroke-width="2" ' + ('stroke-dasharray="5 4"' if dashed else "")
        out.append(line(x, 40, x + 24, 40, colour, dash))
        out.append(text(x + 30, 44, label, "start"))
        x += 46 + 6.6 * len(label)
    for i, part in enumerate(panels):
        out += panel(LEFT + i * (PANEL_WIDTH + GAP), *part)
    return "\n".join(out + ["</svg>", ""])


def x_axis_of(curves):
    batches = sorted({b for series, _, _ in curves for b, _ in series})
    last = batches[-1] if len(batches) > 1 else 2 * batches[0]
    return Axis(batches[0], last, PANEL_WIDTH, batches, True)


def curves_of(rows, lines, temperature, column):
    """Of `lines` (bench, variant, label, colour, dashed): ({N: curves}, the legend of what was found)."""
    by_n = {}
    legend = []
    for bench, variant, label, colour, dashed in lines:
        found = points(rows, bench, variant, temperature, column)
        if found:
            legend.append((label, colour, dashed))
        for n, series in found.items():
            by_n.setdefault(n, []).append((series, colour, dashed))
    return by_n, legend


def times(rows, bench, temperature):
    title, _, variants = TIMES[bench]
    by_n, legend = curves_of(rows, [(bench, *one) for one in variants], temperature, "us")
    if not by_n:
        return None
    values = [v for curves in by_n.values() for series, _, _ in curves for _, v in series]
    panels = [
        (f"N = {n}", x_axis_of(by_n[n]), log_axis(values, PANEL_HEIGHT), "time (µs)", by_n[n])
        for n in sorted(by_n)
    ]
    return picture(f"{title}, {temperature}", panels, legend)


def shares(rows, temperature):
    by_n, legend = curves_of(rows, SHARES, temperature, "share_of_copy")
    if not by_n:
        return None
    most = max(v for curves in by_n.values() for series, _, _ in curves for _, v in series)
    top = max(1.0, math.ceil(5 * most) / 5)
    ticks = [i / 5 for i in range(round(5 * top) + 1)]
    panels = []
    for n in sorted(by_n):
        x_axis = x_axis_of(by_n[n])
        whole = ([(x_axis.ticks[0], 1.0), (x_axis.ticks[-1], 1.0)], GREEN, True)
        y_axis = Axis(0, top, PANEL_HEIGHT, ticks, False)
        panels.append((f"N = {n}", x_axis, y_axis, "share of copy bandwidth", [whole] + by_n[n]))
    title = f"Bandwidth beside that of a large copy on the device, {temperature}"
    return picture(title, panels, legend + [("large copy", GREEN, True)])


def pool_times(rows):
    """Beside the path over NCCL of the same turns, and what the bytes alone would take."""
    found = []
    for title, shapes in POOL_PANELS:
        series = {}
        wire = {}
        for row in rows:
            match = re.fullmatch(shapes, row["shape"])
            if row["bench"] != "peer_pool" or match is None:
                continue
            batch = int(match["b"])
            series.setdefault(row["variant"], {})[batch] = float(row["us"])
            wire[batch] = float(row["bytes"]) / WIRE_BYTES_PER_US
        curves = [
            (sorted(series[name].items()), colour, dashed)
            for name, _, colour, dashed in POOL_VARIANTS
            if name in series
        ]
        if curves:
            found.append((title, curves + [(sorted(wire.items()), INK, True)]))
    if not found:
        return None
    values = [v for _, curves in found for series, _, _ in curves for _, v in series]
    y_axis = log_axis(values, PANEL_HEIGHT)
    panels = [(title, x_axis_of(curves), y_axis, "time (µs)", curves) for title, curves in found]
    legend = [(label, colour, dashed) for _, label, colour, dashed in POOL_VARIANTS]
    return picture(
        "Two GPUs, bf16, launches overlap", panels, legend + [("bytes / 364 GB/s", INK, True)]
    )


def main():
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("csv", nargs="*", metavar="CSV", help="what a bench wrote with --csv")
    options.add_argument("--out", default=str(ROOT / "docs/plots"), help="folder (docs/plots)")
    options.add_argument("--temperature", choices=("cold", "warm"), default="cold")
    arguments = options.parse_args()
    if not arguments.csv:
        options.print_help()
        return 0
    rows = read(arguments.csv)
    drawn = {f"{bench}.svg": times(rows, bench, arguments.temperature) for bench in TIMES}
    drawn["share_of_copy.svg"] = shares(rows, arguments.temperature)
    drawn["peer_pool.svg"] = pool_times(rows)
    out = pathlib.Path(arguments.out)
    for name, content in drawn.items():
        if content is None:
            continue
        out.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(content)
        print(out / name)
    if not any(drawn.values()):
        print("nothing to draw in these files", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
