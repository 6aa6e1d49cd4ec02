# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""What g++ and clang++ must say about the headers, with no CUDA in sight."""

import pathlib
import tempfile

import common
from common import checks

OUR_MACROS = {"HEADWISE_HD", "HEADWISE_VERSION", "HEADWISE_ASSERT"}

# Uses something, so that an unused static function or a missing inline has a chance to show.
TWO_UNITS = {
    "a.cpp": "int version_in_b();\nint main() { return version_in_b() - headwise::version_minor; }",
    "b.cpp": "int version_in_b();\nint version_in_b() { return headwise::version_minor; }",
}

OTHER_TYPES = """
namespace engine {
struct half {};
struct bfloat16 {};
struct view {};
struct layout {};
struct status {};
}  // namespace engine
using namespace engine;
"""


class Host:
    def __init__(self, scratch, compilers):
        self.scratch = pathlib.Path(scratch)
        self.compilers = compilers
        self.headers = common.host_headers()

    def write(self, name, text):
        path = self.scratch / name
        path.write_text(text)
        return path

    def all_headers(self):
        return common.include_lines(self.headers)

    def syntax(self, compiler, source, *flags, std="c++20"):
        return [*compiler, f"-std={std}", *flags, "-fsyntax-only", "-I", checks.INCLUDE, source]

    def alone(self, compiler, header):
        # Including it twice shows a missing guard; a unit of its own, a missing include.
        stem = header.replace("/", "_")
        source = self.write(f"{stem}.{common.name_of(compiler)}.cpp", common.include_lines([header] * 2))
        return checks.must_run(self.syntax(compiler, source, *common.strict(compiler)))

    def cpp17(self, compiler, header):
        stem = header.replace("/", "_")
        source = self.write(f"{stem}.17.cpp", common.include_lines([header]))
        command = self.syntax(compiler, source, "-Wfatal-errors", std="c++17")
        return checks.must_refuse(command, ["Headwise needs C++20"])

    def two_units(self, compiler):
        folder = self.scratch / f"two_units_{common.name_of(compiler)}"
        folder.mkdir()
        for name, text in TWO_UNITS.items():
            (folder / name).write_text(self.all_headers() + text)
        flags = ["-std=c++20", *common.strict(compiler), "-I", checks.INCLUDE, "-pthread"]
        program = folder / "program"
        sources = [folder / name for name in TWO_UNITS]
        return checks.must_run([*compiler, *flags, *sources, "-o", program]) or checks.must_run(
            [program]
        )

    def hostile(self, compiler):
        source = self.write(
            f"hostile_{common.name_of(compiler)}.cpp",
            f'#include "{common.HERE}/hostile.hpp"\n' + self.all_headers(),
        )
        return checks.must_run(self.syntax(compiler, source, *common.strict(compiler)))

    def other_types(self, compiler):
        source = self.write(
            f"other_types_{common.name_of(compiler)}.cpp",
            "#include <complex>\n" + OTHER_TYPES + self.all_headers(),
        )
        return checks.must_run(self.syntax(compiler, source))

    def leaked_macros(self, compiler):
        standard = sorted(
            {name for header in self.headers for _, name in common.includes_of(header)}
            - set(common.headers())
        )
        without = self.write(f"without_{common.name_of(compiler)}.cpp", common.include_lines(standard))
        with_us = self.write(
            f"with_{common.name_of(compiler)}.cpp",
            common.include_lines(standard) + self.all_headers(),
        )
        names = []
        for source in (without, with_us):
            command = [*compiler, "-std=c++20", "-dM", "-E", "-I", checks.INCLUDE, source]
            code, output = checks.run(command)
            if code != 0:
                return output
            names.append({line.split()[1].split("(")[0] for line in output.splitlines()})
        ours = names[1] - names[0]
        wrong = sorted(ours - OUR_MACROS)
        return "leaks " + ", ".join(wrong) if wrong else ""


def main():
    args = common.arguments()
    report = checks.Report()
    compilers = common.compilers(args.cxx)
    with tempfile.TemporaryDirectory() as scratch:
        host = Host(scratch, compilers)
        jobs = []

        def add(name, function, *arguments):
            jobs.append((name, lambda: function(*arguments)))

        for compiler in compilers:
            by = common.name_of(compiler)
            for header in host.headers:
                if common.is_clang(compiler):
                    name = f"N04: N05: N15: {header} alone, twice, strict, {by}"
                else:
                    name = f"N04: N05: {header} alone, twice, strict, {by}"
                add(name, host.alone, compiler, header)
            add(f"N01: two units linked, {by}", host.two_units, compiler)
            add(f"N08: hostile macros, {by}", host.hostile, compiler)
            add(f"N12: other types named half and bfloat16, {by}", host.other_types, compiler)
            add(f"only the macros of the allow-list, {by}", host.leaked_macros, compiler)
        for header in host.headers:
            add(f"N05: N11: {header} as C++17 gives our #error", host.cpp17, compilers[0], header)
        report.check_all(jobs)
        if len(compilers) == 1:
            report.skip("the second compiler", "only one of g++ and clang++ is installed")
    report.finish()


if __name__ == "__main__":
    main()
