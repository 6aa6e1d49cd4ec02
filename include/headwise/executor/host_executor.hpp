// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/reference/lse_combine.hpp>
#include <headwise/reference/pack.hpp>

namespace headwise::inline v0 {

/// Runs the steps of a collective as host loops, at once. A collective is written once over
/// (executor, transport); another executor runs the same steps as kernels on a stream.
struct host_executor {
  template <class Source, class Target>
  status materialize(const Source& source, const Target& target) const noexcept {
    return reference::materialize(source, target);
  }

  template <log_base Base, class Output, class Lse, class Valid>
  status pack(const Output& output, const Lse& lse, const message_plan& plan, std::byte* message,
              const Valid& valid, index_t left_out) const noexcept {
    return reference::pack<Base>(output, lse, plan, message, valid, left_out);
  }

  /// Only the LSE part of the messages, for payloads that are sent from where they are.
  template <log_base Base, class Lse, class Valid>
  status pack_lse(const Lse& lse, const message_plan& plan, std::byte* message, const Valid& valid,
                  index_t left_out) const noexcept {
    reference::pack_lse<Base>(lse, plan, message, valid, left_out);
    return {};
  }

  template <log_base Base, class Source, class Output, class Merged, class Sink, class Policy>
  status lse_combine(const Source& source, const Output& output, const Merged& merged,
                     const Sink& sink, const Policy& policy) const noexcept {
    return reference::lse_combine<Base>(source, output, merged, sink, policy);
  }
};

}  // namespace headwise::inline v0
