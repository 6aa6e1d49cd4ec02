# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""What including each header costs, over a file that includes <array>, <concepts> and <span>.

compile_time.py [--build DIR] [--compiler CXX] [--repeat N]

User and system time of the compiler, median of N runs, baseline and candidate interleaved. Fails if
the umbrella headwise.hpp costs more than the budget.
"""

import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BASE = "#include <array>\n#include <concepts>\n#include <span>\n"
BUDGET_SECONDS = 0.35


def compile_seconds(compiler, source):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [*compiler, "-std=c++20", f"-I{ROOT / 'include'}", "-c", source, "-o", os.devnull],
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--build", help="ignored: nothing has to be built for this bench")
    options.add_argument("--compiler", default=os.environ.get("CXX", "g++"))
    options.add_argument("--repeat", type=int, default=5)
    arguments = options.parse_args()
    compiler = [*arguments.compiler.split(), "-x", "c++"]
    headers = sorted(
        path.relative_to(ROOT / "include").as_posix()
        for path in (ROOT / "include").rglob("*.hpp")
    )
    version = subprocess.run(
        [*arguments.compiler.split(), "--version"], check=True, capture_output=True, text=True
    )
    print(version.stdout.splitlines()[0])
    print(f"{'header':48} {'seconds over the baseline':>26}")
    umbrella = 0.0
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder, "base.cpp")
        base.write_text(BASE)
        for header in headers:
            source = pathlib.Path(folder, "candidate.cpp")
            source.write_text(f"{BASE}#include <{header}>\n")
            pairs = [
                (compile_seconds(compiler, base), compile_seconds(compiler, source))
                for _ in range(arguments.repeat)
            ]
            cost = statistics.median(after - before for before, after in pairs)
            if header == "headwise/headwise.hpp":
                umbrella = cost
            print(f"{header:48} {cost:26.3f}")
    print(f"headwise/headwise.hpp: {umbrella:.3f} s of a budget of {BUDGET_SECONDS} s")
    return 0 if umbrella <= BUDGET_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
