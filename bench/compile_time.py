# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""What including each header costs, over a file that includes <array>, <concepts> and <span>.

compile_time.py [--build DIR] [--compiler CXX] [--nvcc NVCC] [--repeat N]

User and system time of the compiler, median of N runs, baseline and candidate interleaved. Fails if
the umbrella headwise.hpp costs more than the budget. With --nvcc it measures the headers of the kernels and
of their executor instead, over a file that includes <cuda_runtime.h> as well, and for sm_90a: each included,
and a typical call.
"""

import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BASE = "#include <array>\n#include <concepts>\n#include <span>\n"
BUDGET_SECONDS = 0.35

KERNEL_BASE = BASE + "#include <cuda_runtime.h>\n"
NVCC_FLAGS = ["-gencode=arch=compute_90a,code=sm_90a"]
# Bare declarations of what the calls are given.
OPERANDS = """
using namespace headwise;
template <class T, index_t Heads>
using rows = view<T, packed_layout_t<extent<axis::token>, extent<axis::head, Heads>,
                                     extent<axis::head_dim, 512>>, memory_space::device>;
template <class T, index_t Heads>
using lses = view<T, packed_layout_t<extent<axis::token>, extent<axis::head, Heads>>,
                  memory_space::device>;
template <class... Axes>
using table = view<int, packed_layout_t<extent<Axes>...>, memory_space::device>;
"""
GROUP = """
#include <headwise/collective/lse_reduce_scatter.hpp>
struct group {
  int rank();
  int size();
  headwise::status exchange(std::span<const headwise::send_chunk>,
                            std::span<const headwise::receive_chunk>,
                            const headwise::call_signature&);
  headwise::status all_gather(const headwise::send_chunk&, std::span<const headwise::receive_chunk>,
                              const headwise::call_signature&);
  headwise::status barrier();
};
"""
CALLS = {
    "materialize": """
status call(const rows<const bf16, 22>& from, const rows<bf16, 22>& to, cudaStream_t stream) {
  return kernel::materialize(from, to, stream);
}""",
    "pack": """
status call(const rows<const bf16, 22>& output, const lses<const float, 22>& lse,
            const message_plan& plan, std::byte* message, cudaStream_t stream) {
  return kernel::pack<log_base::e>(output, lse, plan, message, stream);
}""",
    "lse_combine": """
status call(const received_shards<bf16>& from, const rows<bf16, 11>& to,
            const lses<float, 11>& merged, cudaStream_t stream) {
  return kernel::lse_combine<log_base::e>(from, to, stream, merged);
}""",
    "localize_topk": """
status call(const table<axis::token, axis::key>& positions, const table<axis::token, axis::key>& slots,
            const table<axis::sequence, axis::page>& pages, const table<axis::sequence>& lengths,
            const table<axis::token>& counts, cudaStream_t stream) {
  return kernel::localize_topk(positions, pages, lengths, {}, slots, counts, stream);
}""",
    "cuda_executor": """
status call(const rows<const bf16, 22>& partial, const lses<const float, 22>& lse,
            const rows<bf16, 11>& output, const lses<float, 11>& merged, group& ranks,
            std::span<std::byte> workspace, cudaStream_t stream) {
  return lse_reduce_scatter<log_base::e>(cuda_executor{stream}, ranks, partial, lse, output, merged,
                                         workspace);
}""",
}


def compile_seconds(compiler, source):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [*compiler, "-std=c++20", f"-I{ROOT / 'include'}", "-c", source, "-o", os.devnull],
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def version_line(compiler):
    said = subprocess.run([*compiler, "--version"], check=True, capture_output=True, text=True)
    lines = said.stdout.splitlines()
    return next((line for line in lines if "release" in line), lines[0])


def seconds_over(compiler, base, source, repeat):
    pairs = [
        (compile_seconds(compiler, base), compile_seconds(compiler, source)) for _ in range(repeat)
    ]
    return statistics.median(after - before for before, after in pairs)


def measure_kernels(nvcc, repeat):
    print(version_line(nvcc))
    print(f"{'header':40} {'seconds over the baseline':>26} {'with a call':>12}")
    includes = ROOT / "include"
    headers = sorted(includes.glob("headwise/kernel/*.cuh")) + sorted(includes.glob("headwise/executor/*.cuh"))
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder, "base.cu")
        base.write_text(KERNEL_BASE)
        source = pathlib.Path(folder, "candidate.cu")
        for path in headers:
            header = path.relative_to(includes).as_posix()
            include = f"{KERNEL_BASE}#include <{header}>\n"
            source.write_text(include)
            cells = f"{seconds_over([*nvcc, *NVCC_FLAGS], base, source, repeat):26.2f}"
            needs = GROUP if path.stem == "cuda_executor" else ""
            source.write_text(include + needs + OPERANDS + CALLS[path.stem])
            cells += f" {seconds_over([*nvcc, *NVCC_FLAGS], base, source, repeat):12.2f}"
            print(f"{header:40} {cells}", flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--build", help="ignored: nothing has to be built for this bench")
    options.add_argument("--compiler", default=os.environ.get("CXX", "g++"))
    options.add_argument("--nvcc", help="measure the headers of kernels, with this compiler")
    options.add_argument("--repeat", type=int, default=5)
    arguments = options.parse_args()
    if arguments.nvcc:
        measure_kernels(arguments.nvcc.split(), arguments.repeat)
        return 0
    compiler = [*arguments.compiler.split(), "-x", "c++"]
    headers = sorted(
        path.relative_to(ROOT / "include").as_posix()
        for path in (ROOT / "include").rglob("*.hpp")
    )
    print(version_line(arguments.compiler.split()))
    print(f"{'header':48} {'seconds over the baseline':>26}")
    umbrella = 0.0
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder, "base.cpp")
        base.write_text(BASE)
        for header in headers:
            source = pathlib.Path(folder, "candidate.cpp")
            source.write_text(f"{BASE}#include <{header}>\n")
            cost = seconds_over(compiler, base, source, arguments.repeat)
            if header == "headwise/headwise.hpp":
                umbrella = cost
            print(f"{header:48} {cost:26.3f}")
    print(f"headwise/headwise.hpp: {umbrella:.3f} s of a budget of {BUDGET_SECONDS} s")
    return 0 if umbrella <= BUDGET_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
