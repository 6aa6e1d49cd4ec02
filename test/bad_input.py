# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""docs/bad_input.md says what each wrong use gets: each row names tests that exist, and the words that
it quotes are those that the tests expect.

Quotations of a row with a compile-fail test must begin an `// expect:` line of one of its tests; whole
sentences of a status (code, operand, both values) must stand in one of its unit tests that compare
sentences. Fails on fewer than 25 rows too.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "test" / "support"))
import checks

TABLE = ROOT / "docs" / "bad_input.md"
ROW = re.compile(r"^\| (.+) \| (.+) \| (.*) \|$")
QUOTED = re.compile(r"`([^`]+)`")


def rows():
    for number, line in enumerate(TABLE.read_text().splitlines(), 1):
        match = ROW.match(line)
        if match and not match[1].startswith(("wrong use", "-")):
            yield number, match[1], match[2], match[3]


def tests_of(cell):
    """The files that a cell names; `view_x` after `compile_fail/view_y` is in the same folder."""
    folder = ""
    for name in QUOTED.findall(cell):
        folder, _, stem = name.rpartition("/") if "/" in name else (folder, "", name)
        yield ROOT / "test" / folder / (stem + (".cu" if folder in ("gpu", "multi_gpu") else ".cpp"))


def text_of(path):
    """The file with adjacent string literals joined."""
    return re.sub(r'"\s*"', "", path.read_text())


def wrong_with(use, gets, cell):
    tests = list(tests_of(cell))
    missing = [str(path.relative_to(ROOT)) for path in tests if not path.exists()]
    if missing:
        return "no such test: " + ", ".join(missing)
    expected = [
        line.split("// expect:", 1)[1].strip()
        for path in tests
        if path.parent.name == "compile_fail"
        for line in path.read_text().splitlines()
        if line.startswith("// expect:")
    ]
    sentences = "".join(text_of(path) for path in tests if path.parent.name == "unit")
    for quotation in QUOTED.findall(gets):
        if quotation.startswith("headwise: "):
            if not any(line.startswith(quotation) or quotation.startswith(line) for line in expected):
                return f"no test of it expects: {quotation}"
        elif re.match(r"[a-z_]+: .*: got .*: ", quotation) and "sentence(" in sentences:
            if quotation not in sentences:
                return f"no test of it says: {quotation}"
    return ""


def main():
    report = checks.Report()
    found = list(rows())
    report.check(
        f"bad input: at least 25 wrong uses ({len(found)})",
        "" if len(found) >= 25 else f"{len(found)} rows",
    )
    wrong = [(number, wrong_with(use, gets, cell)) for number, use, gets, cell in found]
    report.check(
        "bad input: every row has its test, and quotes it",
        "\n".join(f"line {number}: {what}" for number, what in wrong if what),
    )
    report.finish()


if __name__ == "__main__":
    main()
