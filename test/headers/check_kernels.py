# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""Every kernel builds for every architecture without a warning and keeps all it has in registers:
ptxas reports no stack and no spills. Prints the registers and the shared memory of each.

    check_kernels.py --nvcc NVCC... [--report FILE]    also writes the table, as Markdown

Exit status 77: no nvcc.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import common
from common import checks

ARCHITECTURES = ("80", "90", "90a", "100", "120")
SOURCE = common.HERE / "kernels.cu"
WARNINGS = (
    "-Werror=all-warnings --display-error-number "
    "-Xcompiler=-Wall,-Wextra,-Wshadow,-Wconversion,-Wsign-conversion"
).split()

FUNCTION = re.compile(r"Function properties for (\S+)")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(")


class Usage:
    """What ptxas says of one function."""

    def __init__(self, symbol):
        self.symbol = symbol
        self.local = None
        self.registers = 0
        self.shared = 0


def usages(said):
    found = []
    for line in said.splitlines():
        if match := FUNCTION.search(line):
            found.append(Usage(match[1]))
        elif found and (match := STACK.search(line)):
            found[-1].local = tuple(int(number) for number in match.groups())
        elif found and (match := USED.search(line)):
            found[-1].registers = int(match[1])
            found[-1].shared = int(match[2] or 0)
    return found


def demangled(symbols):
    if not shutil.which("c++filt") or not symbols:
        return symbols
    done = subprocess.run(
        ["c++filt"], input="\n".join(symbols), stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()


def without_parameters(name):
    """`void f<T>(A)` as `f<T>`; the types of the parameters say nothing that those of T do not."""
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return name[:at].removeprefix("void ")
    return name


def view_in_short(match):
    """`bf16 [token, head 22]`: the axes of a view, and the extents that its type knows."""
    axes = re.findall(r"dim<(\w+), (-?\d+)l?, (-?\d+)l?>", match[2])
    told = [axis if int(extent) < 0 else f"{axis} {extent}" for axis, extent, _ in axes]
    return f"{match[1].removesuffix(' const')} [{', '.join(told)}]"


def in_short(name):
    name = without_parameters(name)
    name = re.sub(r"\b(headwise|v0|detail|axis|nan_policy)::", "", name)
    name = re.sub(r"lse<\(log_base\)\d>", "lse", name)
    name = name.replace("(log_base)0", "base e").replace("(log_base)1", "base two")
    name = re.sub(r"view<([\w ]+), layout<((?:dim<[^>]*>,? ?)+)>, \(memory_space\)\d>", view_in_short, name)
    name = re.sub(r"(combine_kernel<[\w ]+), (\d+), (\d+), true", r"\1, \2, N <= \3", name)
    name = re.sub(r"(combine_kernel<[\w ]+), (\d+), \d+, false", r"\1, \2, any N", name)
    name = name.replace("_kernel<", "<").replace("_shards<", "<").replace("none_t", "-")
    return name.replace(" >", ">")


def known_to(nvcc):
    """The architectures that this nvcc compiles for; of 90a it tells only 90."""
    code, said = checks.run([*nvcc, "--list-gpu-code"])
    return set(re.findall(r"sm_(\d+)", said)) if code == 0 else set(ARCHITECTURES)


def compiled(nvcc, architecture, *how):
    """What is wrong, and what ptxas said."""
    gencode = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    command = [*nvcc, "-std=c++20", gencode, "-Xptxas", "-v", *WARNINGS, "-I", checks.INCLUDE, *how]
    with tempfile.TemporaryDirectory() as scratch:
        code, said = checks.run([*command, SOURCE, "-o", pathlib.Path(scratch, "out")])
    found = usages(said)
    if code != 0 or "warning" in said:
        return " ".join(str(part) for part in command) + f"\nexit status {code}\n{said}", found
    names = demangled([one.symbol for one in found])
    wrong = []
    for one, name in zip(found, names):
        if one.local is None:
            wrong.append(f"{in_short(name)}: ptxas does not say what it uses")
        elif any(one.local):
            wrong.append(
                f"{in_short(name)}: {one.local[0]} bytes of stack, "
                f"{one.local[1]} of spill stores, {one.local[2]} of spill loads"
            )
    headers = (checks.INCLUDE / "headwise" / "kernel").glob("*.cuh")
    for kernel in sorted(k for path in headers for k in KERNEL.findall(path.read_text())):
        if not any(kernel in name for name in names):
            wrong.append(f"{SOURCE.name} has no call of {kernel}")
    return "\n".join(wrong), found


def table_of(found):
    """{kernel: (registers, shared memory)}, by name."""
    names = demangled([one.symbol for one in found])
    table = {in_short(name): (one.registers, one.shared) for one, name in zip(found, names)}
    return dict(sorted(table.items()))


def print_table(architecture, table):
    print(f"\nsm_{architecture}\nregisters  shared memory  kernel")
    for name, (registers, shared) in table.items():
        print(f"{registers:9}  {shared:13}  {name}")
    print(flush=True)


def markdown(tables):
    """A row per kernel; registers per architecture."""
    lines = [
        "| kernel | shared memory | " + " | ".join(f"sm_{name}" for name in tables) + " |",
        "|-|-:|" + "-:|" * len(tables),
    ]
    for name in sorted({name for table in tables.values() for name in table}):
        rows = [table.get(name) for table in tables.values()]
        shared = sorted({row[1] for row in rows if row})
        cells = [str(row[0]) if row else "" for row in rows]
        said = " to ".join(str(bytes_) for bytes_ in {shared[0]: 0, shared[-1]: 0})
        lines.append(f"| `{name}` | {said} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    args = common.arguments()
    report = checks.Report()
    jobs = [(f"sm_{name}: no warning, no stack, no spills", name, ["-cubin"]) for name in ARCHITECTURES]
    # The host side as well, with what a user may switch on.
    jobs.append(
        ("sm_90a: the same with HEADWISE_NVTX and -rdc=true", "90a", ["-c", "-DHEADWISE_NVTX", "-rdc=true"])
    )
    nvcc = common.stripped(args.nvcc)
    if not nvcc or not shutil.which(nvcc[-1]):
        for name, _, _ in jobs:
            report.skip(name, "no nvcc")
        print(f"0 passed, 0 failed, {report.skipped} skipped")
        sys.exit(77)
    known = known_to(nvcc)
    tables = {}

    def job(architecture, how):
        wrong, found = compiled(nvcc, architecture, *how)
        if how == ["-cubin"] and found:
            tables[architecture] = table_of(found)
        return wrong

    possible = [one for one in jobs if one[1].rstrip("a") in known]
    for name, _, _ in (one for one in jobs if one not in possible):
        report.skip(name, "this nvcc does not know it")
    report.check_all(
        (name, lambda architecture=architecture, how=how: job(architecture, how))
        for name, architecture, how in possible
    )
    tables = {name: tables[name] for name in ARCHITECTURES if name in tables}
    for name, table in tables.items():
        print_table(name, table)
    if args.report:
        pathlib.Path(args.report).write_text(markdown(tables))
    report.finish()


if __name__ == "__main__":
    main()
