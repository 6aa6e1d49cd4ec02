// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// Plans: decisions as pure functions. What the types say is asserted, what the values say is
// printed.

#include <headwise/headwise.hpp>

#include <cstdio>

using namespace headwise;

// [snippet: head_split]
constexpr head_split split_heads = static_head_split<64, 6>;
static_assert(split_heads.per_rank == 11 && split_heads.padded() == 66);
static_assert(split_heads.real(5) == 9 && split_heads.dummies(5) == 2);
// [/snippet]

// [snippet: width_list]
// The head counts that a kernel was built for; each kernel, element type and mode has its own list.
using decode_bf16 = width_list<16, 32, 64, 128>;
using decode_fp8 = width_list<16, 32, 128>;
static_assert(decode_bf16::static_next<64>() == 64);
static_assert(decode_fp8::static_next<64>() == 128);
// [/snippet]

// [snippet: kv_shard]
constexpr kv_shard shard_of_1 = {static_interleaving<4>, 1};
static_assert(shard_of_1.owns(5) && shard_of_1.local(5) == 1 && shard_of_1.global(1) == 5);
static_assert(shard_of_1.local_length(10) == 3);
// [/snippet]

// [snippet: copy_plan]
// 22 of the 32 heads in a kernel's buffer, any number of tokens; and the same without gaps.
using heads_22_of_32 =
    view<const bf16, layout<dim<axis::token, dynamic_extent, 32 * 512>, dim<axis::head, 22, 512>,
                            dim<axis::head_dim, 512, 1>>>;
using packed_22 =
    view<bf16,
         packed_layout_t<extent<axis::token>, extent<axis::head, 22>, extent<axis::head_dim, 512>>>;

// One run of 22 * 512 elements per token, in vectors of 16 bytes. Were it `strided`, this would be
// the line that says so.
static_assert(copy_plan<heads_22_of_32, packed_22>::kind == copy_kind::runs);
static_assert(copy_plan<heads_22_of_32, packed_22>::steps.run == 22 * 512);
static_assert(copy_plan<heads_22_of_32, packed_22>::vector_bytes == 16);
static_assert(copy_plan<packed_22, packed_22>::kind == copy_kind::contiguous);
// [/snippet]

namespace {

bf16 output_memory[4 * 32 * 512];
float lse_memory[4 * 32];

// [snippet: route]
/// Which way the heads of `tokens` tokens go in a group of 2, asked before any is sent.
void print_route(index_t tokens) {
  const auto output = slice<axis::head>(
      view(output_memory, packed(extent<axis::token>(tokens), extent<axis::head, 32>(),
                                 extent<axis::head_dim, 512>())),
      constant<0>, constant<22>);
  const auto lse = slice<axis::head>(
      view(lse_memory, packed(extent<axis::token>(tokens), extent<axis::head, 32>())), constant<0>,
      constant<22>);
  const reduce_scatter_route way =
      route_reduce_scatter(output, lse, 2, message_format{}, false, route_preference::automatic);

  char text[160];
  describe_view(output, text, sizeof text);
  std::printf("%s\n  output: %s, %s\n  lse:    %s, %s\n", text, to_string(way.payload.which),
              to_string(way.payload.reason), to_string(way.lse.which), to_string(way.lse.reason));
}
// [/snippet]

}  // namespace

int main() {
  std::printf("64 heads on 6 ranks: %d each, %d with the dummies\n",
              static_cast<int>(split_heads.per_rank), static_cast<int>(split_heads.padded()));
  for (index_t rank = 0; rank < split_heads.ranks; ++rank) {
    std::printf("  rank %d: heads %2d to %2d, %d of them dummies\n", static_cast<int>(rank),
                static_cast<int>(split_heads.first(rank)),
                static_cast<int>(split_heads.first(rank) + split_heads.per_rank - 1),
                static_cast<int>(split_heads.dummies(rank)));
  }

  std::printf("\nTokens of a sequence that each of 4 ranks holds:\n");
  for (const index_t length : {0, 1, 10, 4096}) {
    std::printf("  %4d:", static_cast<int>(length));
    for (const index_t local : static_interleaving<4>.local_length(length)) {
      std::printf(" %4d", static_cast<int>(local));
    }
    std::printf("\n");
  }

  std::printf("\nThe same slice, four tokens and one:\n");
  print_route(4);
  print_route(1);
}
