# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""What the checks written in Python share: running commands side by side, and the closing line
`N passed, N failed` (`, N skipped`) after a line `FAILED: name` for each failure."""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include"
JOBS = int(os.environ.get("JOBS", "0")) or os.cpu_count() or 1


class Report:
    """Collects checks; a check is a name and what is wrong ('' when nothing is)."""

    def __init__(self):
        self.passed = 0
        self.failing = []
        self.skipped = 0
        self._started = time.monotonic()

    def check(self, name, wrong):
        if wrong:
            print(f"fail  {name}", flush=True)
            self.failing.append((name, wrong))
        else:
            print(f"ok    {name}", flush=True)
            self.passed += 1

    def skip(self, name, reason):
        print(f"skip  {name}: {reason}", flush=True)
        self.skipped += 1

    def check_all(self, named_functions):
        """Checks (name, function) pairs side by side; a function returns what is wrong."""
        named_functions = list(named_functions)
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            results = pool.map(lambda pair: pair[1](), named_functions)
            for (name, _), wrong in zip(named_functions, results):
                self.check(name, wrong)

    def finish(self):
        for name, wrong in self.failing:
            print(f"\n{name}:\n{indent(wrong)}")
        for name, _ in self.failing:
            print(f"FAILED: {name}")
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        print(f"[{time.monotonic() - self._started:.1f} s]")
        print(f"{self.passed} passed, {len(self.failing)} failed{skipped}")
        sys.exit(1 if self.failing else 0)


def indent(text, lines=40):
    kept = text.strip().splitlines()[:lines]
    return "\n".join("      " + line for line in kept)


def run(command, **kwargs):
    """Exit status and output (stdout and stderr together) of a command."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        **kwargs,
    )
    return done.returncode, done.stdout


def must_run(command, **kwargs):
    """What is wrong with a command that has to succeed without a word of warning."""
    code, output = run(command, **kwargs)
    if code == 0 and "warning" not in output:
        return ""
    return " ".join(str(part) for part in command) + f"\nexit status {code}\n{output}"


def must_refuse(command, expected, **kwargs):
    """What is wrong with a compile that has to fail with each of the expected texts."""
    code, output = run(command, **kwargs)
    if code == 0:
        return " ".join(str(part) for part in command) + "\ncompiled, but must not"
    said = " ".join(output.split())
    missing = [text for text in expected if " ".join(text.split()) not in said]
    if missing:
        return "the message lacks: " + " | ".join(missing) + "\n" + output
    return ""
