# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""What packing a head-sliced view costs beside the loop that one would write by hand.

pack_instructions.py [--build DIR] [--program FILE]

Counts the instructions of each function of pack_instructions.cpp, memcpy included, with callgrind.
Fails if a view of static strides costs more than 1.05 times the loop, or if a contiguous copy is
not one call of memcpy.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

BUDGET_RATIO = 1.05
SHAPES = ["bf16_512", "bf16_64", "fp32_512", "fp32_64"]


def measure(program, function):
    """Instructions inside one call of a function, and calls of memcpy made there."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "callgrind.out"
        run = subprocess.run(
            [
                "valgrind",
                "--tool=callgrind",
                f"--toggle-collect={function}",
                f"--callgrind-out-file={out}",
                program,
            ],
            capture_output=True,
            text=True,
            env={**os.environ, "LD_BIND_NOW": "1"},  # or the first call looks memcpy up
        )
        if run.returncode != 0:
            sys.exit(f"{program}: {run.stdout}{run.stderr}")
        return parse(out.read_text())


def parse(profile):
    """Of callgrind's format: `summary:` is the sum; `cfn=(7) name` or `cfn=(7)` names whom the next
    `calls=` line is about; the name stands beside a number only once."""
    names = {}
    instructions = calls = 0
    callee = ""
    for line in profile.splitlines():
        named = re.match(r"c?fn=\((\d+)\)(?: (.*))?", line)
        if named:
            number, name = named.groups()
            if name:
                names[number] = name
            if line.startswith("cfn="):
                callee = names.get(number, "")
        elif line.startswith("calls=") and re.search("mem(cpy|move)", callee):
            calls += int(line[len("calls=") :].split()[0])
        elif line.startswith(("summary:", "totals:")):
            instructions = int(line.split()[1])
    return instructions, calls


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--build", default="build/bench", help="where the benches are built")
    options.add_argument("--program", help="the program, if it is elsewhere")
    arguments = options.parse_args()
    program = arguments.program or str(pathlib.Path(arguments.build) / "bench/pack_instructions")

    wrong = []
    print("| 22 of 32 heads, 64 tokens | instructions | calls of memcpy | by hand | ratio |")
    print("|-|-|-|-|-|")

    def row(name, function, by_hand, budget):
        instructions, calls = measure(program, function)
        ratio = instructions / by_hand
        print(f"| {name} | {instructions:,} | {calls} | {by_hand:,} | {ratio:.4f} |", flush=True)
        if instructions == 0:
            wrong.append(f"{function}: nothing was counted")
        if budget and ratio > BUDGET_RATIO:
            wrong.append(f"{function}: {ratio:.3f} times the loop by hand")

    for shape in SHAPES:
        by_hand, _ = measure(program, f"by_hand_{shape}")
        row(f"{shape}, all static", f"static_{shape}", by_hand, True)
        row(f"{shape}, run-time batch", f"batch_{shape}", by_hand, True)
        if shape == "bf16_512":
            row(f"{shape}, all at run time", f"dynamic_{shape}", by_hand, False)

    print("\n| contiguous copy | instructions | calls of memcpy |")
    print("|-|-|-|")
    for kind in ["static", "batch", "dynamic"]:
        instructions, calls = measure(program, f"contiguous_{kind}")
        print(f"| {kind} | {instructions:,} | {calls} |", flush=True)
        if calls != 1:
            wrong.append(f"contiguous_{kind}: {calls} calls of memcpy")

    for what in wrong:
        print(f"FAILED: {what}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
