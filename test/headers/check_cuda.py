# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""What nvcc must say about the headers. Programs run only where there is a GPU; the rest is proved
by building and linking. --expt-relaxed-constexpr is never given."""

import os
import pathlib
import shutil
import tempfile

import common
from common import checks

WARNINGS = "-Werror=all-warnings --display-error-number -Xcompiler=-Wall,-Wextra,-Wshadow".split()

TWO_UNITS = {
    "a.cu": "int version_in_b();\nint main() { return version_in_b() - headwise::version_minor; }",
    "b.cu": "int version_in_b();\nint version_in_b() { return headwise::version_minor; }",
}


class Cuda:
    def __init__(self, scratch, nvcc, gencode):
        self.scratch = pathlib.Path(scratch)
        self.nvcc = nvcc
        self.gencode = gencode

    def command(self, *words, std="c++20"):
        include = ["-I", checks.INCLUDE]
        return [*self.nvcc, f"-std={std}", *self.gencode, *WARNINGS, *include, *words]

    def folder(self, name):
        path = self.scratch / name
        path.mkdir()
        return path

    def all_headers(self):
        return common.include_lines(common.headers())

    def alone(self, header):
        source = self.scratch / (header.replace("/", "_") + ".cu")
        source.write_text(common.include_lines([header] * 2))
        return checks.must_run(self.command("-c", source, "-o", source.with_suffix(".o")))

    def two_units(self, *flags):
        folder = self.folder("two_units" + "".join(flags))
        for name, text in TWO_UNITS.items():
            (folder / name).write_text(self.all_headers() + text)
        sources = [folder / name for name in TWO_UNITS]
        program = folder / "program"
        return checks.must_run(self.command(*flags, *sources, "-o", program)) or checks.must_run(
            [program]
        )

    def kernels_linked(self, *flags):
        folder = self.folder("kernels" + "".join(flags))
        objects = []
        for unit in ("first", "second"):
            objects.append(folder / f"{unit}.o")
            wrong = checks.must_run(
                self.command(
                    *flags, f"-DUNIT={unit}", "-c", common.HERE / "kernel_unit.cu", "-o", objects[-1]
                )
            )
            if wrong:
                return wrong
        program = folder / "program"
        main = common.HERE / "kernel_main.cpp"
        return checks.must_run(self.command(*flags, main, *objects, "-o", program)) or self.works(
            program
        )

    def kernels_shared(self):
        folder = self.folder("shared")
        for unit in ("first", "second"):
            wrong = checks.must_run(
                self.command(
                    "-shared",
                    "-Xcompiler=-fPIC",
                    f"-DUNIT={unit}",
                    common.HERE / "kernel_unit.cu",
                    "-o",
                    folder / f"lib{unit}.so",
                )
            )
            if wrong:
                return wrong
        program = folder / "program"
        return checks.must_run(
            self.command(
                common.HERE / "kernel_main.cpp",
                "-L",
                folder,
                "-lfirst",
                "-lsecond",
                f"-Xlinker=-rpath={folder}",
                "-o",
                program,
            )
        ) or self.works(program)

    def works(self, program):
        code, output = checks.run([program])
        return "" if code in (0, 77) else f"{program} gave {code}\n{output}"

    def cpp17(self):
        source = self.scratch / "cpp17.cu"
        source.write_text(common.include_lines(["headwise/config.hpp"]))
        return checks.must_refuse(
            self.command("-c", source, "-o", source.with_suffix(".o"), std="c++17"),
            ["Headwise needs C++20", "pass -std=c++20 to nvcc as well"],
        )

    def other_types(self):
        source = self.scratch / "other_types.cu"
        source.write_text(
            "namespace engine { struct half {}; struct bfloat16 {}; }\nusing namespace engine;\n"
            + self.all_headers()
        )
        return checks.must_run(self.command("-c", source, "-o", source.with_suffix(".o")))

    def compiles(self, name):
        source = common.HERE / f"{name}.cu"
        return checks.must_run(self.command("-c", source, "-o", self.scratch / f"{name}.o"))

    def same_types(self, cxx):
        folder = self.folder("types_" + common.name_of(cxx))
        by_host, by_cuda, program = folder / "host.o", folder / "cuda.o", folder / "program"
        source = common.HERE / "types.cpp"
        host = [*cxx, "-std=c++20", "-I", checks.INCLUDE, "-DUNIT=by_host", "-c", source, "-o"]
        return (
            checks.must_run(host + [by_host])
            or checks.must_run(
                self.command("-DUNIT=by_cuda", "-x", "cu", "-c", source, "-o", by_cuda)
            )
            or checks.must_run(
                [*cxx, common.HERE / "types_main.cpp", by_host, by_cuda, "-o", program]
                + self.runtime_library()
            )
            or checks.must_run([program])
        )

    def runtime_library(self):
        nvcc = pathlib.Path(shutil.which(self.nvcc[-1])).resolve()
        folders = [nvcc.parent.parent / "lib64", pathlib.Path("/usr/local/cuda/lib64")]
        return [f"-L{folder}" for folder in folders] + ["-lcudart_static", "-ldl", "-lrt", "-pthread"]

    def tracked(self, build):
        """Meson does not track what a .cu includes; the copy in test/gpu/meson.build does."""
        code, output = checks.run(["ninja", "-C", build, "-t", "inputs", "test/gpu/gpu"])
        if code != 0:
            return output
        reached = {os.path.realpath(build / line.strip()) for line in output.splitlines()}
        missing = [h for h in common.headers() if str(checks.INCLUDE / h) not in reached]
        return "a change of these rebuilds no .cu: " + " ".join(missing) if missing else ""


def main():
    args = common.arguments()
    report = checks.Report()
    if not args.nvcc:
        report.skip("the headers under nvcc", "built without CUDA")
        report.finish()
    with tempfile.TemporaryDirectory() as scratch:
        cuda = Cuda(scratch, common.stripped(args.nvcc), common.stripped(args.gencode))
        jobs = [
            (f"N05: {header} alone, twice, nvcc", lambda header=header: cuda.alone(header))
            for header in common.headers((".cuh",))
        ]
        jobs += [
            ("N01: two units linked, nvcc", cuda.two_units),
            ("N01: two units linked, nvcc -rdc=true", lambda: cuda.two_units("-rdc=true")),
            ("N02: one kernel from two units", cuda.kernels_linked),
            (
                "N02: one kernel from two units, -rdc=true",
                lambda: cuda.kernels_linked("-rdc=true"),
            ),
            ("N02: one kernel from two shared objects", cuda.kernels_shared),
            (
                "N06: N14: every view function on the device",
                lambda: cuda.compiles("views_on_device"),
            ),
            ("views from and to cuda::std::mdspan", lambda: cuda.compiles("mdspan_of_cuda")),
            ("N11: a C++17 .cu gives our #error", cuda.cpp17),
            ("N12: other types named half and bfloat16, nvcc", cuda.other_types),
        ]
        jobs += [
            (
                f"N11: types are laid out alike by {common.name_of(cxx)} and nvcc",
                lambda cxx=cxx: cuda.same_types(cxx),
            )
            for cxx in common.compilers(args.cxx)
        ]
        if args.build:
            jobs.append(
                (
                    "a changed header rebuilds the .cu files",
                    lambda: cuda.tracked(pathlib.Path(args.build)),
                )
            )
        report.check_all(jobs)
    report.finish()


if __name__ == "__main__":
    main()
