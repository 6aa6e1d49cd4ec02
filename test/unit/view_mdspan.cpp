// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// The mdspan here is a stand-in with the interface of [mdspan], as small as the conversions allow:
// the headers may need nothing else. test/headers/mdspan_of_cuda.cu does the same with
// cuda::std::mdspan, and this file with std::mdspan where the library has it.

#include <headwise/view/mdspan.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <version>
#ifdef __cpp_lib_mdspan
#include <mdspan>
#endif

using namespace headwise;

namespace {

namespace md {

constexpr std::size_t dyn = static_cast<std::size_t>(-1);

template <class Index, std::size_t... Extents>
struct extents {
  using index_type = Index;
  using rank_type = std::size_t;
  static constexpr std::array<std::size_t, sizeof...(Extents)> in_type{Extents...};
  static constexpr rank_type rank() { return sizeof...(Extents); }
  static constexpr rank_type rank_dynamic() {
    return (std::size_t{0} + ... + (Extents == dyn ? 1u : 0u));
  }
  static constexpr std::size_t static_extent(rank_type r) { return in_type[r]; }

  std::array<Index, sizeof...(Extents)> values{};
  constexpr extents() = default;
  template <class... Given>
    requires(sizeof...(Given) == rank_dynamic() && sizeof...(Given) > 0)
  constexpr explicit extents(Given... given) {
    const Index numbers[] = {static_cast<Index>(given)...};
    std::size_t next = 0;
    for (std::size_t r = 0; r < rank(); ++r) {
      values[r] = in_type[r] == dyn ? numbers[next++] : static_cast<Index>(in_type[r]);
    }
  }
  template <class... Given>
    requires(sizeof...(Given) == sizeof...(Extents) && sizeof...(Given) != rank_dynamic())
  constexpr explicit extents(Given... given) : values{static_cast<Index>(given)...} {}
  constexpr Index extent(rank_type r) const {
    return in_type[r] == dyn ? values[r] : static_cast<Index>(in_type[r]);
  }
};

struct layout_right {
  template <class E>
  struct mapping {
    using extents_type = E;
    E sizes{};
    constexpr mapping() = default;
    constexpr mapping(const E& given) : sizes(given) {}
    static constexpr bool is_always_exhaustive() { return true; }
    static constexpr bool is_always_strided() { return true; }
    constexpr typename E::index_type stride(std::size_t r) const {
      typename E::index_type product = 1;
      for (std::size_t i = r + 1; i < E::rank(); ++i)
        product = static_cast<typename E::index_type>(product * sizes.extent(i));
      return product;
    }
  };
};

struct layout_left {
  template <class E>
  struct mapping : layout_right::mapping<E> {
    using layout_right::mapping<E>::mapping;
    constexpr typename E::index_type stride(std::size_t r) const {
      typename E::index_type product = 1;
      for (std::size_t i = 0; i < r; ++i)
        product = static_cast<typename E::index_type>(product * this->sizes.extent(i));
      return product;
    }
  };
};

struct layout_stride {
  template <class E>
  struct mapping {
    using extents_type = E;
    using strides_type = std::array<typename E::index_type, E::rank()>;
    E sizes{};
    strides_type steps{};
    constexpr mapping() = default;
    constexpr mapping(const E& given, const strides_type& strides) : sizes(given), steps(strides) {}
    static constexpr bool is_always_exhaustive() { return false; }
    static constexpr bool is_always_strided() { return true; }
    constexpr typename E::index_type stride(std::size_t r) const { return steps[r]; }
    constexpr strides_type strides() const { return steps; }
  };
};

template <class T, class E, class L = layout_right>
class mdspan {
 public:
  using element_type = T;
  using extents_type = E;
  using index_type = typename E::index_type;
  using rank_type = std::size_t;
  using mapping_type = typename L::template mapping<E>;
  using data_handle_type = T*;
  using reference = T&;
  // As in the standard, fully static extents have no default constructor.
  mdspan() requires(E::rank_dynamic() > 0) = default;
  constexpr mdspan(T* data, const mapping_type& mapped) : data_(data), mapping_(mapped) {}
  static constexpr rank_type rank() { return E::rank(); }
  static constexpr rank_type rank_dynamic() { return E::rank_dynamic(); }
  static constexpr std::size_t static_extent(rank_type r) { return E::static_extent(r); }
  static constexpr bool is_always_strided() { return mapping_type::is_always_strided(); }
  constexpr index_type extent(rank_type r) const { return mapping_.sizes.extent(r); }
  constexpr index_type stride(rank_type r) const { return mapping_.stride(r); }
  constexpr T* const& data_handle() const { return data_; }
  constexpr const mapping_type& mapping() const { return mapping_; }

 private:
  T* data_ = nullptr;
  mapping_type mapping_{};
};

}  // namespace md

constexpr index_t dyn = dynamic_extent;

template <class Layout>
using view_of_floats = view<float, Layout>;

float memory[4 * 32];

TEST_CASE("from_mdspan: what the extents decide becomes part of the type") {
  using rows = md::mdspan<float, md::extents<int, md::dyn, 32, 512>>;
  const rows given(memory, md::extents<int, md::dyn, 32, 512>(4));
  const auto right = from_mdspan<axis::token, axis::head, axis::head_dim>(given);
  static_assert(std::is_same_v<decltype(right.layout()),
                               const layout<dim<axis::token, dyn, 16384>, dim<axis::head, 32, 512>,
                                            dim<axis::head_dim, 512, 1>>&>);
  CHECK(right.data() == memory);
  CHECK(right.extent<axis::token>() == 4);

  // The run-time extent hides the strides that it takes part in, and no other.
  using middle = md::mdspan<float, md::extents<int, 4, md::dyn, 8>>;
  const auto hidden = from_mdspan<axis::token, axis::head, axis::head_dim>(
      middle(memory, md::extents<int, 4, md::dyn, 8>(4)));
  static_assert(std::is_same_v<decltype(hidden.layout()),
                               const layout<dim<axis::token, 4, dyn>, dim<axis::head, dyn, 8>,
                                            dim<axis::head_dim, 8, 1>>&>);
  CHECK(hidden.stride<axis::token>() == 32);

  using left = md::mdspan<const float, md::extents<std::int64_t, 4, 32>, md::layout_left>;
  const auto turned = from_mdspan<memory_space::device, axis::token, axis::head>(
      left(memory, md::extents<std::int64_t, 4, 32>()));
  static_assert(
      std::is_same_v<std::remove_const_t<decltype(turned)>,
                     view<const float, layout<dim<axis::token, 4, 1>, dim<axis::head, 32, 4>>,
                          memory_space::device>>);
  static_assert(sizeof(turned) == sizeof(void*));

  using open = md::mdspan<float, md::extents<std::uint32_t, md::dyn, md::dyn>>;
  const auto run_time = from_mdspan<axis::token, axis::head>(
      open(memory, md::extents<std::uint32_t, md::dyn, md::dyn>(4, 32)));
  static_assert(std::is_same_v<decltype(run_time.layout()),
                               const layout<dim<axis::token, dyn, dyn>, dim<axis::head, dyn, 1>>&>);
  CHECK(run_time.stride<axis::token>() == 32);

  // An extent of 0 in the type decides the strides around it, whatever the others are.
  using none = md::mdspan<float, md::extents<int, 3, md::dyn, 0>>;
  const auto empty = from_mdspan<axis::token, axis::head, axis::head_dim>(
      none(memory, md::extents<int, 3, md::dyn, 0>(7)));
  static_assert(decltype(empty)::layout_type::static_strides[0] == 0);
  CHECK(empty.empty());
}

TEST_CASE("from_mdspan: layout_stride and rank 0") {
  using strided = md::mdspan<float, md::extents<int, md::dyn, 22>, md::layout_stride>;
  const strided given(memory, {md::extents<int, md::dyn, 22>(4), {32, 1}});
  const auto lse = from_mdspan<axis::token, axis::head>(given);
  static_assert(
      std::is_same_v<decltype(lse.layout()),
                     const layout<dim<axis::token, dyn, dyn>, dim<axis::head, 22, dyn>>&>);
  CHECK(lse.stride<axis::token>() == 32);
  CHECK(lse.stride<axis::head>() == 1);
  CHECK_FALSE(lse.is_contiguous());

  using scalar = md::mdspan<float, md::extents<int>>;
  const auto one = from_mdspan(scalar(memory, md::extents<int>()));
  static_assert(std::is_same_v<std::remove_const_t<decltype(one)>, view<float, layout<>>>);
  CHECK(&one() == memory);
}

using open_strides = md::mdspan<float, md::extents<int, md::dyn, md::dyn>, md::layout_stride>;
using open_rows = md::mdspan<float, md::extents<int, md::dyn, md::dyn>>;

view<float, layout<dim<axis::token>, dim<axis::head>>> open_view(index_t tokens,
                                                                 index_t token_stride,
                                                                 index_t heads,
                                                                 index_t head_stride) {
  return {memory, {dim<axis::token>(tokens, token_stride), dim<axis::head>(heads, head_stride)}};
}

void check_why(const status& why, errc code, const char* axis, index_t got, index_t expected) {
  CHECK(why.code == code);
  CHECK(std::string(why.operand) == "lse");
  CHECK(std::string(why.axis) == axis);
  CHECK(why.got == got);
  CHECK(why.expected == expected);
}

TEST_CASE("to_mdspan: strides go along, or must be the mapping's") {
  const auto strided = to_mdspan<open_strides>(open_view(4, 32, 22, 1), "lse");
  REQUIRE(strided.ok());
  CHECK(strided.value().data_handle() == memory);
  CHECK(strided.value().extent(0) == 4);
  CHECK(strided.value().extent(1) == 22);
  CHECK(strided.value().stride(0) == 32);
  CHECK(strided.value().stride(1) == 1);

  CHECK(to_mdspan<open_rows>(open_view(4, 22, 22, 1), "lse").ok());
  CHECK(to_mdspan<open_rows>(open_view(1, 99, 22, 1), "lse").ok());  // one token: any stride
  CHECK(to_mdspan<open_rows>(open_view(0, 99, 22, 7), "lse").ok());  // none: any strides
  check_why(to_mdspan<open_rows>(open_view(4, 32, 22, 1), "lse").why(), errc::stride_mismatch,
            "token", 32, 22);
  check_why(to_mdspan<open_rows>(open_view(4, 22, 22, 2), "lse").why(), errc::stride_mismatch,
            "head", 2, 1);

  using left = md::mdspan<const float, md::extents<int, md::dyn, md::dyn>, md::layout_left>;
  CHECK(to_mdspan<left>(open_view(4, 1, 22, 4), "lse").ok());
  check_why(to_mdspan<left>(open_view(4, 22, 22, 1), "lse").why(), errc::stride_mismatch, "token",
            22, 1);
}

TEST_CASE("to_mdspan: static extents are compared") {
  using fixed = md::mdspan<float, md::extents<int, 4, 22>, md::layout_stride>;
  static_assert(!std::is_default_constructible_v<fixed>);
  const auto good = to_mdspan<fixed>(open_view(4, 32, 22, 1), "lse");
  REQUIRE(good.ok());
  CHECK(good.value().stride(0) == 32);
  check_why(to_mdspan<fixed>(open_view(4, 32, 21, 1), "lse").why(), errc::shape_mismatch, "head",
            21, 22);
  const view<float, layout<dim<axis::token, 4, 32>, dim<axis::head, 22, 1>>> in_type(memory);
  CHECK(to_mdspan<fixed>(in_type).ok());
}

TEST_CASE("to_mdspan: what the index type or the mapping cannot say") {
  using narrow = md::mdspan<float, md::extents<std::int8_t, md::dyn, md::dyn>, md::layout_stride>;
  using bytes = md::mdspan<float, md::extents<std::uint8_t, md::dyn, md::dyn>, md::layout_stride>;
  using wide = md::mdspan<float, md::extents<std::uint64_t, md::dyn, md::dyn>, md::layout_stride>;
  CHECK(to_mdspan<narrow>(open_view(4, 32, 22, 1), "lse").ok());  // its span is 118
  check_why(to_mdspan<narrow>(open_view(4, 32, 32, 1), "lse").why(), errc::out_of_range, "", 128,
            127);
  check_why(to_mdspan<narrow>(open_view(2, 128, 1, 1), "lse").why(), errc::out_of_range, "token",
            128, 127);
  check_why(to_mdspan<narrow>(open_view(200, 0, 1, 1), "lse").why(), errc::out_of_range, "token",
            200, 127);
  CHECK(to_mdspan<bytes>(open_view(4, 32, 32, 1), "lse").ok());
  CHECK(to_mdspan<wide>(open_view(4, 32, 32, 1), "lse").ok());

  check_why(to_mdspan<open_strides>(open_view(4, 0, 22, 1), "lse").why(), errc::unsupported,
            "token", 0, 1);
  // A stride that nobody uses becomes a legal one.
  CHECK(to_mdspan<open_strides>(open_view(1, 0, 22, 1), "lse").value().stride(0) == 1);
}

TEST_CASE("mdspan and back") {
  const auto there = to_mdspan<open_strides>(open_view(4, 32, 22, 1));
  REQUIRE(there.ok());
  const auto back = from_mdspan<axis::token, axis::head>(there.value());
  CHECK(back.data() == memory);
  CHECK(&back(3, 21) == memory + 3 * 32 + 21);
  const view<float, layout<>> one(memory);
  CHECK(from_mdspan(to_mdspan<md::mdspan<float, md::extents<int>>>(one).value()).data() == memory);
}

struct scaling_accessor {
  using element_type = float;
  using extents_type = md::extents<int>;
  using mapping_type = md::layout_right::mapping<extents_type>;
  using data_handle_type = float*;
  using reference = float;  // reads a product, not an element
  static constexpr std::size_t rank() { return 0; }
  static constexpr bool is_always_strided() { return true; }
  float* data_handle() const { return nullptr; }
  mapping_type mapping() const { return {}; }
};

TEST_CASE("only mdspans of plain elements are taken for one") {
  static_assert(mdspan_like<open_rows>);
  static_assert(!mdspan_like<scaling_accessor>);
  static_assert(!mdspan_like<int>);
  static_assert(!mdspan_like<view<float, layout<>>>);
}

#ifdef __cpp_lib_mdspan
TEST_CASE("std::mdspan") {
  const std::mdspan<float, std::extents<int, std::dynamic_extent, 32>> given(memory, 4);
  const auto lse = from_mdspan<axis::token, axis::head>(given);
  static_assert(decltype(lse)::layout_type::static_strides[0] == 32);
  CHECK(&lse(3, 31) == &given[3, 31]);
  using strided = std::mdspan<float, std::dextents<int, 2>, std::layout_stride>;
  CHECK(to_mdspan<strided>(lse).value().stride(0) == 32);
}
#endif

}  // namespace
