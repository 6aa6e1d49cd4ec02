// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/collective/all_gather_heads.hpp>
#include <headwise/collective/entry.hpp>
#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/kernel/lse_combine.cuh>
#include <headwise/kernel/materialize.cuh>
#include <headwise/pool/peer_pool.cuh>

// The verbs over a channel of a peer pool: one kernel each, no workspace, no copy before it.

namespace headwise::inline v0 {

namespace detail {

/// What a gather asks of one of its operands. Errors: those of check_gather(), unsupported.
template <class Local, class Gathered>
status check_pooled_gather(const pool_channel& channel, const Local& local,
                           const Gathered& gathered) noexcept {
  static_assert(view_over<Local, axis::token, axis::head, axis::head_dim> &&
                    view_over<Gathered, axis::token, axis::head, axis::head_dim>,
                "headwise: heads are gathered over token, head and head_dim");
  using element = typename Local::value_type;
  static_assert(same_bits<element, typename Gathered::value_type>,
                "headwise: a gather moves bits and does not convert between element types");
  static_assert(sizeof(element) == 1 || sizeof(element) == 2 || sizeof(element) == 4,
                "headwise: a pool moves elements of 1, 2 or 4 bytes");
  static_assert(reachable<device_accessible, Local> && reachable<device_accessible, Gathered>,
                "headwise: a kernel reads and writes views of device or pinned memory");
  const status gather_ok = check_gather(channel.size(), channel.rank(), local, gathered);
  if (!gather_ok.ok()) return gather_ok;
  return check_rows("all_gather_heads", local.template extent<axis::token>(),
                    local.template extent<axis::head>(), local.template extent<axis::head_dim>());
}

}  // namespace detail

/// lse_reduce_scatter() over a channel, with the same bits: every rank gets the combined output of
/// its own heads. One launch; none with no tokens. Can be captured into a graph.
///
/// Operands as there, in memory that the device reaches. What `valid` says is read when the stream
/// gets there.
/// Collective: shapes, the element type and Base are equal on all ranks; strides, alignment, the
/// type of the LSE, `valid` and the order of axes are each rank's own. A rank that makes another
/// call is found out by the kernels (pool_channel::state()).
/// Errors: those of check_reduce_scatter(), not_contiguous (strict entry), capacity_exceeded,
/// cuda_failed, pool_channel::state().
template <log_base Base, entry Entry = entry::strided, class Partial, class Lse, class Result,
          class Merged = none_t, class Valid = none_t, class Sink = none_t,
          class Policy = nan_policy::empty>
status lse_reduce_scatter(const pool_channel& channel, const on_stream& stream,
                          const Partial& partial_output, const Lse& partial_lse,
                          const Result& output, const Merged& merged_lse = {},
                          const Valid& valid = {}, const Sink& sink = {},
                          const Policy& policy = {}) noexcept {
  static_assert(
      detail::reachable<device_accessible, Partial> && detail::reachable<device_accessible, Lse> &&
          detail::reachable<device_accessible, Result> &&
          detail::reachable<device_accessible, Merged> &&
          detail::reachable<device_accessible, Valid> && detail::reachable<device_accessible, Sink>,
      "headwise: a kernel reads and writes views of device or pinned memory");
  const status operands_ok = detail::check_reduce_scatter<Base>(
      channel.size(), channel.rank(), partial_output, partial_lse, output, merged_lse, valid, sink);
  if (!operands_ok.ok()) return operands_ok;
  for (const status& entered : {detail::check_entry<Entry>("partial_output", partial_output),
                                detail::check_entry<Entry>("partial_lse", partial_lse),
                                detail::check_entry<Entry>("output", output)}) {
    if (!entered.ok()) return entered;
  }
  const status numbered = detail::check_rows(
      "lse_reduce_scatter", output.template extent<axis::token>(),
      partial_output.template extent<axis::head>(), output.template extent<axis::head_dim>());
  if (!numbered.ok()) return numbered;
  if (channel.size() == 1) {
    const shard own{partial_output, partial_lse, valid};
    return kernel::lse_combine<Base>(own, output, stream, merged_lse, sink, policy);
  }
  return pool_launcher{channel, stream}.template lse_reduce_scatter<Base>(
      partial_output, partial_lse, output, merged_lse, valid, sink, policy);
}

/// all_gather_heads() over a channel: every rank gets the heads of all, rank by rank, bit for bit.
/// One launch; none with no tokens. Can be captured into a graph. Elements of 1, 2 or 4 bytes.
///
/// Collective: shapes and the element type are equal on all ranks; strides and the order of axes
/// are each rank's own.
/// Errors: shape_mismatch, overlap, those of validate(), not_contiguous (strict entry), unsupported
/// (2^31 rows), capacity_exceeded, cuda_failed, pool_channel::state().
template <entry Entry = entry::strided, class Local, class Gathered>
status all_gather_heads(const pool_channel& channel, const on_stream& stream, const Local& local,
                        const Gathered& gathered) noexcept {
  const status operands_ok = detail::check_pooled_gather(channel, local, gathered);
  if (!operands_ok.ok()) return operands_ok;
  for (const status& entered : {detail::check_entry<Entry>("local", local),
                                detail::check_entry<Entry>("gathered", gathered)}) {
    if (!entered.ok()) return entered;
  }
  if (channel.size() == 1) {
    return detail::same_place(local, gathered) ? status{}
                                               : kernel::materialize(local, gathered, stream);
  }
  return pool_launcher{channel, stream}.all_gather_heads(local, gathered);
}

/// Two gathers behind one exchange, in one launch: the query's latent part and its rope part, say.
/// Operands and errors as for one; nothing of the one lies in the gathered view of the other.
template <entry Entry = entry::strided, class Local, class Gathered, class SecondLocal,
          class SecondGathered>
status all_gather_heads(const pool_channel& channel, const on_stream& stream, const Local& local,
                        const Gathered& gathered, const SecondLocal& second_local,
                        const SecondGathered& second_gathered) noexcept {
  const char* const in_the_other = "shares memory with what the other gather writes";
  for (const status& checked :
       {detail::check_pooled_gather(channel, local, gathered),
        detail::check_pooled_gather(channel, second_local, second_gathered),
        detail::check_entry<Entry>("local", local),
        detail::check_entry<Entry>("gathered", gathered),
        detail::check_entry<Entry>("second_local", second_local),
        detail::check_entry<Entry>("second_gathered", second_gathered),
        detail::check_apart(detail::memory_of(gathered), "second_local", second_local,
                            in_the_other),
        detail::check_apart(detail::memory_of(gathered), "second_gathered", second_gathered,
                            in_the_other),
        detail::check_apart(detail::memory_of(second_gathered), "local", local, in_the_other)}) {
    if (!checked.ok()) return checked;
  }
  if (channel.size() == 1) {
    const status first = all_gather_heads<Entry>(channel, stream, local, gathered);
    return first.ok() ? all_gather_heads<Entry>(channel, stream, second_local, second_gathered)
                      : first;
  }
  return pool_launcher{channel, stream}.all_gather_heads(local, gathered, second_local,
                                                         second_gathered);
}

}  // namespace headwise::inline v0
