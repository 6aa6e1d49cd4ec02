// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// What pack_instructions.py counts the instructions of: packing 22 of 32 heads, by Headwise and by
// hand. Each function is a symbol of its own; main() runs each once and compares what they wrote.

#include <headwise/reference/materialize.hpp>
#include <headwise/view/slice.hpp>

#include <cstdio>
#include <cstring>
#include <vector>

using namespace headwise;

#define MEASURED extern "C" [[gnu::noinline]]

namespace {

constexpr index_t batch = 64, live = 22, padded = 32;

template <class T, index_t Tokens, index_t Heads, index_t HeadDim>
using packed_view = view<T, packed_layout_t<extent<axis::token, Tokens>, extent<axis::head, Heads>,
                                            extent<axis::head_dim, HeadDim>>>;
template <class T, index_t Tokens, index_t HeadDim>
using sliced_view =
    view<T, layout<dim<axis::token, Tokens, padded * HeadDim>, dim<axis::head, live, HeadDim>,
                   dim<axis::head_dim, HeadDim, 1>>>;

/// The loop that one would write: a memcpy per contiguous run.
template <class T, index_t HeadDim>
void pack_by_hand(const T* from, T* to, index_t tokens) {
  for (index_t token = 0; token < tokens; ++token) {
    std::memcpy(to + token * live * HeadDim, from + token * padded * HeadDim,
                live * HeadDim * sizeof(T));
  }
}

template <class T, index_t HeadDim>
void pack_static(const T* from, T* to) {
  const auto all = packed_view<const T, batch, padded, HeadDim>(from);
  const auto heads = slice<axis::head>(all, constant<0>, constant<live>);
  const status done = reference::materialize(heads, packed_view<T, batch, live, HeadDim>(to));
  if (!done.ok()) std::puts("refused");
}

template <class T, index_t HeadDim>
void pack_batch(const T* from, T* to, index_t tokens) {
  const sliced_view<const T, dynamic_extent, HeadDim> heads(
      from, {dim<axis::token, dynamic_extent, padded * HeadDim>(tokens), {}, {}});
  const auto packed_heads = view(to, packed(extent<axis::token>(tokens), extent<axis::head, live>(),
                                            extent<axis::head_dim, HeadDim>()));
  if (!reference::materialize(heads, packed_heads).ok()) std::puts("refused");
}

using any_layout = layout<dim<axis::token>, dim<axis::head>, dim<axis::head_dim>>;
template <class T>
void pack_dynamic(const T* from, T* to, index_t tokens, index_t heads, index_t pitch,
                  index_t head_dim) {
  const view<const T, any_layout> source(
      from, {dim<axis::token>(tokens, pitch * head_dim), dim<axis::head>(heads, head_dim),
             dim<axis::head_dim>(head_dim, 1)});
  const view<T, any_layout> target(
      to, {dim<axis::token>(tokens, heads * head_dim), dim<axis::head>(heads, head_dim),
           dim<axis::head_dim>(head_dim, 1)});
  if (!reference::materialize(source, target).ok()) std::puts("refused");
}

}  // namespace

#define PACKS(NAME, T, HEAD_DIM)                                                            \
  MEASURED void static_##NAME(const T* from, T* to) { pack_static<T, HEAD_DIM>(from, to); } \
  MEASURED void batch_##NAME(const T* from, T* to, index_t tokens) {                        \
    pack_batch<T, HEAD_DIM>(from, to, tokens);                                              \
  }                                                                                         \
  MEASURED void by_hand_##NAME(const T* from, T* to, index_t tokens) {                      \
    pack_by_hand<T, HEAD_DIM>(from, to, tokens);                                            \
  }
PACKS(bf16_512, bf16, 512)
PACKS(bf16_64, bf16, 64)
PACKS(fp32_512, float, 512)
PACKS(fp32_64, float, 64)

MEASURED void dynamic_bf16_512(const bf16* from, bf16* to, index_t tokens) {
  pack_dynamic(from, to, tokens, live, padded, 512);
}
MEASURED void contiguous_static(const bf16* from, bf16* to) {
  const status done = reference::materialize(packed_view<const bf16, batch, live, 512>(from),
                                             packed_view<bf16, batch, live, 512>(to));
  if (!done.ok()) std::puts("refused");
}
MEASURED void contiguous_batch(const bf16* from, bf16* to, index_t tokens) {
  using whole =
      packed_layout_t<extent<axis::token>, extent<axis::head, live>, extent<axis::head_dim, 512>>;
  const whole sized = packed(extent<axis::token>(tokens), extent<axis::head, live>(),
                             extent<axis::head_dim, 512>());
  const status done =
      reference::materialize(view<const bf16, whole>(from, sized), view<bf16, whole>(to, sized));
  if (!done.ok()) std::puts("refused");
}
MEASURED void contiguous_dynamic(const bf16* from, bf16* to, index_t tokens) {
  pack_dynamic(from, to, tokens, live, live, 512);
}

namespace {

int wrong = 0;

template <class T>
void check(const char* name, const std::vector<T>& from, std::vector<T>& to, index_t pitch,
           index_t head_dim) {
  for (index_t token = 0; token < batch; ++token) {
    const auto* row = from.data() + token * pitch * head_dim;
    const auto bytes = static_cast<std::size_t>(live * head_dim) * sizeof(T);
    if (std::memcmp(to.data() + token * live * head_dim, row, bytes) == 0) continue;
    std::printf("%s: token %ld is wrong\n", name, static_cast<long>(token));
    ++wrong;
    return;
  }
  std::memset(static_cast<void*>(to.data()), 0, to.size() * sizeof(T));
}

template <class T>
std::vector<T> numbers(std::size_t count) {
  std::vector<T> all(count);
  auto* const bytes = reinterpret_cast<unsigned char*>(all.data());
  for (std::size_t i = 0; i < count * sizeof(T); ++i) {
    bytes[i] = static_cast<unsigned char>(i * 31 / 7 + 1);
  }
  return all;
}

template <class T, class... Packs>
void run(index_t pitch, index_t head_dim, const Packs&... packs) {
  const std::vector<T> from = numbers<T>(static_cast<std::size_t>(batch * pitch * head_dim));
  std::vector<T> to(static_cast<std::size_t>(batch * live * head_dim));
  const auto one = [&](const auto& named) {
    named.second(from.data(), to.data());
    check(named.first, from, to, pitch, head_dim);
  };
  (one(packs), ...);
}

template <class F>
std::pair<const char*, F> named(const char* name, F f) {
  return {name, f};
}
/// With the batch as the third argument.
template <class T>
auto sized(const char* name, void (*pack)(const T*, T*, index_t)) {
  return named(name, [pack](const T* from, T* to) { pack(from, to, batch); });
}

}  // namespace

#define RUN(NAME, T, HEAD_DIM)                                    \
  run<T>(padded, HEAD_DIM, named("static_" #NAME, static_##NAME), \
         sized("batch_" #NAME, batch_##NAME), sized("by_hand_" #NAME, by_hand_##NAME))

int main() {
  RUN(bf16_512, bf16, 512);
  RUN(bf16_64, bf16, 64);
  RUN(fp32_512, float, 512);
  RUN(fp32_64, float, 64);
  run<bf16>(padded, 512, sized("dynamic_bf16_512", dynamic_bf16_512));
  run<bf16>(live, 512, named("contiguous_static", contiguous_static),
            sized("contiguous_batch", contiguous_batch),
            sized("contiguous_dynamic", contiguous_dynamic));
  return wrong == 0 ? 0 : 1;
}
