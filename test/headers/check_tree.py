# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""What can be told without a compiler: layers, lists, stems, first lines."""

import pathlib
import re

import common
from common import checks

# Costly to include, or a sign that a header does what it should not (printing, allocating).
# The transport of threads needs a few of them.
NOT_IN_HEADERS = {
    "fstream",
    "functional",
    "iomanip",
    "iostream",
    "map",
    "memory",
    "regex",
    "sstream",
    "string",
    "thread",
    "unordered_map",
    "vector",
}
MAY_USE_THEM = {"headwise/transport/in_process.hpp"}
CUDA_HEADER = re.compile(r"^(cuda|cub/|thrust/|nccl|cooperative_groups|vector_types|.*\.cuh$)")


def layering(header):
    wrong = []
    own = common.layer_of(header)
    folder = pathlib.PurePath(header).parent
    for delimiter, name in common.includes_of(header):
        if delimiter == '"':
            wrong.append(f'"{name}" must be included with <>')
        if not name.startswith("headwise/"):
            continue
        if not (checks.INCLUDE / name).exists():
            wrong.append(f"<{name}> does not exist")
        elif pathlib.PurePath(name).parent != folder and common.layer_of(name) >= own:
            wrong.append(f"<{name}> does not stand to the left of {header}")
    return "\n".join(wrong)


def host_only(header):
    if not header.endswith(".hpp"):
        return ""
    names = [name for _, name in common.includes_of(header)]
    return "\n".join(f"<{name}> needs CUDA" for name in names if CUDA_HEADER.match(name))


def light(header):
    if header in MAY_USE_THEM:
        return ""
    names = {name for _, name in common.includes_of(header)}
    return "\n".join(f"includes <{name}>" for name in sorted(names & NOT_IN_HEADERS))


def guarded(header):
    directives = re.findall(r"^[ \t]*#.*$", common.text_of(header), re.MULTILINE)
    return "" if directives and directives[0] == "#pragma once" else "no #pragma once on top"


def umbrella_is_light():
    ours, others = common.reached_from("headwise/headwise.hpp")
    heavy = sorted(
        {name for name in ours if name.startswith("headwise/transport/in_process")}
        | (others & {"thread", "condition_variable", "mutex"})
    )
    return "\n".join(f"headwise.hpp reaches <{name}>" for name in heavy)


def same(what, listed, found):
    missing = [f"{name} is in the tree, not in {what}" for name in sorted(found - listed)]
    stale = [f"{name} is in {what}, not in the tree" for name in sorted(listed - found)]
    return "\n".join(missing + stale)


def sources_listed(folder, pattern):
    """Each source must stand in its folder's meson.build by name."""
    build = checks.ROOT / folder / "meson.build"
    if not build.exists():
        return ""
    named = set(re.findall(r"'([\w/.-]+)'", build.read_text()))
    found = {path.relative_to(build.parent) for path in build.parent.glob(pattern)}
    # A fuzz target is listed by its stem.
    left_out = [path for path in found if not named & {str(path), path.stem}]
    return "\n".join(f"{folder}/{path} is not in {folder}/meson.build" for path in sorted(left_out))


def stems():
    wrong = []
    kernels = [
        path
        for path in map(pathlib.PurePath, common.headers((".cuh",)))
        if path.parts[1] == "kernel"
    ]
    for path in kernels:
        # STEM_part.cuh is a part of STEM.cuh, which has them.
        if any(path.stem.startswith(other.stem + "_") for other in kernels):
            continue
        for wanted in (
            f"include/headwise/reference/{path.stem}.hpp",
            f"test/gpu/{path.stem}.cu",
            f"bench/{path.stem}.cu",
        ):
            if not (checks.ROOT / wanted).exists():
                wrong.append(f"{path} has no {wanted}")
    return "\n".join(wrong)


def first_lines():
    wrong = []
    for top in ("include", "examples", "test", "bench"):
        for path in sorted((checks.ROOT / top).rglob("*")):
            if path.suffix not in (".hpp", ".cuh", ".cpp", ".cu", ".py") and (
                path.name != "meson.build"
            ):
                continue
            mark = "//" if path.suffix in (".hpp", ".cuh", ".cpp", ".cu") else "#"
            lines = path.read_text().splitlines()
            while lines and lines[0].startswith(("#!", "// expect:")):
                del lines[0]
            if lines[:2] != [
                f"{mark} SPDX-License-Identifier: MIT",
                f"{mark} SPDX-FileCopyrightText: 2026 The Headwise authors",
            ]:
                wrong.append(str(path.relative_to(checks.ROOT)))
    return "without the two SPDX lines on top: " + ", ".join(wrong) if wrong else ""


def main():
    args = common.arguments()
    report = checks.Report()
    headers = common.headers()

    def each(name, function):
        wrong = [f"{header}: {said}" for header in headers if (said := function(header))]
        report.check(f"{name} ({len(headers)} headers)", "\n".join(wrong))

    each("headers include only layers to their left, with <>", layering)
    each("no .hpp includes a CUDA header", host_only)
    each("no header includes a costly standard header", light)
    each("every header begins with #pragma once", guarded)
    if "headwise/headwise.hpp" in headers:
        report.check("headwise.hpp leaves the threads out", umbrella_is_light())

    listed = {str(pathlib.Path(path).resolve().relative_to(checks.INCLUDE)) for path in args.listed}
    report.check("include/meson.build lists the tree", same("the list", listed, set(headers)))
    for folder, pattern in (
        ("test/unit", "*.cpp"),
        ("test/property", "*.cpp"),
        ("test/fuzz", "*.cpp"),
        ("test/gpu", "*.cu"),
        ("test/multi_gpu", "*.cu"),
        ("bench", "*.c*"),
        ("examples", "**/*.c*"),
    ):
        report.check(f"{folder}/meson.build lists each source", sources_listed(folder, pattern))
    report.check("each kernel has its reference, test and bench", stems())
    report.check("every source begins with the SPDX lines", first_lines())
    report.finish()


if __name__ == "__main__":
    main()
