# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""The record of the last run of the GPU suites on a GPU: test/gpu/record.json.

record.py check  FLAGS            is the record of this tree? 0: yes, 1: no, 2: there is none
record.py write  FLAGS LOG...     write it, from the output of the suites (./dev gpu-test does)

FLAGS are the options that ./dev configures the GPU build with.
"""

import datetime
import hashlib
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORD = ROOT / "test" / "gpu" / "record.json"
FOLDERS = ("include", "test", "examples", "bench")
CLOSING = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.MULTILINE)


def files():
    """Everything that the result depends on, sorted by name; what Python leaves behind apart."""
    found = [ROOT / "meson.build", ROOT / "meson_options.txt", *ROOT.glob("docs/meson.build")]
    for folder in FOLDERS:
        found += (path for path in (ROOT / folder).rglob("*") if path.is_file())
    names = (str(path.relative_to(ROOT)) for path in found)
    return sorted(name for name in names if "__pycache__" not in name and ROOT / name != RECORD)


def tree_hash(flags):
    digest = hashlib.sha256()
    for name in files():
        content = (ROOT / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    digest.update(flags.encode())
    return digest.hexdigest()


def check(flags):
    if not RECORD.exists():
        print("GPU record: none yet; ./dev gpu-test writes it on a machine with a GPU")
        return 2
    record = json.loads(RECORD.read_text())
    same = record["sha256"] == tree_hash(flags)
    print(
        "GPU record: of {}: {}, {} passed, {} failed on {} ({})".format(
            "this very tree" if same else "ANOTHER tree",
            record["date"],
            record["passed"],
            record["failed"],
            record["gpu"],
            f"driver {record['driver']}, CUDA {record['cuda']}, NCCL {record['nccl']}",
        )
    )
    return 0 if same else 1


def driver_version():
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True).stdout.split("\n")[0].strip()
    except FileNotFoundError:
        return "unknown"


def write(flags, logs):
    output = "\n".join(pathlib.Path(log).read_text() for log in logs)
    environment = re.search(r"^environment: (.*)$", output, re.MULTILINE)
    closings = CLOSING.findall(output)
    if environment is None or len(closings) != len(logs):
        print("GPU record: not written: no complete run on a GPU")
        return 1
    on = dict(pair.split("=", 1) for pair in environment[1].split("; "))
    passed, failed, skipped = (sum(int(c[i] or 0) for c in closings) for i in range(3))
    record = {
        "sha256": tree_hash(flags),
        "flags": flags,
        "passed": passed,
        "failed": failed,
        "skipped": skipped,
        "failing": re.findall(r"^FAILED: (.*)$", output, re.MULTILINE),
        "gpu": on["gpu"],
        "driver": driver_version(),
        "cuda": on["cuda"],
        "nccl": on["nccl"],
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    print(f"GPU record: written to {RECORD.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    verb, flags, *logs = sys.argv[1:]
    sys.exit(write(flags, logs) if verb == "write" else check(flags))
