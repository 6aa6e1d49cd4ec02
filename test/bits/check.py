# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""The combine's bits must not depend on the compiler or its flags: builds combine_bits.cpp many ways
and compares what it prints with the digests below. With nvcc, also the host code of combine_bits.cu,
and the instructions of its kernel: each must be one whose bits no flag can change.

    check.py COMPILER... [--nvcc NVCC...]

Whoever changes the digests changes the bits of every user's results: say so in CHANGELOG.md, under
Numerics.
"""

import pathlib
import platform
import re
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
import checks

ORDINARY = "d465b6b220b7ce09"
# Of payloads whose weighted values are subnormal, where nothing flushes those to zero.
SUBNORMAL = "4820f862da677065"

NATIVE = "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"
# Flags, and whether a program linked with them may flush subnormal numbers to zero.
FLAGS = [
    ("-O0", False),
    ("-O2", False),
    ("-O2 -ffp-contract=off", False),
    (f"-O3 {NATIVE} -ffp-contract=fast", False),
    (f"-Os {NATIVE} -ffp-contract=fast -fno-signed-zeros -ffinite-math-only", False),
    ("-O3 -fassociative-math -fno-signed-zeros -fno-trapping-math -freciprocal-math", False),
    ("-O3 -ffast-math", True),
    (f"-O3 {NATIVE} -ffast-math -ffp-contract=fast", True),
]
NVCC_FLAGS = ["", "-use_fast_math -Xcompiler=-O3,-ffast-math"]

# PTX instructions on floating-point values: all of them, and those whose bits no flag changes.
FLOATING = re.compile(
    r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.]*\.(?:f16|f16x2|bf16|bf16x2|f32|f64)\b[\w.]*)", re.MULTILINE
)
STEADY = re.compile(
    r"(?:add|mul|fma)\.rn\.f32|cvt\.rn\.f32\.s32|(?:ld|st)\.[a-z0-9.]*f32|(?:mov|selp)\.f32"
)


def wrong_digests(output, flushes):
    got = re.findall(r"^(host|device) (\w{16}) (\w{16})$", output, re.MULTILINE)
    if not got:
        return "printed no digest:\n" + output
    for where, ordinary, subnormal in got:
        if ordinary != ORDINARY or (subnormal != SUBNORMAL and not (flushes and where == "host")):
            return f"{where} {ordinary} {subnormal}, expected {ORDINARY} {SUBNORMAL}"
    return ""


def runs_to_the_same_bits(command, program, flushes):
    wrong = checks.must_run(command)
    if wrong:
        return wrong
    code, output = checks.run([program])
    return wrong_digests(output, flushes) if code == 0 else f"exit status {code}\n{output}"


def built_by(scratch, number, compiler, flags, flushes):
    program = scratch / f"host{number}"
    words = ["-std=c++20", *flags.split(), "-I", checks.INCLUDE, HERE / "combine_bits.cpp"]
    return runs_to_the_same_bits([*compiler, *words, "-o", program], program, flushes)


def built_by_nvcc(scratch, number, nvcc, flags):
    kept = scratch / f"nvcc{number}"
    kept.mkdir()
    words = ["-std=c++20", *flags.split(), "-I", checks.INCLUDE, HERE / "combine_bits.cu"]
    # PTX only: its translation for a GPU is the driver's, where there is one.
    words += ["-gencode=arch=compute_80,code=compute_80", "--keep", "--keep-dir", kept]
    wrong = runs_to_the_same_bits(
        [*nvcc, *words, "-o", kept / "program"], kept / "program", "-ffast-math" in flags
    )
    return wrong or unsteady_instructions((kept / "combine_bits.ptx").read_text())


def unsteady_instructions(ptx):
    found = set(FLOATING.findall(ptx))
    if "fma.rn.f32" not in found:
        return "no fma.rn.f32: this is not the combine's code"
    unsteady = sorted(word for word in found if not STEADY.fullmatch(word))
    return "instructions whose bits depend on a flag: " + ", ".join(unsteady) if unsteady else ""


def main():
    words = sys.argv[1:]
    at = words.index("--nvcc") if "--nvcc" in words else len(words)
    compilers, nvcc = [words[:at] or ["g++"]], words[at + 1 :]
    other = "g++" if "clang" in compilers[0][-1] else "clang++"
    if shutil.which(other):
        compilers.append([other])

    report = checks.Report()
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        todo = []
        for compiler in compilers:
            for flags, flushes in FLAGS:
                name = f"same bits: {pathlib.Path(compiler[-1]).name} {flags}"
                job = (scratch, len(todo), compiler, flags, flushes)
                todo.append((name, lambda job=job: built_by(*job)))
        for flags in NVCC_FLAGS if nvcc else []:
            job = (scratch, len(todo), nvcc, flags)
            name = " ".join(["nvcc", flags]).strip()
            todo.append((f"same bits, steady instructions: {name}", lambda job=job: built_by_nvcc(*job)))
        report.check_all(todo)
    if not nvcc:
        report.skip("same bits: nvcc", "there is no nvcc")
    report.finish()


if __name__ == "__main__":
    main()
