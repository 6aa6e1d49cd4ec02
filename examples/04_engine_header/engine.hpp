// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

// A small engine's header. Its users see tensors, a communicator and exceptions of the engine, and
// no name of Headwise.

#include <headwise/headwise.hpp>
#include <headwise/transport/in_process.hpp>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace engine {

/// The engine's 16-bit float: the upper half of a float.
struct bfloat {
  std::uint16_t raw;
};

/// Somebody's memory; sizes and strides, in elements, are known at run time only.
template <class T, std::size_t Dims>
struct tensor {
  T* data = nullptr;
  std::array<std::int64_t, Dims> sizes{};
  std::array<std::int64_t, Dims> strides{};

  /// Entries [0, count) of one dimension; no copy.
  tensor first(std::size_t dim, std::int64_t count) const {
    tensor part = *this;
    part.sizes[dim] = count;
    return part;
  }
};

}  // namespace engine

// [snippet: element]
/// The engine's type means what bf16 means. That is all that Headwise has to know of it.
template <>
struct headwise::element_traits<engine::bfloat> {
  static constexpr headwise::element_kind kind = headwise::element_kind::bf16;
};
// [/snippet]

namespace engine {

// [snippet: status]
/// Headwise returns a status; this engine throws.
inline void check(const headwise::status& done) {
  if (done.ok()) return;
  char text[256];
  headwise::format_status(done, text, sizeof text);
  throw std::runtime_error(text);
}
template <class T>
T check(const headwise::result<T>& made) {
  check(made.why());
  return made.value();
}
// [/snippet]

// [snippet: views]
namespace axis = headwise::axis;
using headwise::dim;
using headwise::layout;

/// [row, head, dim] and [row, head], with the strides that the tensors have.
template <class T>
auto heads_of(const tensor<T, 3>& t) {
  return headwise::view(t.data, layout(dim<axis::token>(t.sizes[0], t.strides[0]),
                                       dim<axis::head>(t.sizes[1], t.strides[1]),
                                       dim<axis::head_dim>(t.sizes[2], t.strides[2])));
}
template <class T>
auto lses_of(const tensor<T, 2>& t) {
  return headwise::view(t.data, layout(dim<axis::token>(t.sizes[0], t.strides[0]),
                                       dim<axis::head>(t.sizes[1], t.strides[1])));
}

/// What this engine's kernel returns: Heads of them, in tiles that make Rows.
template <headwise::index_t Heads, headwise::index_t Rows>
using kernel_output = layout<dim<axis::token, headwise::dynamic_extent, Rows * 512>,
                             dim<axis::head, Heads, 512>, dim<axis::head_dim, 512, 1>>;

/// The shapes that deserve code of their own. Anything else is right too, and a little slower.
using kernel_outputs =
    headwise::layouts<kernel_output<22, 32>, kernel_output<33, 48>, kernel_output<66, 80>>;
// [/snippet]

/// The ranks that share a KV cache. Here they are threads.
class communicator {
 public:
  explicit communicator(int ranks) : group_(ranks) {}
  headwise::in_process rank(int which) { return check(group_.rank(which)); }

 private:
  headwise::in_process_group group_;
};

/// Puts the partial attention results of a communicator's ranks together, for one rank. Sized once;
/// a step allocates nothing.
class partial_merger {
 public:
  partial_merger(communicator& ranks, int rank, std::int64_t most_rows, std::int64_t own_heads)
      : group_(ranks.rank(rank)) {
    const headwise::message_shape largest{group_.size(), most_rows, own_heads, 512};
    const auto bytes = check(headwise::lse_reduce_scatter_bytes<bfloat>(largest));
    workspace_.resize(static_cast<std::size_t>(bytes));
  }

  /// `partial` [row, head, 512] and `lse` [row, head] (natural logarithms) over the keys of this
  /// rank, for the heads of all ranks; `merged` [row, own head, 512] over all keys.
  void merge(const tensor<bfloat, 3>& partial, const tensor<float, 2>& lse,
             const tensor<bfloat, 3>& merged) {
    // [snippet: merge]
    check(headwise::dispatch(heads_of(partial), kernel_outputs{}, [&](const auto& output) {
      return headwise::lse_reduce_scatter<headwise::log_base::e>(
          headwise::host_executor{}, group_, output, lses_of(lse), heads_of(merged), headwise::none,
          workspace_);
    }));
    // [/snippet]
  }

 private:
  headwise::in_process group_;
  std::vector<std::byte> workspace_;
};

}  // namespace engine
