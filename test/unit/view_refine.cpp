// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/view/describe.hpp>
#include <headwise/view/refine.hpp>

#include <doctest/doctest.h>

#include <string>

using namespace headwise;

namespace {

using open_layout = layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>;
using live_layout = layout<dim<axis::token, dynamic_extent, 16384>, dim<axis::head, 22, 512>,
                           dim<axis::head_dim, 512, 1>>;

bf16 memory[2 * 32 * 512];

view<bf16, open_layout> engine_view(index_t tokens, index_t token_stride, index_t heads,
                                    index_t head_stride) {
  return {memory, open_layout(dim<axis::token>(tokens, token_stride),
                              dim<axis::head>(heads, head_stride), dim<axis::head_dim>(512, 1))};
}

TEST_CASE("refine keeps memory and values and moves them into the type") {
  const auto refined = refine<live_layout>(engine_view(2, 16384, 22, 512));
  REQUIRE(refined.ok());
  const auto live = refined.value();
  static_assert(sizeof(live) == 16);
  CHECK(live.data() == memory);
  CHECK(live.extent<axis::token>() == 2);
  CHECK(live.extent<axis::head>() == 22);
  CHECK(live.stride<axis::token>() == 16384);
  CHECK(&live(1, 21, 511) == memory + 16384 + 21 * 512 + 511);
  // A layout that says no more always fits.
  CHECK(refine<open_layout>(live).ok());
  CHECK(refine<open_layout>(live).value().stride<axis::token>() == 16384);
  CHECK(refine<live_layout>(live).ok());
}

void check_why(const status& why, errc code, const char* axis, index_t got, index_t expected) {
  CHECK(why.code == code);
  CHECK(std::string(why.operand) == "partial_output");
  CHECK(std::string(why.axis) == axis);
  CHECK(why.got == got);
  CHECK(why.expected == expected);
}

TEST_CASE("refine names the axis that differs, and both values") {
  const auto why = [](view<bf16, open_layout> given) {
    return refine<live_layout>(given, "partial_output").why();
  };
  check_why(why(engine_view(2, 16384, 21, 512)), errc::shape_mismatch, "head", 21, 22);
  check_why(why(engine_view(2, 22 * 512, 22, 512)), errc::stride_mismatch, "token", 11264, 16384);
  check_why(why(engine_view(2, 16384, 22, 576)), errc::stride_mismatch, "head", 576, 512);
  // The first axis that differs is named.
  check_why(why(engine_view(2, 5, 7, 9)), errc::stride_mismatch, "token", 5, 16384);

  char text[160];
  format_status(why(engine_view(2, 16384, 21, 512)), text, sizeof(text));
  CHECK(std::string(text) ==
        "shape_mismatch: partial_output, axis head: got 21, expected 22: the extent is not the one "
        "of the static layout");
  CHECK(std::string(why(engine_view(2, 5, 22, 512)).where.file).find("refine.hpp") !=
        std::string::npos);
}

TEST_CASE("refine ignores strides that nobody uses") {
  // One token: its stride means nothing.
  CHECK(refine<live_layout>(engine_view(1, 7, 22, 512)).ok());
  CHECK(refine<live_layout>(engine_view(1, 7, 22, 512)).value().stride<axis::token>() == 16384);
  CHECK_FALSE(refine<live_layout>(engine_view(2, 7, 22, 512)).ok());
  // No token: no stride means anything.
  CHECK(refine<live_layout>(engine_view(0, 7, 22, 99)).ok());
  // Extents count, used or not.
  CHECK(refine<live_layout>(engine_view(0, 7, 21, 512)).why().got == 21);
}

template <class View>
index_t heads_in_type(const View&) {
  return View::layout_type::static_extents[1];
}

TEST_CASE("dispatch takes the first layout that fits, and the dynamic one if none does") {
  using eleven = layout<dim<axis::token>, dim<axis::head, 11, 512>, dim<axis::head_dim, 512, 1>>;
  using twenty_two =
      layout<dim<axis::token>, dim<axis::head, 22, 512>, dim<axis::head_dim, 512, 1>>;
  using any_heads = layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim, 512, 1>>;
  const auto picked = [](const auto& given) {
    return dispatch(given, layouts<eleven, twenty_two>{},
                    [](const auto& refined) { return heads_in_type(refined); });
  };
  CHECK(picked(engine_view(2, 16384, 11, 512)) == 11);
  CHECK(picked(engine_view(2, 16384, 22, 512)) == 22);
  CHECK(picked(engine_view(2, 16384, 23, 512)) == dynamic_extent);
  CHECK(picked(engine_view(2, 16384, 22, 576)) == dynamic_extent);

  const auto ordered = [](const auto& given) {
    return dispatch(given, layouts<any_heads, twenty_two>{},
                    [](const auto& refined) { return heads_in_type(refined); });
  };
  CHECK(ordered(engine_view(2, 16384, 22, 512)) == dynamic_extent);  // the first one fits

  // The view that arrives is the one that was given, whichever way it came.
  for (const index_t heads : {11, 22, 23}) {
    const bool same = dispatch(
        engine_view(2, 16384, heads, 512), layouts<eleven, twenty_two>{}, [&](const auto& refined) {
          return refined.data() == memory && refined.template extent<axis::token>() == 2 &&
                 refined.template stride<axis::token>() == 16384 &&
                 refined.template extent<axis::head>() == heads;
        });
    CHECK(same);
  }
  CHECK(dispatch(engine_view(1, 1, 3, 4), layouts<>{},
                 [](const auto& given) { return given.template extent<axis::head>(); }) == 3);
}

TEST_CASE("a result gives its value, or why there is none") {
  const auto good = refine<live_layout>(engine_view(2, 16384, 22, 512));
  CHECK(good.ok());
  CHECK(good.why().ok());
  const result<live_layout> bad = failure(errc::unsupported, "x", "no");
  CHECK_FALSE(bad.ok());
  CHECK(bad.why().code == errc::unsupported);

  // A type without a default constructor; a value taken out of a temporary.
  struct named {
    explicit named(int given) : number(given) {}
    int number;
  };
  const auto make = [](int number) -> result<named> {
    if (number < 0) return failure(errc::invalid_argument, "number", "negative", number);
    return named(number);
  };
  const auto& kept = make(7).value();
  CHECK(kept.number == 7);
  CHECK(make(-7).why().got == -7);
  const result<named> copy = make(3);
  CHECK(copy.value().number == 3);
}

std::string described(const auto& what) {
  char text[160];
  describe_view(what, text, sizeof(text));
  return text;
}

TEST_CASE("describe_view tells what is in the type and what is not") {
  CHECK(described(refine<live_layout>(engine_view(2, 16384, 22, 512)).value()) ==
        "bf16 host [token=?2:16384, head=22:512, head_dim=512:1]");
  CHECK(described(engine_view(2, 16384, 22, 512)) ==
        "bf16 host [token=?2:?16384, head=?22:?512, head_dim=?512:?1]");
  CHECK(described(view<const float, layout<>, memory_space::device>()) == "const f32 device []");
  CHECK(described(view<char, layout<dim<axis::page, 3, 656>>, memory_space::pinned>()) ==
        "1 bytes pinned [page=3:656]");
  char small_buffer[10];
  CHECK(describe_view(engine_view(2, 16384, 22, 512), small_buffer, sizeof(small_buffer)) == 60);
  CHECK(std::string(small_buffer) == "bf16 host");
  CHECK(describe_view(engine_view(2, 16384, 22, 512), nullptr, 0) == 60);
}

}  // namespace
