# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""The arguments of the header checks, and what is read from the headers."""

import argparse
import pathlib
import re
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
import checks

# The layers, left to right: a header includes only what stands to the left of its own.
LAYERS = [
    ("config", "version"),
    ("core",),
    ("view",),
    ("lse",),
    ("plan",),
    ("reference", "kernel", "transport"),
    ("executor", "pool"),
    ("collective",),
    ("headwise",),
]

STRICT = (
    "-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Werror"
).split()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cxx", nargs="+", default=["g++"])
    parser.add_argument("--nvcc", nargs="*", default=[])
    parser.add_argument("--gencode", nargs="*", default=[])
    parser.add_argument("--listed", nargs="*", default=[])
    parser.add_argument("--build", default="")
    parser.add_argument("--report", default="")
    return parser.parse_args(separate_flags(sys.argv[1:]))


def separate_flags(words):
    """argparse takes a value such as -gencode=... for an option; a leading space stops it."""
    ours = {"--cxx", "--nvcc", "--gencode", "--listed", "--build", "--report", "--help"}
    return [word if word in ours or not word.startswith("-") else " " + word for word in words]


def stripped(words):
    return [word.strip() for word in words]


def compilers(cxx):
    """The build's compiler, and the other of g++ and clang++ where it is installed."""
    found = [stripped(cxx)]
    other = "g++" if is_clang(found[0]) else "clang++"
    if shutil.which(other):
        found.append([other])
    return found


def is_clang(compiler):
    return "clang" in pathlib.Path(compiler[-1]).name


def strict(compiler):
    return STRICT + (["-Wreserved-identifier"] if is_clang(compiler) else [])


def name_of(compiler):
    return pathlib.Path(compiler[-1]).name


def headers(suffixes=(".hpp", ".cuh")):
    """Names as in an #include, such as headwise/view/slice.hpp."""
    paths = (checks.INCLUDE / "headwise").rglob("*")
    return sorted(str(p.relative_to(checks.INCLUDE)) for p in paths if p.suffix in suffixes)


def host_headers():
    return headers((".hpp",))


def text_of(header):
    return (checks.INCLUDE / header).read_text()


def includes_of(header):
    """(delimiter, name) of each include."""
    pattern = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
    return pattern.findall(text_of(header))


def reached_from(header):
    """All headers of ours, and all others, that a header reaches."""
    ours, others, todo = set(), set(), [header]
    while todo:
        now = todo.pop()
        if now in ours:
            continue
        ours.add(now)
        for _, name in includes_of(now):
            if name.startswith("headwise/") and (checks.INCLUDE / name).exists():
                todo.append(name)
            else:
                others.add(name)
    return ours, others


def layer_of(header):
    top = pathlib.PurePath(header).parts[1].split(".")[0]
    for index, names in enumerate(LAYERS):
        if top in names:
            return index
    raise SystemExit(f"{header} lies in no layer")


def include_lines(names):
    return "".join(f"#include <{name}>\n" for name in names)
