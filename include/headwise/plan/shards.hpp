// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/plan/operands.hpp>

#include <cstring>
#include <type_traits>

// Where the partial results ("shards") of a combine are. A source has check<Base>(output), the
// number of its shards, and at(token, head): what they have there, shard by shard the LSE, the row
// and its elements. All but the checks run on the host and in kernels, wherever the memory can be
// reached.

namespace headwise::inline v0 {

/// A row of a partial result where it lies: element d is data[d * stride].
template <class T>
struct partial_row {
  const T* data = nullptr;
  index_t stride = 1;

  HEADWISE_HD constexpr float value(index_t d) const noexcept { return to_float(data[d * stride]); }
};

namespace detail {

/// Row (token, head) of an output over token, head and head_dim.
template <class Output>
HEADWISE_HD constexpr partial_row<typename Output::value_type> row_of(const Output& output,
                                                                      index_t token,
                                                                      index_t head) noexcept {
  const index_t offset =
      token * output.template stride<axis::token>() + head * output.template stride<axis::head>();
  return {output.data() + offset, output.template stride<axis::head_dim>()};
}

// Inline LSE bits behind a 16-bit row are aligned to 2 bytes only: low half first, as the byte
// order of every CUDA host and device has it. In a plane they are aligned to 4.

HEADWISE_HD inline void store_lse_bits(std::byte* at, float value,
                                       [[maybe_unused]] lse_placement placement) noexcept {
#if defined(__CUDA_ARCH__)
  if (placement == lse_placement::plane) {
    *reinterpret_cast<float*>(at) = value;
  } else {
    auto* const halves = reinterpret_cast<std::uint16_t*>(at);
    halves[0] = static_cast<std::uint16_t>(float_bits(value));
    halves[1] = static_cast<std::uint16_t>(float_bits(value) >> 16);
  }
#else
  std::memcpy(at, &value, sizeof value);
#endif
}
HEADWISE_HD inline float load_lse_bits(const std::byte* at,
                                       [[maybe_unused]] lse_placement placement) noexcept {
#if defined(__CUDA_ARCH__)
  if (placement == lse_placement::plane) return *reinterpret_cast<const float*>(at);
  const auto* const halves = reinterpret_cast<const std::uint16_t*>(at);
  return bit_cast<float>(std::uint32_t{halves[0]} | std::uint32_t{halves[1]} << 16);
#else
  float value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
#endif
}

/// What every row of a view is a multiple of, in bytes: an or of the pointer and of the strides
/// that are used. Rows whose elements do not follow each other are aligned to an element at most.
template <class T, class... Dims, memory_space Space>
std::uint64_t row_alignment(const view<T, layout<Dims...>, Space>& what) noexcept {
  constexpr auto bytes = static_cast<std::uint64_t>(sizeof(T));
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(what.data());
  const auto add = [&](bool columns, index_t extent, index_t stride) {
    if (extent <= 1 || (columns && stride == 1)) return;
    bits |= columns ? bytes : static_cast<std::uint64_t>(stride) * bytes;
  };
  (add(std::is_same_v<typename Dims::axis_type, axis::head_dim>,
       static_cast<const Dims&>(what.layout()).extent(),
       static_cast<const Dims&>(what.layout()).stride()),
   ...);
  return bits;
}

/// The same of what the type says, for a pointer that is aligned to 16.
template <class T, class... Dims, memory_space Space>
constexpr std::uint64_t static_row_alignment(
    std::type_identity<view<T, layout<Dims...>, Space>>) noexcept {
  constexpr auto bytes = static_cast<std::uint64_t>(sizeof(T));
  std::uint64_t bits = 0;
  const auto add = [&](bool columns, index_t extent, index_t stride) {
    if (extent == 0 || extent == 1 || extent == dynamic_extent || stride == dynamic_stride) return;
    if (columns && stride == 1) return;
    bits |= columns ? bytes : static_cast<std::uint64_t>(stride) * bytes;
  };
  (add(std::is_same_v<typename Dims::axis_type, axis::head_dim>, Dims::static_extent,
       Dims::static_stride),
   ...);
  return bits;
}

/// What gathered_shards have at one token and head.
template <class Element, class Lse>
struct gathered_rows {
  using element_type = Element;

  partial_row<Element> first;
  index_t rank_stride;
  const Lse* first_lse;
  index_t lse_rank_stride;

  template <log_base Base>
  HEADWISE_HD constexpr lse<Base> lse_of(int s) const noexcept {
    return load_lse<Base>(first_lse[s * lse_rank_stride]);
  }
  HEADWISE_HD constexpr partial_row<Element> row(int s) const noexcept {
    return {first.data + s * rank_stride, first.stride};
  }
  HEADWISE_HD constexpr float value(int s, index_t d) const noexcept { return row(s).value(d); }
};

/// The same of received_shards.
template <class Element>
struct received_rows {
  using element_type = Element;

  const std::byte* payload;
  index_t peer_pitch;
  const std::byte* lse_bits;
  index_t lse_peer_pitch;
  lse_placement placement;

  template <log_base Base>
  HEADWISE_HD lse<Base> lse_of(int s) const noexcept {
    return {load_lse_bits(lse_bits + s * lse_peer_pitch, placement)};
  }
  HEADWISE_HD partial_row<Element> row(int s) const noexcept {
    return {reinterpret_cast<const Element*>(payload + s * peer_pitch), 1};
  }
  HEADWISE_HD float value(int s, index_t d) const noexcept { return row(s).value(d); }
};

/// The same of one shard.
template <class Output, class Lse, class Valid>
struct shard_rows {
  using element_type = typename Output::value_type;

  partial_row<element_type> only;
  Lse partial_lse;
  Valid valid;
  index_t token;
  index_t head;

  template <log_base Base>
  HEADWISE_HD constexpr lse<Base> lse_of(int) const noexcept {
    return lse_to_send<Base>(partial_lse, valid, token, head);
  }
  HEADWISE_HD constexpr partial_row<element_type> row(int) const noexcept { return only; }
  HEADWISE_HD constexpr float value(int, index_t d) const noexcept { return only.value(d); }
};

/// A shard and others behind it.
template <class First, class Rest>
struct joined_rows {
  using element_type = typename First::element_type;

  First first;
  Rest rest;

  template <log_base Base>
  HEADWISE_HD constexpr lse<Base> lse_of(int s) const noexcept {
    return s == 0 ? first.template lse_of<Base>(0) : rest.template lse_of<Base>(s - 1);
  }
  HEADWISE_HD constexpr partial_row<element_type> row(int s) const noexcept {
    static_assert(std::is_same_v<element_type, typename Rest::element_type>,
                  "headwise: a kernel combines partial results of one element type");
    return s == 0 ? first.row(0) : rest.row(s - 1);
  }
  HEADWISE_HD constexpr float value(int s, index_t d) const noexcept {
    return s == 0 ? first.value(0, d) : rest.value(s - 1, d);
  }
};
template <class First, class Rest>
joined_rows(First, Rest) -> joined_rows<First, Rest>;

/// What came from the peers, and a row that did not travel.
template <class Received, class Own>
struct exchanged_rows {
  using element_type = typename Own::element_type;

  Received received;
  Own own;
  int own_rank;

  template <log_base Base>
  HEADWISE_HD lse<Base> lse_of(int s) const noexcept {
    return s == own_rank ? own.template lse_of<Base>(0) : received.template lse_of<Base>(s);
  }
  HEADWISE_HD partial_row<element_type> row(int s) const noexcept {
    return s == own_rank ? own.row(0) : received.row(s);
  }
  HEADWISE_HD float value(int s, index_t d) const noexcept { return row(s).value(d); }
};
template <class Received, class Own>
exchanged_rows(Received, Own, int) -> exchanged_rows<Received, Own>;

}  // namespace detail

/// Shards in one view over [rank, token, head, head_dim], their LSEs in one over [rank, token,
/// head]; any strides.
template <class Outputs, class Lses>
struct gathered_shards {
  static_assert(view_over<Outputs, axis::rank, axis::token, axis::head, axis::head_dim>,
                "headwise: gathered outputs are a view over rank, token, head and head_dim");
  static_assert(view_over<Lses, axis::rank, axis::token, axis::head>,
                "headwise: gathered LSEs are a view over rank, token and head");

  using element_type = typename Outputs::value_type;

  Outputs outputs;
  Lses lses;

  template <log_base Base, class Output>
  constexpr status check(const Output& output) const noexcept {
    const index_t ranks = outputs.template extent<axis::rank>();
    const status ranks_ok = require_supported_ranks(ranks);
    if (!ranks_ok.ok()) return ranks_ok;
    const status outputs_ok = validate("partial_output", outputs);
    if (!outputs_ok.ok()) return outputs_ok;
    const status lses_ok = validate("partial_lse", lses);
    if (!lses_ok.ok()) return lses_ok;
    if (lses.template extent<axis::rank>() != ranks) {
      return failure(errc::shape_mismatch, "partial_lse", "must be that of partial_output",
                     lses.template extent<axis::rank>(), ranks, axis::rank::name);
    }
    const auto first = fix<axis::rank>(outputs, 0);
    const status partial_ok = detail::check_partial<Base>(first, fix<axis::rank>(lses, 0));
    if (!partial_ok.ok()) return partial_ok;
    return detail::same_extents("partial_output", first, "must be that of output", output.layout());
  }
  HEADWISE_HD constexpr int count() const noexcept {
    return static_cast<int>(outputs.template extent<axis::rank>());
  }
  HEADWISE_HD constexpr auto at(index_t token, index_t head) const noexcept {
    return detail::gathered_rows<element_type, typename Lses::value_type>{
        detail::row_of(outputs, token, head), outputs.template stride<axis::rank>(),
        &detail::element_of(permute<axis::rank, axis::token, axis::head>(lses), 0, token, head),
        lses.template stride<axis::rank>()};
  }
  std::uint64_t alignment() const noexcept { return detail::row_alignment(outputs); }
  bool has_lse_in(std::span<const std::byte> memory) const noexcept {
    return detail::bytes_in_common(detail::memory_of(lses), memory) > 0;
  }
};
template <class Outputs, class Lses>
gathered_shards(Outputs, Lses) -> gathered_shards<Outputs, Lses>;

/// The messages of all ranks, as pack() of each made them for this one.
template <class Element>
struct received_shards {
  static_assert(
      is_reducible<Element>,
      "headwise: a partial output is fp32, fp16 or bf16; fp8 can be moved, never reduced");

  using element_type = Element;

  message_plan plan;
  const std::byte* message = nullptr;

  template <log_base Base, class Output>
  status check(const Output& output) const noexcept {
    const status message_ok = detail::check_message(message, plan);
    if (!message_ok.ok()) return message_ok;
    if (index_t{sizeof(Element)} != plan.element_bytes) {
      return failure(errc::shape_mismatch, "message", "is planned for elements of another size",
                     plan.element_bytes, sizeof(Element));
    }
    return detail::check_planned("output", output, plan, plan.shape.heads);
  }
  HEADWISE_HD constexpr int count() const noexcept { return static_cast<int>(plan.shape.ranks); }
  HEADWISE_HD constexpr detail::received_rows<Element> at(index_t token,
                                                          index_t head) const noexcept {
    return {message + token * plan.token_pitch + head * plan.head_pitch, plan.peer_pitch,
            message + plan.lse_offset + token * plan.lse_token_pitch + head * plan.lse_head_pitch,
            plan.lse_peer_pitch, plan.format.lse};
  }
  std::uint64_t alignment() const noexcept {
    return detail::row_alignment(payload_view(plan, reinterpret_cast<const Element*>(message)));
  }
  bool has_lse_in(std::span<const std::byte> memory) const noexcept {
    return detail::bytes_in_common({message, static_cast<std::size_t>(plan.total_bytes)}, memory) >
           0;
  }
};

/// One partial result: an output over token, head and head_dim, its LSE over token and head; any
/// strides. `valid` (none, integers over token, or keys_by_sequence) says which rows have keys: one
/// of count 0 is empty, whatever its LSE says. A source of one shard; separate_shards makes one of
/// several.
template <class Output, class Lse, class Valid = none_t>
struct shard {
  using element_type = typename Output::value_type;

  Output output;
  Lse partial_lse;
  Valid valid{};

  constexpr shard(const Output& rows, const Lse& lses, const Valid& keys = {}) noexcept
      : output(rows), partial_lse(lses), valid(keys) {}

  template <log_base Base, class Combined>
  constexpr status check(const Combined& combined) const noexcept {
    const status partial_ok = detail::check_partial<Base>(output, partial_lse);
    if (!partial_ok.ok()) return partial_ok;
    const status fits =
        detail::same_extents("partial_output", output, "must be that of output", combined.layout());
    return fits.ok() ? detail::check_valid(valid, output.template extent<axis::token>()) : fits;
  }
  HEADWISE_HD constexpr int count() const noexcept { return 1; }
  HEADWISE_HD constexpr detail::shard_rows<Output, Lse, Valid> at(index_t token,
                                                                  index_t head) const noexcept {
    return {detail::row_of(output, token, head), partial_lse, valid, token, head};
  }
  std::uint64_t alignment() const noexcept { return detail::row_alignment(output); }
  bool has_lse_in(std::span<const std::byte> memory) const noexcept {
    return detail::bytes_in_common(detail::memory_of(partial_lse), memory) > 0;
  }
};

/// Several shards that each have strides of their own: the merge of a cascade or of chunked
/// prefill.
///
///     lse_combine<log_base::e>(
///         separate_shards(shard{prefix, prefix_lse}, shard{suffix, suffix_lse}), output);
template <class First, class... Rest>
struct separate_shards {
  static_assert(sizeof...(Rest) < max_ranks, "headwise: at most 16 partial results are combined");
  using element_type = typename First::element_type;

  First first;
  separate_shards<Rest...> rest;

  constexpr explicit separate_shards(const First& one, const Rest&... others) noexcept
      : first(one), rest(others...) {}

  template <log_base Base, class Output>
  constexpr status check(const Output& output) const noexcept {
    const status first_ok = first.template check<Base>(output);
    return first_ok.ok() ? rest.template check<Base>(output) : first_ok;
  }
  HEADWISE_HD constexpr int count() const noexcept { return 1 + rest.count(); }
  HEADWISE_HD constexpr auto at(index_t token, index_t head) const noexcept {
    return detail::joined_rows{first.at(token, head), rest.at(token, head)};
  }
  std::uint64_t alignment() const noexcept { return first.alignment() | rest.alignment(); }
  bool has_lse_in(std::span<const std::byte> memory) const noexcept {
    return first.has_lse_in(memory) || rest.has_lse_in(memory);
  }
};
template <class First>
struct separate_shards<First> : First {
  constexpr explicit separate_shards(const First& one) noexcept : First(one) {}
};
template <class... Shards>
separate_shards(Shards...) -> separate_shards<Shards...>;

/// What a reduce-scatter combines: the messages of the peers, and this rank's own part from where
/// it is, since that does not travel.
template <class Received, class Own>
struct exchanged_shards {
  using element_type = typename Own::element_type;

  Received received;
  Own own;
  int own_rank = 0;

  template <log_base Base, class Output>
  status check(const Output& output) const noexcept {
    const status received_ok = received.template check<Base>(output);
    return received_ok.ok() ? own.template check<Base>(output) : received_ok;
  }
  HEADWISE_HD constexpr int count() const noexcept { return received.count(); }
  HEADWISE_HD constexpr auto at(index_t token, index_t head) const noexcept {
    return detail::exchanged_rows{received.at(token, head), own.at(token, head), own_rank};
  }
  std::uint64_t alignment() const noexcept { return received.alignment() | own.alignment(); }
  bool has_lse_in(std::span<const std::byte> memory) const noexcept {
    return received.has_lse_in(memory) || own.has_lse_in(memory);
  }
};
template <class Received, class Own>
exchanged_shards(Received, Own, int) -> exchanged_shards<Received, Own>;

namespace detail {

template <bool (*Reaches)(memory_space), class Outputs, class Lses>
inline constexpr bool reachable<Reaches, gathered_shards<Outputs, Lses>> =
    reachable<Reaches, Outputs>&& reachable<Reaches, Lses>;
template <bool (*Reaches)(memory_space), class Output, class Lse, class Valid>
inline constexpr bool reachable<Reaches, shard<Output, Lse, Valid>> =
    reachable<Reaches, Output>&& reachable<Reaches, Lse>&& reachable<Reaches, Valid>;
template <bool (*Reaches)(memory_space), class... Shards>
inline constexpr bool reachable<Reaches, separate_shards<Shards...>> =
    (reachable<Reaches, Shards> && ...);
template <bool (*Reaches)(memory_space), class Received, class Own>
inline constexpr bool reachable<Reaches, exchanged_shards<Received, Own>> = reachable<Reaches, Own>;

}  // namespace detail

}  // namespace headwise::inline v0
