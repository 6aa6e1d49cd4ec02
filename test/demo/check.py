# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""The demo from outside: what it prints, what it refuses, its exit statuses, and its bits.

    check.py PROGRAM
"""

import json
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import checks

PROGRAM = sys.argv[1]

# Arguments, and what the one line of complaint must say. Exit status 2, nothing on stdout.
REFUSED = {
    "--geometry glm-6": ["'glm-6' is none of glm-5, kimi-k3, deepseek-v3"],
    "--geometry glm-5 --tp 6 --dcp 4": ["glm-5 TP6/DCP4", "got 6, expected 4", "multiple of dcp_ranks"],
    "--geometry glm-5 --tp 6 --no-padding": ["got 64, expected 66", "padding is forbidden"],
    "--heads 4 --tp 8 --no-padding": ["more ranks (got) than heads", "got 8, expected 4"],
    "--heads 34 --tp 34": ["got 34, expected 16", "a group has from 1 to 16 ranks"],
    "--dcp 2": ["need --tp"],
    "--heads 12": ["need --tp"],
    "--heads 12 --geometry glm-5 --tp 2": ["exclude each other"],
    "--tp 0": ["--tp: '0' is no number from 1 to 4096"],
    "--tp 99999999999999999999": ["is no number"],
    "--tp six": ["'six' is no number"],
    "--tp 6x": ["'6x' is no number"],
    "--lengths 1,,2": ["--lengths: '' is no number"],
    "--lengths 5,-1": ["'-1' is no number from 0"],
    "--lengths 1048577": ["is no number from 0 to 1048576"],
    "--q 5": ["--q: '5' is no number from 1 to 4"],
    "--interleave 0": ["--interleave: '0' is no number"],
    "--page 100 --interleave 64": ["page_size: got 100, expected 64", "multiple of the interleave"],
    "--attention flash": ["'flash' is none of dense, sparse"],
    "--cache fp4": ["'fp4' is none of bf16, fp8_ds_mla"],
    "--payload fp8": ["'fp8' is none of bf16, fp16, fp32"],
    "--lse nowhere": ["'nowhere' is none of plane, inline"],
    "--peers inside": ["'inside' is none of outermost, inside-heads"],
    "--device gpu": ["--device: 'gpu' is none of host, cuda"],
    "--base 10": ["'10' is none of e, two"],
    "--seed -1": ["--seed: '-1' is no number"],
    "--seed": ["--seed needs a value"],
    "--speed": ["there is no option '--speed'"],
    "glm-5": ["there is no option 'glm-5'"],
}

ONE = ("--geometry glm-5 --tp 6 --dcp 2 --q 3 --interleave 1 --attention dense --cache bf16 "
       "--payload bf16 --base e --lengths 0,1,2,37,130").split()
FORM = "--tile 16 --lse plane --peers outermost --page 64".split()

# On one small step, by payload, and on all that the demo runs. A change of the arithmetic, or of the
# data that the demo makes, changes them; no compiler and no flag may.
BITS = {
    "bf16": "a58b3ce871a9e32a",
    "fp16": "73a2a2518f12edd3",
    "fp32": "b0e0c72ad6bff79c",
    "default runs": "8a8002c1842c6286",
}

# geometry -> heads per rank, dummies, gathered heads, heads that a kernel in tiles of 16 and 8 writes
SHAPES = {
    "glm-5 TP6/DCP2": (11, 2, 22, 32, 24),
    "glm-5 TP6/DCP3": (11, 2, 33, 48, 40),
    "glm-5 TP6/DCP6": (11, 2, 66, 80, 72),
    "glm-5 TP8/DCP2": (8, 0, 16, 16, 16),
    "glm-5 TP8/DCP8": (8, 0, 64, 64, 64),
    "kimi-k3 TP9/DCP9": (11, 3, 99, 112, 104),
    "deepseek-v3 TP8/DCP8": (16, 0, 128, 128, 128),
}


def demo(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def json_of(*arguments):
    """(runs, closing line) of a run that must succeed."""
    code, out, err = demo("--json", *arguments)
    if code != 0:
        raise AssertionError(f"{' '.join(arguments)}: exit status {code}\n{out}{err}")
    lines = [json.loads(line) for line in out.splitlines()]
    return lines[:-1], lines[-1]


def refusal(arguments, expected):
    def check():
        code, out, err = demo(*arguments.split())
        missing = [text for text in expected if text not in err]
        if code != 2 or out or err.count("\n") != 1 or missing:
            return f"exit status {code}, stdout {out!r}, stderr {err!r}, missing {missing}"
        return ""

    return check


def wrong(condition, *what):
    return "" if condition else " ".join(str(part) for part in what)


def help_and_list():
    code, out, err = demo("--help")
    if code != 0 or err or any(option not in out for option in ("--geometry", "--full", "--json")):
        return f"--help: exit status {code}, {out!r} {err!r}"
    code, out, err = demo("--list")
    runs = out.splitlines()
    if code != 0 or len(runs) != 22 or not re.search(r"\b65536 tokens$", runs[-1]):
        return f"--list: exit status {code}\n{out}"
    code, out, err = demo("--list", "--full")
    return wrong(code == 0 and len(set(line.split(" ", 1)[1] for line in out.splitlines())) ==
                 7 * 3 * 2**9 + 1, "--list --full:", len(out.splitlines()), "lines")


def every_geometry():
    runs, end = json_of("--lengths", "0,1,5,66")
    if end["wrong"] or end["pairs"] != end["pairs_possible"] or end["runs"] != len(runs):
        return str(end)
    seen = set()
    for run in runs:
        name = run["run"].split(",")[0]
        per_rank, dummies, gathered, by_16, by_8 = SHAPES[name]
        tiled = by_16 if "tile 16" in run["run"] else by_8
        seen.add((name, tiled))
        pitch = int(re.search(r"token=\?\d+:\??(\d+), head=\??%d:512" % gathered, run["output"])[1])
        if (run["heads_per_rank"], run["dummies"], pitch) != (per_rank, dummies, tiled * 512):
            return f"{run} is not {SHAPES[name]}"
        if not (run["ok"] and 0 < run["error_over_bound"] <= 1 and 0 <= run["lse_error_over_bound"] <= 1):
            return f"{run['run']}: {run}"
        padded = "payload bf16" in run["run"] and gathered < tiled
        if padded == ("head=?" in run["output"]):
            return f"static strides where they should not be, or the reverse: {run['output']}"
    return wrong({name for name, _ in seen} == set(SHAPES), "missing:", set(SHAPES) - seen)


def default_runs():
    """What ./dev demo runs: mixed lengths up to 4,096 tokens, and one sequence of 65,536."""
    runs, end = json_of()
    long = runs[-1]
    if not long["run"].endswith("65536 tokens") or long["output_sent"].split()[0] != "straight":
        return f"no long run: {long}"
    if (end["runs"], end["wrong"], end["pairs"]) != (22, 0, end["pairs_possible"]):
        return str(end)
    return wrong(end["bits"] == BITS["default runs"], end["bits"], "is not", BITS["default runs"])


def own_geometries():
    for arguments in ("--heads 10 --tp 4 --dcp 2", "--heads 3 --tp 16", "--heads 5 --tp 1",
                      "--geometry kimi-k3 --tp 10 --dcp 5", "--heads 4 --tp 6 --dcp 3"):
        runs, end = json_of("--lengths", "0,40,3", "--q", "2", "--payload", "bf16", *arguments.split())
        if end["wrong"] or not runs:
            return f"{arguments}: {end}"
    return ""


def bits_of(*arguments):
    runs, end = json_of(*arguments)
    if len(runs) != 1:
        raise AssertionError(f"{' '.join(arguments)}: {len(runs)} runs")
    return runs[0]["bits"]


def fixed_bits():
    for payload in ("bf16", "fp16", "fp32"):
        got = bits_of(*ONE, *FORM, "--payload", payload)
        if got != BITS[payload]:
            return f"{payload}: {got}, not {BITS[payload]}"
    return ""


def same_bits_every_way():
    """Messages, tiles and pages move the bits and do not change them; seeds and bases do."""
    expected = bits_of(*ONE, *FORM)
    for change in ("--tile 8", "--tile 3", "--lse inline", "--peers inside-heads", "--page 37",
                   "--lse inline --peers inside-heads --tile 1 --page 5"):
        if bits_of(*ONE, *FORM, *change.split()) != expected:
            return f"other bits with {change}"
    for change in ("--seed 2", "--base two", "--interleave 2", "--cache fp8_ds_mla", "--q 1"):
        if bits_of(*ONE, *FORM, *change.split()) == expected:
            return f"the same bits with {change}"
    return ""


def table():
    code, out, err = demo(*ONE, *FORM)
    wanted = ("bf16 host [token=?15:16384, head=22:512, head_dim=512:1] packed (a peer's part has gaps)",
              "f32 host [token=?15:32, head=22:1] packed (it shares the payload's message)",
              "received packed (a peer's part has gaps)", "64 on 6 ranks: 11 each",
              "bytes of partial results", "glm-5 TP6/DCP2", "pairs of values that met in a run: 55/55",
              "1 runs, 0 of them wrong")
    missing = [text for text in wanted if text not in out]
    return wrong(code == 0 and not missing, "exit status", code, "missing", missing, "\n" + out)


def devices():
    """The host is the default; this program has no CUDA, and says so."""
    code, out, err = demo("--device", "cuda")
    if code != 77 or out or err.count("\n") != 1 or "without CUDA" not in err:
        return f"--device cuda: exit status {code}, {out!r} {err!r}"
    return wrong(bits_of(*ONE, *FORM, "--device", "host") == bits_of(*ONE, *FORM), "other bits")


def straight():
    """One row: all parts are runs, and nothing is packed."""
    runs, _ = json_of(*ONE, *FORM, "--lengths", "300", "--q", "1")
    ways = [runs[0][key].split()[0] for key in ("query_sent", "query_received", "output_sent", "lse_sent")]
    return wrong(ways == ["straight"] * 4, ways)


report = checks.Report()
report.check_all((f"refuses {arguments}", refusal(arguments, expected))
                 for arguments, expected in REFUSED.items())
for function in (help_and_list, table, straight, devices, every_geometry, own_geometries, fixed_bits,
                 same_bits_every_way, default_runs):
    name = function.__name__.replace("_", " ")
    try:
        report.check(name, function())
    except (AssertionError, KeyError, TypeError, ValueError) as problem:
        report.check(name, f"{type(problem).__name__}: {problem}")
report.finish()
