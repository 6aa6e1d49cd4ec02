// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// What making a view contiguous costs: kernel::materialize() of the views that engines have, beside
// a plain copy of the same bytes.

#include <headwise/kernel/materialize.cuh>

#include "harness.cuh"
#include "operands.cuh"

#include <string>

namespace {

using namespace headwise;
using bench::check;
using bench::on_device;
using bench::width;

constexpr index_t heads = 128;
constexpr index_t padded_heads = 144;

void plain_copies(bench::harness& bench, index_t mebibytes) {
  const std::string shape = "copy " + std::to_string(mebibytes) + " MiB";
  if (!bench.wanted(shape)) return;
  const index_t elements = (mebibytes << 20) / index_t{sizeof(bf16)};
  const double bytes = 2.0 * static_cast<double>(mebibytes << 20);
  const index_t sets = bench.sets_for(bytes);
  const bench::buffers<bf16> from(sets, elements);
  const bench::buffers<bf16> to(sets, elements);
  bench.compare(
      shape,
      {bench::plain_copy("memcpy", to, from, mebibytes << 20),
       {"contiguous", bytes,
        [&](cudaStream_t stream, index_t set) {
          const auto row = packed(extent<axis::head_dim>(elements));
          check(kernel::materialize(on_device(from[set], row), on_device(to[set], row), stream));
        }}},
      sets);
}

void partial_outputs(bench::harness& bench, index_t tokens) {
  const std::string shape = "[" + std::to_string(tokens) + " 128 512] bf16";
  if (!bench.wanted(shape)) return;
  const index_t elements = tokens * heads * width;
  const double bytes = 2.0 * static_cast<double>(elements) * sizeof(bf16);
  const index_t sets = bench.sets_for(bytes);
  const bench::buffers<bf16> from(sets, tokens * padded_heads * width);
  const bench::buffers<bf16> to(sets, elements);

  const extent<axis::token> batch(tokens);
  const extent<axis::head, heads> rows;
  const extent<axis::head_dim, width> columns;
  const auto into = packed(batch, rows, columns);
  const auto run = [&](auto source_of) {
    return [&, source_of](cudaStream_t stream, index_t set) {
      check(kernel::materialize(source_of(from[set]), on_device(to[set], into), stream));
    };
  };
  bench.compare(shape,
                {bench::plain_copy("memcpy", to, from, elements * index_t{sizeof(bf16)}),
                 bench::empty_launch(),
                 {"contiguous", bytes, run([&](bf16* data) { return on_device(data, into); })},
                 {"128 of 144 heads", bytes, run([&](bf16* data) {
                    return bench::partial_output<heads, padded_heads>(data, tokens);
                  })},
                 {"heads outermost", bytes, run([&](bf16* data) {
                    return permute<axis::token, axis::head, axis::head_dim>(
                        on_device(data, packed(rows, batch, columns)));
                  })},
                 {"columns before heads", bytes, run([&](bf16* data) {
                    return permute<axis::token, axis::head, axis::head_dim>(
                        on_device(data, packed(batch, columns, rows)));
                  })}},
                sets);
}

}  // namespace

int main(int argc, char** argv) {
  bench::harness bench(argc, argv, "materialize");
  for (const index_t mebibytes : {64, 128, 256, 512, 1024}) plain_copies(bench, mebibytes);
  for (const index_t tokens : {1, 16, 256}) partial_outputs(bench, tokens);
  return bench.finish();
}
