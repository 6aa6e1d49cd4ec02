# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""The catalogue of known faults: which test shows that each cannot happen here.

Each id (A01 and so on) is a fault that users of decode context parallelism have hit. A test of one
carries its id at the start of its name. Prints id, file, test and first assertion; fails if an id
is without a test, or its test without an assertion.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "test" / "support"))
import checks

DEMANDED = """
A01 A03 A05 A06 A07 A08 A10 A11 A12 A13 A15
B01 B03 B04 B05 B06 B08 B09
C01 C04 C05 C07 C08 C09 C11 C12 C13 C15 C16 C17 C19
D01 D03 D05 D06 D08 D10 D11
E01 E03 E06 E07 E08 E09 E10 E11
F01 F03 F05 F06 F08
G01 G02 G04 G06
H01 H02 H04 H06 H08 H09 H11
I01 I03 I04 I06 I07 I08 I10 I11 I13 I14
J01 J02 J03 J05 J06 J08
K01 K03 K05
L01 L02 L05 L06 L08
M01 M03
N01 N02 N04 N05 N06 N08 N11 N12 N14 N15
""".split()
# Not demanded: J10 (about a three-stage buffer; there is none here).

IDS = r"([A-N]\d\d)"
# TEST_CASE("A01: ...", also TEST_CASE_TEMPLATE and TEST_CASE_FIXTURE(fixture, "...").
DOCTEST = re.compile(r'TEST_CASE\w*\(\s*(?:\w+,\s*)?"((?:\\.|[^"\\])*)"')
# Of doctest, of the language, or a function check_... of the file that asserts.
ASSERTION = re.compile(
    r"(?:CHECK|REQUIRE|static_assert|check_)\w*(?:<[^<>]*>)?\s*\([^;]*;", re.DOTALL
)


def leading_ids(name):
    """The ids that a name begins with: `A05: A06: strided unpack` has two."""
    return re.findall(IDS, re.match(rf"(?:\s*{IDS}[:,]?)*", name)[0])


def doctest_cases(path):
    text = path.read_text()
    starts = list(DOCTEST.finditer(text))
    for start, following in zip(starts, [s.start() for s in starts[1:]] + [len(text)]):
        body = text[start.end() : following]
        first = ASSERTION.search(body)
        yield start[1], line_of(text, start), first and " ".join(first[0].split())


def line_of(text, match):
    return text.count("\n", 0, match.start()) + 1


def compile_fail_cases(path):
    text = path.read_text()
    expected = re.search(r"// expect:\s*(.*)", text)
    name = path.stem.replace("_", ": ", 1)
    yield name, 1, expected and f"refused: {expected[1]}"


def script_checks(path):
    """Checks of the header scripts, named in strings that begin with an id."""
    text = path.read_text()
    for match in re.finditer(rf'"({IDS}:[^"]*)"', text):
        yield match[1], line_of(text, match), "run by the script"


def found():
    readers = [
        ("test/unit/*.cpp", doctest_cases),
        ("test/property/*.cpp", doctest_cases),
        ("test/gpu/*.cu", doctest_cases),
        ("test/multi_gpu/*.cu", doctest_cases),
        ("test/compile_fail/*.cpp", compile_fail_cases),
        ("test/headers/check_*.py", script_checks),
    ]
    for pattern, read in readers:
        for path in sorted(ROOT.glob(pattern)):
            for name, line, assertion in read(path):
                for case_id in leading_ids(name):
                    yield case_id, f"{path.relative_to(ROOT)}:{line}", name, assertion


def main():
    report = checks.Report()
    by_id = {case_id: [] for case_id in DEMANDED}
    for case_id, where, name, assertion in found():
        by_id.setdefault(case_id, []).append((where, name, assertion))
    missing, empty = [], []
    for case_id, tests in sorted(by_id.items()):
        if not tests:
            missing.append(case_id)
        for where, name, assertion in tests:
            print(f"{case_id}  {where}  {name}\n     {(assertion or '(none)')[:100]}")
            if not assertion:
                empty.append(f"{where} {name}")
    covered = len(DEMANDED) - len(missing)
    report.check(
        f"every case has a test ({covered} of {len(DEMANDED)})",
        "without a test: " + " ".join(missing) if missing else "",
    )
    report.check("every test of a case asserts something", "\n".join(empty))
    report.finish()


if __name__ == "__main__":
    main()
