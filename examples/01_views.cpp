// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Views: naming the memory that an engine already has. Nothing here is copied or allocated for
// them.

#include <headwise/view/describe.hpp>
#include <headwise/view/dlpack.hpp>
#include <headwise/view/refine.hpp>
#include <headwise/view/slice.hpp>

#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>
#include <vector>

namespace hw = headwise;
namespace axis = headwise::axis;

// [snippet: printing]
void show(const char* name, const auto& view) {
  char text[200];
  hw::describe_view(view, text, sizeof text);
  std::printf("%-12s %s\n", name, text);
}
// [/snippet]

// [snippet: own_axis]
struct draft {  // an axis of your own: candidates of a speculative step
  static constexpr const char* name = "draft";
};
using draft_lse = hw::view<float, hw::layout<hw::dim<draft, 4, 64>, hw::dim<axis::head, 64, 1>>>;
// [/snippet]
static_assert(sizeof(draft_lse) == sizeof(void*));

// [snippet: own_element]
namespace engine {
struct bfloat {  // sixteen bits, as your engine has them
  std::uint16_t raw;
};
}  // namespace engine

template <>
struct headwise::element_traits<engine::bfloat> {
  static constexpr headwise::element_kind kind = headwise::element_kind::bf16;
};
// [/snippet]

// [snippet: named_arguments]
// Takes any LSE that counts tokens, then heads; whatever its strides are.
template <hw::view_of<axis::token, axis::head> Lse>
float largest(const Lse& lse) {
  float found = -1e30f;
  for (hw::index_t t = 0; t < lse.template extent<axis::token>(); ++t) {
    for (hw::index_t h = 0; h < lse.template extent<axis::head>(); ++h) {
      if (lse(t, h) > found) found = lse(t, h);
    }
  }
  return found;
}
// [/snippet]

// [snippet: what_an_engine_knows]
// What an engine holds when a call begins: a pointer, and sizes and strides as plain numbers.
using engine_view =
    hw::view<engine::bfloat,
             hw::layout<hw::dim<axis::token>, hw::dim<axis::head>, hw::dim<axis::head_dim>>>;
// The shapes that this build is made for.
template <hw::index_t Heads>
using tile = hw::layout<hw::dim<axis::token>, hw::dim<axis::head, Heads, 512>,
                        hw::dim<axis::head_dim, 512, 1>>;
// [/snippet]

// The members of DLPack's DLTensor; a program would include dlpack.h.
struct DLTensor {
  void* data;
  struct {
    std::int32_t device_type, device_id;
  } device;
  std::int32_t ndim;
  struct {
    std::uint8_t code, bits;
    std::uint16_t lanes;
  } dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

int main() {
  std::vector<engine::bfloat> memory(4 * 32 * 512);
  engine::bfloat* const buffer = memory.data();
  std::vector<float> lse_memory(4 * 32);
  float* const lse_buffer = lse_memory.data();

  // [snippet: padded_buffer]
  // Four tokens. The kernel works in tiles of 16 heads, so 22 live heads came back as 32.
  const hw::index_t tokens = 4;
  const auto padded = hw::make_view(
      buffer, hw::packed(hw::extent<axis::token>(tokens), hw::extent<axis::head, 32>(),
                         hw::extent<axis::head_dim, 512>()));
  // [/snippet]
  show("padded", padded);

  // [snippet: slice]
  const auto live = hw::slice<axis::head>(padded, hw::constant<0>, hw::constant<22>);
  static_assert(decltype(live)::layout_type::static_extents[1] == 22);
  static_assert(decltype(live)::layout_type::static_strides[0] == 32 * 512);  // still the buffer's
  // [/snippet]
  show("live", live);

  // [snippet: sizes]
  static_assert(sizeof(live) == sizeof(void*) + 8);  // a pointer, and the number of tokens
  static_assert(std::is_trivially_copyable_v<decltype(live)>);
  // [/snippet]

  // [snippet: contiguity]
  using live_layout = decltype(live)::layout_type;
  static_assert(live_layout::static_contiguity() == hw::contiguity::run_time);
  const bool four_tokens = live.is_contiguous();                              // false
  const auto first_token = hw::slice<axis::token>(live, 0, hw::constant<1>);  // a result
  const bool one_token = first_token.value().is_contiguous();                 // true
  // [/snippet]
  std::printf("contiguous: %d at four tokens, %d at one\n", four_tokens, one_token);

  // [snippet: views_of_views]
  const auto peers = hw::split<axis::head, axis::rank, axis::head>(live, hw::constant<2>);
  const auto outer = hw::permute<axis::rank, axis::token, axis::head, axis::head_dim>(peers);
  const auto mine = hw::fix<axis::rank>(outer, 1);  // heads 11 to 21, in the caller's memory
  // [/snippet]
  show("peers", peers);
  show("outer", outer);
  show("mine", mine);
  const bool same_memory = &mine(0, 0, 0) == &live(0, 11, 0);

  // [snippet: turned_lse]
  // One producer's LSE is [sequence, head, token]: two heads, two tokens of one sequence.
  float given[] = {0, 1, 10, 11};
  const auto as_given =
      hw::make_view(given, hw::packed(hw::extent<axis::sequence>(1), hw::extent<axis::head>(2),
                                      hw::extent<axis::token>(2)));
  const auto lse = hw::permute<axis::token, axis::head>(hw::fix<axis::sequence>(as_given, 0));
  const float last_head = lse(0, 1);  // 10, the other head of the first token
  // [/snippet]
  std::printf("turned LSE: %g, largest %g\n", static_cast<double>(last_head),
              static_cast<double>(largest(lse)));

  // [snippet: refine]
  const engine_view from_engine(buffer,
                                {hw::dim<axis::token>(4, 32 * 512), hw::dim<axis::head>(22, 512),
                                 hw::dim<axis::head_dim>(512, 1)});
  const auto refined = hw::refine<tile<22>>(from_engine, "partial_output");
  const auto refused = hw::refine<tile<16>>(from_engine, "partial_output");
  char why[200];
  hw::format_status(refused.why(), why, sizeof why);
  // [/snippet]
  show("from engine", from_engine);
  if (refined.ok()) show("refined", refined.value());
  std::printf("refused      %s\n", why);

  // [snippet: dispatch]
  // Compiled three times: for 16 heads, for 22, and for whatever else comes.
  const hw::index_t heads_in_type =
      hw::dispatch(from_engine, hw::layouts<tile<16>, tile<22>>{}, [](const auto& view) {
        return std::remove_cvref_t<decltype(view)>::layout_type::static_extents[1];
      });
  // [/snippet]
  std::printf("dispatched to the code for %d heads\n", static_cast<int>(heads_in_type));

  // [snippet: validate]
  const hw::status sound = hw::validate("partial_output", from_engine);
  // [/snippet]

  // [snippet: device_space]
  // A pointer to GPU memory: views of it are made, sliced and passed on, never read on the host.
  const auto on_device = hw::make_view<hw::memory_space::device>(buffer, padded.layout());
  const auto half = hw::slice<axis::head>(on_device, hw::constant<16>, hw::constant<16>);
  // [/snippet]
  show("half", half);

  // [snippet: dlpack]
  std::int64_t shape[3];
  std::int64_t strides[3];
  const DLTensor tensor = hw::to_dlpack<DLTensor>(live, shape, strides);
  const auto back = hw::from_dlpack<engine::bfloat, hw::memory_space::host, axis::token, axis::head,
                                    axis::head_dim>(tensor, "partial_output");
  // [/snippet]
  if (back.ok()) show("from DLPack", back.value());

  // [snippet: by_hand]
  // Any strides, each in the type or not: an LSE whose rows are 32 apart.
  const hw::view rows(lse_buffer, hw::layout(hw::dim<axis::token, hw::dynamic_extent, 32>(tokens),
                                             hw::dim<axis::head, 22, 1>()));
  // [/snippet]
  show("rows", rows);

  const bool holds = same_memory && one_token && !four_tokens && last_head == 10.0f &&
                     refined.ok() && !refused.ok() && heads_in_type == 22 && sound.ok() &&
                     back.ok() && rows.span_size() == 3 * 32 + 22;
  std::printf("%s\n", holds ? "all as it should be" : "something is wrong");
  return holds ? 0 : 1;
}
