// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/kernel/lse_combine.cuh>
#include <headwise/kernel/materialize.cuh>
#include <headwise/kernel/pack.cuh>

namespace headwise::inline v0 {

/// Runs the steps of a collective as kernels on a stream, of the device that is current. Nothing is
/// allocated and nothing waits, so all of it can be captured into a graph.
struct cuda_executor {
  on_stream stream;  ///< from a cudaStream_t; {stream, true} lets kernels start early

  /// Whether the kernels can take a reduce-scatter of this shape, whichever way it goes: asked
  /// before anything is sent, so that all ranks refuse alike. Errors: unsupported.
  status check(const message_shape& shape) const noexcept {
    return detail::check_rows("lse_reduce_scatter", shape.tokens, shape.heads, shape.head_dim);
  }

  template <class Source, class Target>
  status materialize(const Source& source, const Target& target) const noexcept {
    return kernel::materialize(source, target, stream);
  }

  template <log_base Base, class Output, class Lse, class Valid>
  status pack(const Output& output, const Lse& lse, const message_plan& plan, std::byte* message,
              const Valid& valid, index_t left_out) const noexcept {
    return kernel::pack<Base>(output, lse, plan, message, stream, valid, left_out);
  }

  template <log_base Base, class Lse, class Valid>
  status pack_lse(const Lse& lse, const message_plan& plan, std::byte* message, const Valid& valid,
                  index_t left_out) const noexcept {
    return kernel::pack_lse<Base>(lse, plan, message, stream, valid, left_out);
  }

  template <log_base Base, class Source, class Output, class Merged, class Sink, class Policy>
  status lse_combine(const Source& source, const Output& output, const Merged& merged,
                     const Sink& sink, const Policy& policy) const noexcept {
    return kernel::lse_combine<Base>(source, output, stream, merged, sink, policy);
  }

  // What the steps would launch, for describe_lse_reduce_scatter().

  template <class Output>
  launch_shape pack_shape(const Output& output, const message_plan& plan,
                          index_t left_out) const noexcept {
    return kernel::pack_shape(output, plan, left_out);
  }
  launch_shape pack_lse_shape(const message_plan& plan, index_t left_out) const noexcept {
    return detail::pack_lse_launch(plan, left_out);
  }
  template <class Source, class Output>
  launch_shape lse_combine_shape(const Source& source, const Output& output) const noexcept {
    return kernel::lse_combine_shape(source, output);
  }
};

}  // namespace headwise::inline v0
