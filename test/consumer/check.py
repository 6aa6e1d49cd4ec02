# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""The four ways to use Headwise, each with its own small program, and the installed tree.

check.py BUILD_ROOT VERSION COMPILER...
"""

import os
import pathlib
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
import checks

BUILD, VERSION = sys.argv[1:3]
COMPILER = sys.argv[3:]
MAJOR, MINOR, PATCH = (int(part) for part in VERSION.split("."))
NUMBER = 10000 * MAJOR + 100 * MINOR + PATCH
STRICT = ["-std=c++20", "-Wall", "-Wextra", "-Werror", f"-DEXPECTED_VERSION={NUMBER}"]


def steps(*commands, **kwargs):
    """What is wrong with the first command that fails."""
    for command in commands:
        code, output = checks.run(command, **kwargs)
        if code != 0:
            return " ".join(str(part) for part in command) + f"\nexit status {code}\n{output}"
    return ""


def says_version(program):
    code, output = checks.run([program])
    # A static view is as large as a pointer.
    return "" if (code, output) == (0, f"{VERSION} 8\n") else f"exit status {code}: {output}"


def by_meson(folder):
    shutil.copytree(HERE / "meson", folder)
    (folder / "subprojects").mkdir()
    (folder / "subprojects" / "headwise").symlink_to(checks.ROOT)
    meson = shutil.which("meson")
    setup = [meson, "setup", "build", f"-Dexpected_version={NUMBER}"]
    wrong = steps(
        setup,
        [meson, "compile", "-C", "build"],
        cwd=folder,
        env={**os.environ, "CXX": " ".join(COMPILER)},
    )
    return wrong or says_version(folder / "build" / "app")


def by_pkg_config(folder, prefix):
    if shutil.which("pkg-config") is None:
        return None
    folder.mkdir()
    environment = {
        **os.environ,
        "PKG_CONFIG_LIBDIR": f"{prefix}/share/pkgconfig",
        "PKG_CONFIG_SYSROOT_DIR": str(prefix.parent.parent),
    }
    for question, answer in (("--modversion", VERSION + "\n"), ("--cflags", None)):
        code, output = checks.run(["pkg-config", question, "headwise"], env=environment)
        if code != 0 or (answer is not None and output != answer):
            return f"pkg-config {question} headwise: {code}, {output}"
    app = folder / "app"
    compile_app = [*COMPILER, *STRICT, HERE / "pkgconfig/main.cpp", *output.split(), "-o", app]
    return steps(compile_app) or says_version(app)


def by_cmake(folder, prefix):
    if shutil.which("cmake") is None:
        return None
    configure = [
        "cmake",
        "-S",
        HERE / "cmake",
        "-B",
        folder,
        f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={shutil.which(COMPILER[-1])}",
        f"-DEXPECTED_VERSION={NUMBER}",
    ]
    return steps(configure, ["cmake", "--build", folder]) or says_version(folder / "app")


def by_include(folder, prefix):
    folder.mkdir()
    app = folder / "app"
    command = [*COMPILER, *STRICT, "-I", prefix / "include", HERE / "include/main.cpp", "-o", app]
    return steps(command) or says_version(app)


def installed_tree(prefix):
    def headers(include):
        files = (path for path in include.rglob("*") if path.is_file())
        return {str(path.relative_to(include)) for path in files if path.suffix != ".build"}

    source = {name for name in headers(checks.INCLUDE) if name.startswith("headwise/")}
    installed = headers(prefix / "include")
    return "".join(f"differs: {name}\n" for name in sorted(source ^ installed))


def main():
    report = checks.Report()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        meson = shutil.which("meson")
        install = [meson, "install", "-C", BUILD, "--no-rebuild", "--destdir", scratch / "root"]
        report.check("meson install", steps(install))
        found = list((scratch / "root").rglob("headwise/config.hpp"))
        if len(found) == 1:
            prefix = found[0].parents[2]
            report.check("the installed tree is the source tree", installed_tree(prefix))
            report.check("consumer by -I", by_include(scratch / "include", prefix))
            for name, wrong in (
                ("pkg-config", by_pkg_config(scratch / "pkgconfig", prefix)),
                ("cmake", by_cmake(scratch / "cmake", prefix)),
            ):
                if wrong is None:
                    report.skip(f"consumer by {name}", f"{name} is not installed")
                else:
                    report.check(f"consumer by {name}", wrong)
        report.check("consumer by Meson subproject", by_meson(scratch / "meson"))
    report.finish()


if __name__ == "__main__":
    main()
