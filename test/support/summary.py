# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""Adds up what the tests of several build folders closed with.

summary.py LABEL=BUILD_FOLDER...

A doctest case and a check of a script count one each. A program run again under a sanitizer counts
as one check, not as its cases once more. Skipped is not passed.
"""

import json
import pathlib
import re
import sys

CLOSING = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.MULTILINE)
FAILED = re.compile(r"^FAILED: (.*)$", re.MULTILINE)
SKIPPED = re.compile(r"^(?:skip  |SKIPPED: )(.*)$", re.MULTILINE)
FUZZED = re.compile(r"number_of_executed_units: (\d+)")
SANITIZERS = {"asan": "under ASan and UBSan", "tsan": "under TSan"}


def main():
    passed, skipped, failing, reasons, executions = 0, 0, [], [], 0
    for label, folder in (argument.split("=", 1) for argument in sys.argv[1:]):
        logs = list((pathlib.Path(folder) / "meson-logs").glob("testlog*.json"))
        if not logs or (pathlib.Path(folder) / "meson-logs" / "build-failed").exists():
            failing.append(f"{label}: the build in {folder}")
        for line in "".join(log.read_text() for log in logs).splitlines():
            test = json.loads(line)
            name, result, output = test["name"], test["result"], test.get("stdout", "")
            name = name.split(" / ")[-1]
            output += test.get("stderr", "")
            executions += sum(map(int, FUZZED.findall(output)))
            closings = CLOSING.findall(output)
            good, bad, omitted = (int(n or 0) for n in (closings[-1] if closings else (0, 0, 0)))
            named = FAILED.findall(output)
            if label in SANITIZERS:
                name += " " + SANITIZERS[label]
                good, omitted = (1, 0) if result == "OK" else (0, 0)
            elif not closings and result == "OK":
                good = 1
            if result == "SKIP":
                good, omitted = 0, omitted or 1
            ended_well = result in ("OK", "SKIP") and bad == 0
            if not ended_well:
                # A crash or a time-out leaves no names behind.
                named = named or [f"({result.lower()})"]
                failing += [f"{name}: {failed}" for failed in named]
                good = 0 if result not in ("OK", "FAIL") else good
            reasons += [f"{name}: {reason}" for reason in SKIPPED.findall(output)]
            passed += good
            skipped += omitted
            print(f"{name:40} {good:5} passed {test['duration']:7.1f} s  {result}")
    if executions:
        print(f"fuzz executions: {executions}")
    for reason in reasons:
        print(f"skipped: {reason}")
    for name in failing:
        print(f"FAILED: {name}")
    print(
        f"{passed} passed, {len(failing)} failed" + (f", {skipped} skipped" if skipped else "")
    )
    sys.exit(1 if failing or not passed else 0)


if __name__ == "__main__":
    main()
