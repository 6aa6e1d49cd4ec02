// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/kernel/materialize.cuh>
#include <headwise/reference/materialize.hpp>
#include <headwise/view/slice.hpp>

#include <support/device.hpp>
#include <support/guarded.hpp>
#include <support/random.hpp>

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

using namespace headwise;
using support::device_array;
using support::guarded;
using support::operand;
using support::random_source;

namespace {

/// Any bits, gaps included; no byte is the poison.
template <class T>
void fill_with_anything(guarded<T>& memory, random_source& random) {
  auto* const bytes = reinterpret_cast<unsigned char*>(memory.data());
  for (index_t i = 0; i < memory.size() * index_t{sizeof(T)}; ++i) {
    bytes[i] = static_cast<unsigned char>(random.bits() % 255);
  }
}

/// Copies `source` at both places; both targets start as the poison.
template <class From, class To>
void check_copy(const From& source, const To& target) {
  const support::stream on;
  REQUIRE(reference::materialize(source.first, target.first).ok());
  REQUIRE(kernel::materialize(source.second, target.second, cudaStream_t{on}).ok());
  on.wait();
}

// ---- any strides ---------------------------------------------------------------------------

using in_order = layout<dim<axis::rank>, dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>;
using turned = layout<dim<axis::head>, dim<axis::rank>, dim<axis::head_dim>, dim<axis::token>>;

/// Of rank, token, head and head_dim.
using four = std::array<index_t, 4>;

template <class Layout>
Layout layout_of(const four& extents, const four& strides) {
  const dim<axis::rank> rank(extents[0], strides[0]);
  const dim<axis::token> token(extents[1], strides[1]);
  const dim<axis::head> head(extents[2], strides[2]);
  const dim<axis::head_dim> head_dim(extents[3], strides[3]);
  if constexpr (std::is_same_v<Layout, in_order>) {
    return Layout(rank, token, head, head_dim);
  } else {
    return Layout(head, rank, head_dim, token);
  }
}

/// Axes nested in any order, with gaps or without, often such that wide loads are possible.
four any_strides(random_source& random, const four& extents) {
  std::size_t order[4] = {3, 2, 1, 0};
  if (random.one_in(2)) random.shuffle(order, 4);
  const index_t grain = random.one_of({1, 1, 2, 4, 8, 16});
  four strides{};
  index_t next = random.one_in(4) ? random.in(2, 3) : 1;
  for (const std::size_t which : order) {
    strides[which] = next;
    next *= extents[which];
    if (random.one_in(2)) next = detail::round_up(next + random.in(0, 2) * grain, grain);
  }
  return strides;
}

template <class T, class From, class To>
void check_any_copy(random_source& random) {
  const four extents{random.in(1, 3), random.in(1, 5), random.in(1, 6),
                     random.one_of({1, 2, 3, 7, 8, 16, 33, 64, 100, 128, 512})};
  operand<T, From> source(layout_of<From>(extents, any_strides(random, extents)),
                          random.one_in(2) ? 0 : random.in(1, 3));
  operand<T, To> target(layout_of<To>(extents, any_strides(random, extents)),
                        random.one_in(2) ? 0 : random.in(1, 3));
  fill_with_anything(source.host, random);
  source.upload();
  check_copy(std::pair(source.here(), source.there()), std::pair(target.here(), target.there()));
  CHECK(target.differences() == 0);
  CHECK(source.differences() == 0);
}

struct words_of_12 {
  std::uint32_t word[3];
};
struct words_of_16 {
  std::uint64_t word[2];
};

}  // namespace

TEST_CASE_TEMPLATE("materialize kernel: the bits of the host, from any strides to any", T,
                   std::uint8_t, bf16, float, std::uint64_t, words_of_16, words_of_12) {
  random_source random(31 + sizeof(T));
  for (int i = 0; i < 40; ++i) {
    CAPTURE(i);
    check_any_copy<T, in_order, in_order>(random);
    check_any_copy<T, in_order, turned>(random);
    check_any_copy<T, turned, in_order>(random);
    check_any_copy<T, turned, turned>(random);
  }
}

// ---- static types --------------------------------------------------------------------------

namespace {

/// The live heads of a padded buffer become packed, and the other way round.
template <class T, index_t Live, index_t Padded>
void check_sliced_heads(random_source& random, index_t tokens) {
  using padded =
      packed_layout_t<extent<axis::token>, extent<axis::head, Padded>, extent<axis::head_dim, 512>>;
  using dense =
      packed_layout_t<extent<axis::token>, extent<axis::head, Live>, extent<axis::head_dim, 512>>;
  const auto live_heads = [](const auto& all) {
    return slice<axis::head>(all, constant<0>, constant<Live>);
  };
  const padded wide = packed(extent<axis::token>(tokens), extent<axis::head, Padded>(),
                             extent<axis::head_dim, 512>());
  const dense tight = packed(extent<axis::token>(tokens), extent<axis::head, Live>(),
                             extent<axis::head_dim, 512>());
  for (const bool into_padded : {false, true}) {
    operand<T, padded> one(wide);
    operand<T, dense> other(tight);
    const std::pair sliced(live_heads(one.here()), live_heads(one.there()));
    const std::pair whole(other.here(), other.there());
    if (into_padded) {
      fill_with_anything(other.host, random);
      other.upload();
      check_copy(whole, sliced);
    } else {
      fill_with_anything(one.host, random);
      one.upload();
      check_copy(sliced, whole);
    }
    CHECK(one.differences() == 0);
    CHECK(other.differences() == 0);
  }
}

}  // namespace

TEST_CASE("materialize kernel: live heads of a padded buffer, known in the type") {
  random_source random(32);
  for (const index_t tokens : {1, 4, 33}) {
    CAPTURE(tokens);
    check_sliced_heads<bf16, 22, 32>(random, tokens);
    check_sliced_heads<float, 128, 144>(random, tokens);
  }
}

// ---- one run -------------------------------------------------------------------------------

namespace {

template <class T>
using row_view = view<T, layout<dim<axis::slot, dynamic_extent, 1>>, memory_space::device>;

template <class T>
void check_run_at_offsets(random_source& random, index_t count, index_t from, index_t to) {
  constexpr index_t room = 16;
  guarded<T> content(count + room);
  fill_with_anything(content, random);
  const device_array<T> source(content);
  const device_array<T> target(count + room);
  const layout<dim<axis::slot, dynamic_extent, 1>> run{dim<axis::slot, dynamic_extent, 1>(count)};
  const support::stream on;
  REQUIRE(kernel::materialize(row_view<const T>(source.data() + from, run),
                              row_view<T>(target.data() + to, run), cudaStream_t{on})
              .ok());
  on.wait();
  T poison;
  std::memset(&poison, 0xff, sizeof(T));
  const std::vector<T> got = target.fetch();
  index_t wrong = target.stray_bytes();
  for (index_t i = 0; i < count + room; ++i) {
    const bool inside = i >= to && i < to + count;
    const T& wanted = inside ? content.data()[from + i - to] : poison;
    wrong += support::same_bits(got[static_cast<std::size_t>(i)], wanted) ? 0 : 1;
  }
  CAPTURE(count);
  CAPTURE(from);
  CAPTURE(to);
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("materialize kernel: runs of an odd number of bytes, from any offset to any") {
  random_source random(33);
  for (const index_t count : {1, 15, 17, 1001}) {
    for (index_t from = 0; from < 16; ++from) {
      for (index_t to = 0; to < 16; ++to) {
        check_run_at_offsets<std::uint8_t>(random, count, from, to);
      }
    }
  }
}
TEST_CASE_TEMPLATE("G01: materialize kernel: pointers off the alignment of a vector", T, bf16,
                   float, std::uint64_t, words_of_12, words_of_16) {
  random_source random(34 + sizeof(T));
  for (const index_t count : {1, 15, 512, 1001}) {
    for (index_t from = 0; from < 16; ++from) {
      check_run_at_offsets<T>(random, count, from, from);
      check_run_at_offsets<T>(random, count, from, random.in(0, 15));
    }
  }
}

// ---- numbers -------------------------------------------------------------------------------

TEST_CASE("A03: materialize kernel: a column is copied by its stride") {
  // t = [[0, 0], [1, 1]] and its first column, as each of two ranks has it.
  const device_array<std::int64_t> table(std::vector<std::int64_t>{0, 0, 1, 1});
  const device_array<std::int64_t> gathered(4);
  using column = layout<dim<axis::head, 2, 2>>;
  using dense = layout<dim<axis::head, 2, 1>>;
  const support::stream on;
  for (index_t rank = 0; rank < 2; ++rank) {
    REQUIRE(
        kernel::materialize(make_view<memory_space::device>(table.data(), column{}),
                            make_view<memory_space::device>(gathered.data() + 2 * rank, dense{}),
                            cudaStream_t{on})
            .ok());
  }
  on.wait();
  CHECK(gathered.fetch() == std::vector<std::int64_t>{0, 1, 0, 1});
  CHECK(gathered.stray_bytes() == 0);
}

TEST_CASE("A13: materialize kernel: the query inside of a fused qkv row, into a rank's heads") {
  constexpr index_t tokens = 3;
  using fused =
      layout<dim<axis::token, tokens, 256>, dim<axis::head, 2, 64>, dim<axis::head_dim, 64, 1>>;
  using rows =
      layout<dim<axis::token, tokens, 256>, dim<axis::head, 4, 64>, dim<axis::head_dim, 64, 1>>;
  std::vector<bf16> qkv(tokens * 256, bf16{0xffff});
  for (index_t t = 0; t < tokens; ++t) {
    for (index_t i = 0; i < 128; ++i) {
      qkv[static_cast<std::size_t>(256 * t + i)] =
          from_float<bf16>(static_cast<float>(10 * t + i / 64));
    }
  }
  const device_array<bf16> from(qkv);
  const device_array<bf16> to(tokens * 256);
  const support::stream on;
  const auto part = slice<axis::head>(make_view<memory_space::device>(to.data(), rows{}),
                                      constant<2>, constant<2>);
  REQUIRE(kernel::materialize(make_view<memory_space::device>(from.data(), fused{}), part,
                              cudaStream_t{on})
              .ok());
  on.wait();
  const std::vector<bf16> got = to.fetch();
  index_t wrong = to.stray_bytes();
  for (index_t i = 0; i < tokens * 256; ++i) {
    const bool own = i % 256 >= 128;
    const bf16 wanted =
        own ? qkv[static_cast<std::size_t>(i - 128)] : bf16{0xffff};  // the other rank's heads
    wrong += got[static_cast<std::size_t>(i)] == wanted ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("A15: materialize kernel: a corner of a matrix, to its last element and no further") {
  using matrix = layout<dim<axis::token, 4, 5>, dim<axis::head, 5, 1>>;
  using dense = layout<dim<axis::token, 2, 2>, dim<axis::head, 2, 1>>;
  std::vector<float> numbers(20);
  for (std::size_t i = 0; i < 20; ++i) numbers[i] = static_cast<float>(i);
  const auto corner_of = [](const auto& whole) {
    return slice<axis::head>(slice<axis::token>(whole, constant<2>, constant<2>), constant<3>,
                             constant<2>);
  };
  const device_array<float> parent(numbers);
  const device_array<float> taken(4);
  const device_array<float> other(20);
  const auto corner = corner_of(make_view<memory_space::device>(parent.data(), matrix{}));
  CHECK(corner.span_size() == 7);
  CHECK(corner.data() - parent.data() + corner.span_size() == 20);
  const support::stream on;
  const auto small_one = make_view<memory_space::device>(taken.data(), dense{});
  REQUIRE(kernel::materialize(corner, small_one, cudaStream_t{on}).ok());
  REQUIRE(kernel::materialize(small_one,
                              corner_of(make_view<memory_space::device>(other.data(), matrix{})),
                              cudaStream_t{on})
              .ok());
  on.wait();
  CHECK(taken.fetch() == std::vector<float>{13, 14, 18, 19});
  CHECK(taken.stray_bytes() == 0);
  const std::vector<float> put = other.fetch();
  for (std::size_t i = 0; i < 20; ++i) {
    CAPTURE(i);
    const bool inside = i == 13 || i == 14 || i == 18 || i == 19;
    if (inside) {
      CHECK(put[i] == numbers[i]);
    } else {
      CHECK(detail::float_bits(put[i]) == 0xffffffffu);
    }
  }
  CHECK(other.stray_bytes() == 0);
}

TEST_CASE("B06: materialize kernel: fp8 rows of 576 bytes into rows of 580") {
  random_source random(35);
  using dense = packed_layout_t<extent<axis::token>, extent<axis::head>, extent<axis::head_dim>>;
  for (const index_t tokens : {1, 3, 17}) {
    CAPTURE(tokens);
    operand<fp8_e4m3, dense> source(
        packed(extent<axis::token>(tokens), extent<axis::head>(2), extent<axis::head_dim>(576)));
    operand<fp8_e4m3, dense> target(
        packed(extent<axis::token>(tokens), extent<axis::head>(2), extent<axis::head_dim>(580)));
    fill_with_anything(source.host, random);
    source.upload();
    check_copy(std::pair(source.here(), source.there()),
               std::pair(slice<axis::head_dim>(target.here(), 0, 576).value(),
                         slice<axis::head_dim>(target.there(), 0, 576).value()));
    CHECK(target.differences() == 0);
  }
}

// ---- offsets of 64 bits --------------------------------------------------------------------

namespace {

/// Device memory of which little is touched, or none if there is not so much.
class large_memory {
 public:
  explicit large_memory(index_t bytes) {
    if (cudaMalloc(&data_, static_cast<std::size_t>(bytes)) != cudaSuccess) {
      data_ = nullptr;
      static_cast<void>(cudaGetLastError());
    }
  }
  large_memory(const large_memory&) = delete;
  large_memory& operator=(const large_memory&) = delete;
  ~large_memory() { cudaFree(data_); }

  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

template <class T>
void check_rows_far_apart(random_source& random, index_t token_stride) {
  constexpr index_t tokens = 2, heads = 32, head_dim = 256, row = heads * head_dim;
  // Room in front of each row and behind it that nobody may write.
  constexpr index_t margin = 64;
  const large_memory memory((token_stride * (tokens - 1) + row + 2 * margin) * index_t{sizeof(T)});
  if (memory.data() == nullptr) {
    MESSAGE("not so much memory: left out");
    return;
  }
  auto* const first = reinterpret_cast<T*>(memory.data()) + margin;
  constexpr std::size_t row_bytes = (row + 2 * margin) * sizeof(T);
  for (index_t t = 0; t < tokens; ++t) {
    REQUIRE_CUDA(cudaMemset(first + t * token_stride - margin, 0xff, row_bytes));
  }
  REQUIRE_CUDA(cudaDeviceSynchronize());  // the stream does not wait for that
  const view<T, layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>,
             memory_space::device>
      sparse(first, {dim<axis::token>(tokens, token_stride), dim<axis::head>(heads, head_dim),
                     dim<axis::head_dim>(head_dim, 1)});
  guarded<T> content(tokens * row);
  fill_with_anything(content, random);
  const device_array<T> from(content);
  const device_array<T> back(tokens * row);
  const auto dense = packed(extent<axis::token, tokens>(), extent<axis::head, heads>(),
                            extent<axis::head_dim, head_dim>());
  const support::stream on;
  REQUIRE(kernel::materialize(make_view<memory_space::device>(from.data(), dense), sparse,
                              cudaStream_t{on})
              .ok());
  REQUIRE(kernel::materialize(sparse, make_view<memory_space::device>(back.data(), dense),
                              cudaStream_t{on})
              .ok());
  on.wait();
  index_t wrong = back.differences(content.data());
  T poison;
  std::memset(&poison, 0xff, sizeof(T));
  for (index_t t = 0; t < tokens; ++t) {
    std::vector<T> there(row + 2 * margin);
    REQUIRE_CUDA(cudaMemcpy(there.data(), first + t * token_stride - margin, row_bytes,
                            cudaMemcpyDeviceToHost));
    for (index_t i = 0; i < row + 2 * margin; ++i) {
      const bool inside = i >= margin && i < margin + row;
      const T& expected = inside ? content.data()[t * row + i - margin] : poison;
      wrong += support::same_bits(there[static_cast<std::size_t>(i)], expected) ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("F05: materialize kernel: the first and the last of 2^31 elements, and beyond") {
  random_source random(36);
  constexpr index_t row = 32 * 256;
  SUBCASE("the last element is number 2^31") {
    check_rows_far_apart<std::uint8_t>(random, 262143 * row);
  }
  SUBCASE("behind it") { check_rows_far_apart<bf16>(random, 262144 * row); }
  SUBCASE("behind 2^32 bytes, at an odd distance") {
    check_rows_far_apart<std::uint8_t>(random, (index_t{1} << 32) + 7);
  }
  SUBCASE("behind 2^32 elements") { check_rows_far_apart<bf16>(random, (index_t{1} << 32) + 64); }
}

// ---- launches ------------------------------------------------------------------------------

TEST_CASE("materialize kernel: one launch, whatever the strides") {
  random_source random(37);
  for (int i = 0; i < 10; ++i) {
    const four extents{2, random.in(1, 9), random.in(1, 6), random.one_of({1, 33, 512})};
    operand<bf16, in_order> source(layout_of<in_order>(extents, any_strides(random, extents)));
    operand<bf16, turned> target(layout_of<turned>(extents, any_strides(random, extents)));
    fill_with_anything(source.host, random);
    source.upload();
    const support::stream on;
    const support::graph captured(on, [&] {
      REQUIRE(kernel::materialize(source.there(), target.there(), cudaStream_t{on}).ok());
    });
    CHECK(captured.nodes() == 1);
    CHECK(captured.kernels() == 1);
    CHECK(target.device.stray_bytes() == 0);
    REQUIRE(reference::materialize(source.here(), target.here()).ok());
    captured.replay(on);
    CHECK(target.differences() == 0);
    // With other data.
    fill_with_anything(source.host, random);
    source.upload();
    REQUIRE(reference::materialize(source.here(), target.here()).ok());
    captured.replay(on);
    CHECK(target.differences() == 0);
  }
}

TEST_CASE("J02: materialize kernel: nothing to copy is no launch and no error") {
  const auto nothing = [](cudaStream_t on, index_t tokens, index_t heads) {
    const auto none_there = packed(extent<axis::token>(tokens), extent<axis::head>(heads),
                                   extent<axis::head_dim, 512>());
    return kernel::materialize(
        make_view<memory_space::device>(static_cast<const bf16*>(nullptr), none_there),
        make_view<memory_space::device>(static_cast<bf16*>(nullptr), none_there), cudaStream_t{on});
  };
  const support::stream on;
  for (const index_t tokens : {index_t{0}, index_t{1} << 40}) {
    const index_t heads = tokens == 0 ? 22 : 0;
    CHECK(nothing(on, tokens, heads).ok());
    const support::graph captured(on, [&] { CHECK(nothing(on, tokens, heads).ok()); });
    CHECK(captured.nodes() == 0);
    captured.replay(on);
    CHECK(cudaGetLastError() == cudaSuccess);
  }
}
