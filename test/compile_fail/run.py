# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""Each .cpp of this folder shows one wrong use. It must fail to compile, and the compiler must say
what the file's `// expect: ...` lines say, which is a text of ours. With -DPASS it must compile, so
that the failure is due to the one use and not to a typing error.

    run.py COMPILER... [--only NAME]
"""

import pathlib
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
import checks


def expectations(source):
    marker = "// expect:"
    return [
        line.split(marker, 1)[1].strip()
        for line in source.read_text().splitlines()
        if line.startswith(marker)
    ]


def wrong_with(source, compilers):
    expected = expectations(source)
    if not expected:
        return "has no `// expect: ...` line"
    for compiler in compilers:
        command = [*compiler, "-std=c++20", "-fsyntax-only", "-I", checks.INCLUDE, source]
        wrong = checks.must_refuse(command, expected)
        # That the rest of the file is sound, one compiler can tell for both.
        if not wrong and compiler is compilers[0]:
            wrong = checks.must_run(command + ["-DPASS"])
        if wrong:
            return wrong
    return ""


def main():
    arguments = sys.argv[1:]
    only = ""
    if "--only" in arguments:
        at = arguments.index("--only")
        only = arguments[at + 1]
        del arguments[at : at + 2]
    compilers = [arguments]
    # The words are ours, so every compiler has to say them.
    if "clang" not in arguments[-1] and shutil.which("clang++"):
        compilers.append(["clang++"])

    report = checks.Report()
    sources = sorted(path for path in HERE.glob("*.cpp") if only in path.name)
    report.check_all(
        (f"refused: {path.stem}", lambda path=path: wrong_with(path, compilers))
        for path in sources
    )
    report.finish()


if __name__ == "__main__":
    main()
