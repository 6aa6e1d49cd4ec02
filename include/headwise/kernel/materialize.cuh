// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/core/launch.cuh>
#include <headwise/plan/copy_plan.hpp>
#include <headwise/plan/operands.hpp>

// Copies one view into another, bit for bit, in one launch.
//
// template  Unit: bytes of a load or store. Not the views' types: the plan of a copy is a few
//           numbers, known in types or not, and a copy is bound by memory. So all copies of a
//           program share five kernels.
// grid      one-dimensional, any number of elements
// block     up to 256 threads; each group of `lanes` moves a segment of up to 4 * lanes units of a
//           run, four loads in flight a thread
// in, out   the memory of the two views, which must be apart

namespace headwise::inline v0 {

namespace detail {

/// A copy in bytes, after coalescing.
struct copy_job {
  int outer = 0;
  index_t runs = 0;
  index_t run_bytes = 0;
  index_t extents[max_copy_rank] = {};
  index_t source_pitches[max_copy_rank] = {};
  index_t target_pitches[max_copy_rank] = {};
};

template <int Unit>
__global__ void __launch_bounds__(256)
    copy_runs_kernel(const std::byte* source, std::byte* target, copy_job job, unsigned lanes,
                     index_t segments) {
  enter_kernel();
  using raw = typename raw_bits<Unit>::type;
  constexpr int unroll = 4;
  const unsigned lane = threadIdx.x & (lanes - 1);
  const index_t item = index_t{blockIdx.x} * (blockDim.x / lanes) + threadIdx.x / lanes;
  const row_place at = place_of_row(item, segments);
  if (at.outer >= job.runs) return;
  index_t run = at.outer;
  index_t from = 0;
  index_t to = 0;
#pragma unroll
  for (int i = max_copy_rank - 1; i >= 0; --i) {
    if (i >= job.outer) continue;
    const row_place place = place_of_row(run, job.extents[i]);
    from += place.inner * job.source_pitches[i];
    to += place.inner * job.target_pitches[i];
    run = place.outer;
  }
  source += from;
  target += to;

  const index_t units = job.run_bytes / Unit;
  const index_t first = at.inner * unroll * lanes + lane;
  raw moved[unroll];
#pragma unroll
  for (int k = 0; k < unroll; ++k) {
    const index_t unit = first + index_t{k} * lanes;
    if (unit < units) moved[k] = reinterpret_cast<const raw*>(source)[unit];
  }
#pragma unroll
  for (int k = 0; k < unroll; ++k) {
    const index_t unit = first + index_t{k} * lanes;
    if (unit < units) reinterpret_cast<raw*>(target)[unit] = moved[k];
  }
  if constexpr (Unit > 1) {
    if (at.inner != segments - 1) return;
    for (index_t byte = units * Unit + lane; byte < job.run_bytes; byte += lanes) {
      target[byte] = source[byte];
    }
  }
}

struct copy_launch {
  launch_shape shape;
  index_t segments = 1;
  index_t blocks = 0;  ///< may be more than a grid has
};

/// `alignment`: pointers and pitches, or-ed.
constexpr copy_launch plan_copy_launch(const copy_job& job, std::uint64_t alignment) noexcept {
  copy_launch planned;
  if (job.runs == 0 || job.run_bytes == 0) return planned;
  int unit = 16;
  while (alignment % static_cast<std::uint64_t>(unit) != 0 || unit > job.run_bytes) unit /= 2;
  const index_t units = job.run_bytes / unit;
  planned.shape.vector_bytes = unit;
  planned.shape.lanes = lanes_for(ceil_div(units, 4));
  planned.segments = ceil_div(units, index_t{4} * planned.shape.lanes);
  const index_t items = job.runs * planned.segments;
  planned.shape.threads = threads_for(items * planned.shape.lanes, 256);
  planned.blocks = ceil_div(items, planned.shape.threads / planned.shape.lanes);
  planned.shape.blocks = static_cast<unsigned>(lesser(planned.blocks, most_blocks));
  return planned;
}

/// A checked copy that is not empty, in bytes, and how aligned it is.
template <class Source, class Target>
copy_job plan_copy_job(const Source& source, const Target& target,
                       std::uint64_t& alignment) noexcept {
  constexpr index_t bytes = sizeof(typename Target::value_type);
  const copy_steps steps = plan_copy(source, target);
  copy_job job;
  job.outer = steps.outer;
  job.runs = steps.run_count();
  job.run_bytes = steps.run * bytes;
  alignment = reinterpret_cast<std::uintptr_t>(source.data()) |
              reinterpret_cast<std::uintptr_t>(target.data());
  for (int i = 0; i < steps.outer; ++i) {
    job.extents[i] = steps.extents[i];
    job.source_pitches[i] = steps.source_strides[i] * bytes;
    job.target_pitches[i] = steps.target_strides[i] * bytes;
    alignment |= static_cast<std::uint64_t>(job.source_pitches[i] | job.target_pitches[i]);
  }
  return job;
}

template <int Unit>
status launch_copy(const std::byte* source, std::byte* target, const copy_job& job,
                   const copy_launch& planned, const on_stream& stream) noexcept {
  return launch("materialize", copy_runs_kernel<Unit>, planned.shape, stream, source, target, job,
                planned.shape.lanes, planned.segments);
}

}  // namespace detail

namespace kernel {

/// Copies every element of `source` to the same indices of `target` on a stream; the axes may stand
/// in another order. Usually `target` is packed, and then this is what others call contiguous().
/// Gaps of `target` are left alone. One launch; none where there is no element. Both in memory that
/// the device reaches, and apart. The bits of reference::materialize().
/// Errors: those of check_copy(), unsupported (more than a grid has room for), cuda_failed.
template <class T, class Other, class From, class To, memory_space SpaceA, memory_space SpaceB>
status materialize(const view<T, From, SpaceA>& source, const view<Other, To, SpaceB>& target,
                   const on_stream& stream) noexcept {
  static_assert(device_accessible(SpaceA) && device_accessible(SpaceB),
                "headwise: a kernel reads and writes views of device or pinned memory");
  const status can = check_copy("source", source, "target", target);
  if (!can.ok() || target.empty()) return can;
  std::uint64_t alignment = 0;
  const detail::copy_job job = detail::plan_copy_job(source, target, alignment);
  const detail::copy_launch planned = detail::plan_copy_launch(job, alignment);
  const status fits = detail::check_blocks("materialize", planned.blocks);
  if (!fits.ok()) return fits;
  const auto* const from = reinterpret_cast<const std::byte*>(source.data());
  auto* const to = reinterpret_cast<std::byte*>(target.data());
  switch (planned.shape.vector_bytes) {
    case 16: return detail::launch_copy<16>(from, to, job, planned, stream);
    case 8: return detail::launch_copy<8>(from, to, job, planned, stream);
    case 4: return detail::launch_copy<4>(from, to, job, planned, stream);
    case 2: return detail::launch_copy<2>(from, to, job, planned, stream);
    default: return detail::launch_copy<1>(from, to, job, planned, stream);
  }
}

}  // namespace kernel

}  // namespace headwise::inline v0
