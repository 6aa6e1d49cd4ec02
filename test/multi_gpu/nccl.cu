// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// The collectives over NCCL. Ranks are processes; where there are fewer GPUs than ranks, several
// share one, and NCCL reaches them as if they were on several hosts.

#include <headwise/collective/agree.hpp>
#include <headwise/collective/all_gather_heads.hpp>
#include <headwise/collective/all_to_all.hpp>
#include <headwise/collective/describe.hpp>
#include <headwise/collective/lse_reduce_scatter.hpp>
#include <headwise/executor/cuda_executor.cuh>
#include <headwise/transport/nccl.cuh>

#include <support/device.hpp>
#include <support/packed.hpp>
#include <support/processes.hpp>
#include <support/scatter.hpp>

#include <doctest/doctest.h>

#include <functional>

using namespace headwise;
using namespace support;

namespace {

/// Device memory of one rank, 0xff until somebody writes it.
template <class T>
struct memory {
  explicit memory(index_t elements) : count(static_cast<std::size_t>(elements)) {
    if (cudaMalloc(reinterpret_cast<void**>(&data), count * sizeof(T) + 16) != cudaSuccess)
      _exit(2);
    poison();
  }
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;
  ~memory() { cudaFree(data); }
  void poison() const {
    if (cudaMemset(data, 0xff, count * sizeof(T)) != cudaSuccess) _exit(2);
    if (cudaDeviceSynchronize() != cudaSuccess) _exit(2);
  }
  void upload(const T* from) const {
    if (cudaMemcpy(data, from, count * sizeof(T), cudaMemcpyHostToDevice) != cudaSuccess) _exit(2);
    if (cudaDeviceSynchronize() != cudaSuccess) _exit(2);
  }
  void download(T* to) const {
    if (cudaMemcpy(to, data, count * sizeof(T), cudaMemcpyDeviceToHost) != cudaSuccess) _exit(2);
  }
  std::span<std::byte> bytes() const {
    return {reinterpret_cast<std::byte*>(data), count * sizeof(T)};
  }

  T* data = nullptr;
  std::size_t count;
};

std::string told(const char* what, const status& came_to) {
  return std::string(what) + ": " + sentence(came_to);
}

/// What rank `rank` must get, by the host reference from the partials of all.
template <class T, log_base Base>
void expect(const scatter_problem<T, Base>& problem, int rank, const std::vector<int>& valid,
            rows_operand<T>& output, plane_operand<float>& merged) {
  const scatter_shape& shape = problem.shape;
  const index_t rows = shape.tokens * shape.heads;
  std::vector<T> outputs(static_cast<std::size_t>(shape.ranks * rows * shape.head_dim));
  std::vector<float> lses(static_cast<std::size_t>(shape.ranks * rows));
  const view from =
      packed_outputs(outputs.data(), shape.ranks, shape.tokens, shape.heads, shape.head_dim);
  const view from_lse = packed_lses(lses.data(), shape.ranks, shape.tokens, shape.heads);
  for_each_element(from_lse, [&](const auto& at, index_t offset) {
    const bool empty =
        !valid.empty() && valid[static_cast<std::size_t>((at[0] * shape.tokens) + at[1])] == 0;
    lses[static_cast<std::size_t>(offset)] =
        empty ? -std::numeric_limits<float>::infinity()
              : problem.lse(at[0], at[1], rank * shape.heads + at[2]);
  });
  for_each_element(from, [&](const auto& at, index_t offset) {
    outputs[static_cast<std::size_t>(offset)] =
        problem.output(at[0], at[1], rank * shape.heads + at[2], at[3]);
  });
  const status done =
      reference::lse_combine<Base>(gathered_shards{from, from_lse}, output.view(), merged.view());
  if (!done.ok()) _exit(3);
}

struct scatter_case {
  index_t tokens;
  index_t heads;
  index_t head_dim;
  style output_style;
  style lse_style;
  message_format format{};
  nccl_method method = nccl_method::automatic;
  bool masked = false;
  index_t straight_from = 0;
};

/// Eagerly, then captured and replayed, with new data each time and every word compared.
template <class T, log_base Base, class Lse, bool HeadMajor>
std::string reduce_scatter(const rank_context& me, const scatter_case& what, std::uint64_t seed) {
  const scatter_shape shape{me.ranks, what.tokens, what.heads, what.head_dim};
  memory<std::byte> scratch(nccl_scratch_bytes(me.ranks));
  auto made = nccl::make(me.communicator, me.stream, scratch.bytes(),
                         {what.method, me.ranks, what.straight_from});
  if (!made.ok()) return told("make", made.why());
  nccl group = made.value();
  const cuda_executor executor{me.stream};

  scatter_operands<T, Lse, HeadMajor> host(shape, what.output_style, what.lse_style);
  const memory<T> partial(host.partial_output.layout.span_size());
  const memory<Lse> lses(host.partial_lse.layout.span_size());
  const memory<T> output(host.output.layout.span_size());
  const memory<float> merged(host.merged.layout.span_size());
  const memory<int> valid(shape.tokens);
  const memory<std::byte> workspace(
      lse_reduce_scatter_bytes<T>(shape.message(), what.format).value());
  const reduce_scatter_options options{what.format, route_preference::automatic};
  const auto call = [&]() -> status {
    const auto valid_view =
        make_view<memory_space::device>(valid.data, packed(extent<axis::token>(shape.tokens)));
    const auto run = [&](const auto& keys) {
      return lse_reduce_scatter<Base>(
          executor, group, on_device(partial.data, host.partial_output.view()),
          on_device(lses.data, host.partial_lse.view()), on_device(output.data, host.output.view()),
          on_device(merged.data, host.merged.view()), workspace.bytes(), options, keys);
    };
    return what.masked ? run(valid_view) : run(none);
  };

  cudaGraphExec_t replay = nullptr;
  for (int round = 0; round < 4; ++round) {
    scatter_problem<T, Base> problem{shape, seed + static_cast<std::uint64_t>(round), true};
    scatter_operands<T, Lse, HeadMajor> mine(shape, what.output_style, what.lse_style);
    problem.put(me.rank, mine.partial_output, mine.partial_lse);
    partial.upload(mine.partial_output.memory.data());
    lses.upload(mine.partial_lse.memory.data());
    std::vector<int> counts;
    for (index_t r = 0; r < me.ranks; ++r) {
      for (index_t t = 0; t < shape.tokens; ++t) {
        counts.push_back(static_cast<int>(mixed(problem.seed, {r, t, 7}) % 3));
      }
    }
    valid.upload(counts.data() + me.rank * shape.tokens);
    output.poison();
    merged.poison();
    if (round == 1) {
      cudaGraph_t captured = nullptr;
      RANK_CUDA(cudaStreamBeginCapture(me.stream, cudaStreamCaptureModeGlobal));
      const status came_to = call();
      RANK_CUDA(cudaStreamEndCapture(me.stream, &captured));
      if (!came_to.ok()) return told("captured", came_to);
      RANK_CUDA(cudaGraphInstantiate(&replay, captured, 0));
      RANK_CUDA(cudaGraphDestroy(captured));
    }
    if (round > 0) {
      RANK_CUDA(cudaGraphLaunch(replay, me.stream));
    } else {
      const status came_to = call();
      if (!came_to.ok()) return told("eager", came_to);
    }
    RANK_CUDA(cudaStreamSynchronize(me.stream));
    scatter_operands<T, Lse, HeadMajor> got(shape, what.output_style, what.lse_style);
    output.download(got.output.memory.data());
    merged.download(got.merged.memory.data());
    scatter_operands<T, Lse, HeadMajor> wanted(shape, what.output_style, what.lse_style);
    expect(problem, me.rank, what.masked ? counts : std::vector<int>{}, wanted.output,
           wanted.merged);
    if (bits_of(got.output) != bits_of(wanted.output)) {
      return "round " + std::to_string(round) + ": output has other bits than the host's";
    }
    if (bits_of(got.merged) != bits_of(wanted.merged)) {
      return "round " + std::to_string(round) + ": merged LSE has other bits than the host's";
    }
  }
  RANK_CUDA(cudaGraphExecDestroy(replay));
  return "";
}

std::string every_way(const rank_context& me) {
  constexpr message_format plane{};
  constexpr message_format inline_lse{lse_placement::inline_bits, peer_placement::outermost};
  constexpr message_format inside{lse_placement::plane, peer_placement::inside_heads};
  std::uint64_t seed = 100;
  const auto bf = [&](const scatter_case& what) {
    return reduce_scatter<bf16, log_base::e, float, false>(me, what, seed += 10);
  };
  const auto head_major = [&](const scatter_case& what) {
    return reduce_scatter<bf16, log_base::two, float, true>(me, what, seed += 10);
  };
  const auto fp = [&](const scatter_case& what) {
    return reduce_scatter<float, log_base::two, bf16, false>(me, what, seed += 10);
  };
  int running = 0;
  ncclGetVersion(&running);
  const nccl_method all_to_all = NCCL_VERSION_CODE >= 22800 && running >= 22800
                                     ? nccl_method::all_to_all
                                     : nccl_method::automatic;
  const std::function<std::string()> calls[] = {
      [&] {
        return bf({5, 11, 512, style::tiled, style::tiled});
      },
      [&] {
        return bf({5, 11, 512, style::tiled, style::tiled, plane, all_to_all});
      },
      // One token: straight from the memory of the caller, or packed.
      [&] {
        return bf({1, 11, 512, style::tiled, style::tiled});
      },
      [&] {
        return bf({1, 11, 512, style::tiled, style::tiled, plane, {}, false, 1 << 30});
      },
      [&] {
        return bf({1, 11, 512, style::tiled, style::tiled, plane, all_to_all, true, 1 << 30});
      },
      [&] {
        return bf({3, 2, 66, style::scattered, style::wide_rows, plane, {}, true});
      },
      [&] {
        return bf({1, 2, 64, style::packed, style::packed, plane, {}, true});
      },
      [&] {
        return bf({4, 3, 80, style::packed, style::packed, inline_lse});
      },
      [&] {
        return bf({2, 3, 32, style::tiled, style::tiled, inside});
      },
      [&] {
        return bf({0, 3, 32, style::packed, style::packed});
      },
      // Head-major: straight where each part is one run.
      [&] {
        return head_major({4, 3, 128, style::head_major, style::head_major});
      },
      [&] {
        return head_major({4, 3, 128, style::head_pitched, style::head_pitched});
      },
      [&] {
        return fp({7, 2, 33, style::wide_rows, style::tiled});
      },
  };
  for (const auto& call : calls) {
    const std::string wrong = call();
    if (!wrong.empty()) return wrong + " (seed " + std::to_string(seed) + ")";
  }
  return "";
}
const register_rank_work scatter_work("every_way", every_way);

std::string gather(const rank_context& me) {
  auto made = nccl::make(me.communicator, me.stream);
  if (!made.ok()) return told("make", made.why());
  nccl group = made.value();
  // 11 heads of each rank into the leading ones of a wider buffer; one token goes straight.
  for (const index_t tokens : {1, 5}) {
    constexpr index_t heads = 11;
    constexpr index_t head_dim = 96;
    const index_t wide = heads * me.ranks + 5;
    const auto value = [&](index_t rank, index_t token, index_t head, index_t d) {
      return static_cast<std::uint16_t>(mixed(5, {rank, token, head, d, tokens}) & 0x7fff);
    };
    std::vector<bf16> mine;
    for (index_t t = 0; t < tokens; ++t) {
      for (index_t h = 0; h < heads; ++h) {
        for (index_t d = 0; d < head_dim; ++d) mine.push_back({value(me.rank, t, h, d)});
      }
    }
    const memory<bf16> local(static_cast<index_t>(mine.size()));
    local.upload(mine.data());
    const memory<bf16> all(tokens * wide * head_dim);
    const memory<std::byte> workspace(
        all_gather_heads_bytes<bf16>({me.ranks, tokens, heads, head_dim}).value());
    const auto from = make_view<memory_space::device>(
        local.data, packed(extent<axis::token>(tokens), extent<axis::head, heads>(),
                           extent<axis::head_dim, head_dim>()));
    const auto to = slice<axis::head>(
        make_view<memory_space::device>(
            all.data, packed(extent<axis::token>(tokens), extent<axis::head>(wide),
                             extent<axis::head_dim, head_dim>())),
        0, heads * me.ranks);
    const status came_to =
        all_gather_heads(cuda_executor{me.stream}, group, from, to.value(), workspace.bytes());
    if (!came_to.ok()) return told("gather", came_to);
    RANK_CUDA(cudaStreamSynchronize(me.stream));
    std::vector<bf16> got(all.count);
    all.download(got.data());
    for (index_t i = 0; i < static_cast<index_t>(got.size()); ++i) {
      const index_t t = i / (wide * head_dim);
      const index_t h = i / head_dim % wide;
      const std::uint16_t wanted = h < heads * me.ranks
                                       ? value(h / heads, t, h % heads, i % head_dim)
                                       : std::uint16_t{0xffff};
      if (got[static_cast<std::size_t>(i)].bits != wanted) {
        return "gathered element " + std::to_string(i) + " is wrong";
      }
    }
  }
  return "";
}
const register_rank_work gather_work("gather", gather);

#if NCCL_VERSION_CODE >= 22703
/// Out of and into memory in symmetric windows, with new data at each call.
std::string gather_in_windows(const rank_context& me) {
  auto made = nccl::make(me.communicator, me.stream);
  if (!made.ok()) return told("make", made.why());
  nccl group = made.value();
  constexpr index_t heads = 64;
  constexpr index_t width = 576;
  const index_t all_heads = heads * me.ranks;
  constexpr std::size_t bytes = std::size_t{64} << 20;
  std::byte* memory[3] = {};
  nccl_window windows[3];
  for (int i = 0; i < 3; ++i) {
    RANK_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memory[i]), bytes));
    auto window = nccl_window::make(me.communicator, {memory[i], bytes});
    if (!window.ok()) return told("window", window.why());
    windows[i] = std::move(window).value();
  }
  for (const index_t tokens : {1, 16, 64, 16, 1}) {
    const auto value = [&](index_t rank, index_t i) {
      return static_cast<std::uint16_t>(mixed(31, {rank, i, tokens}) & 0x7fff);
    };
    const index_t part = tokens * heads * width;
    std::vector<bf16> mine;
    for (index_t i = 0; i < part; ++i) mine.push_back({value(me.rank, i)});
    RANK_CUDA(cudaMemcpy(memory[0], mine.data(), mine.size() * 2, cudaMemcpyHostToDevice));
    RANK_CUDA(cudaMemset(memory[1], 0xff, bytes));
    RANK_CUDA(cudaDeviceSynchronize());
    const auto rows = [&](std::byte* data, index_t count) {
      return make_view<memory_space::device>(
          reinterpret_cast<bf16*>(data),
          packed(extent<axis::token>(tokens), extent<axis::head>(count),
                 extent<axis::head_dim, width>()));
    };
    const status came_to = all_gather_heads(cuda_executor{me.stream}, group, rows(memory[0], heads),
                                            rows(memory[1], all_heads), {memory[2], bytes});
    if (!came_to.ok()) return told("gather", came_to);
    RANK_CUDA(cudaStreamSynchronize(me.stream));
    std::vector<bf16> got(static_cast<std::size_t>(part * me.ranks));
    RANK_CUDA(cudaMemcpy(got.data(), memory[1], got.size() * 2, cudaMemcpyDeviceToHost));
    index_t wrong = 0;
    for (index_t i = 0; i < part * me.ranks; ++i) {
      const index_t t = i / (all_heads * width);
      const index_t h = i / width % all_heads;
      const index_t in_part = (t * heads + h % heads) * width + i % width;
      wrong += got[static_cast<std::size_t>(i)].bits != value(h / heads, in_part);
    }
    if (wrong != 0) return std::to_string(wrong) + " elements are wrong";
  }
  for (nccl_window& window : windows) window = {};
  for (std::byte* one : memory) RANK_NCCL(ncclMemFree(one));
  return "";
}
const register_rank_work window_work("gather_in_windows", gather_in_windows);
#endif

std::string exchange(const rank_context& me) {
  auto made = nccl::make(me.communicator, me.stream);
  if (!made.ok()) return told("make", made.why());
  nccl group = made.value();
  constexpr index_t tokens = 6;
  constexpr index_t width = 80;
  // fp8 bytes, the rank axis inside on one side and outside on the other.
  const auto value = [](index_t from, index_t to, index_t token, index_t d) {
    return static_cast<std::uint8_t>(mixed(9, {from, to, token, d}) & 0x7f);
  };
  using axes = layout<dim<axis::rank>, dim<axis::token>, dim<axis::head_dim>>;
  const axes inside(dim<axis::rank>(me.ranks, width), dim<axis::token>(tokens, me.ranks * width),
                    dim<axis::head_dim>(width, 1));
  const axes outside(dim<axis::rank>(me.ranks, tokens * width), dim<axis::token>(tokens, width),
                     dim<axis::head_dim>(width, 1));
  std::vector<fp8_e4m3> mine(static_cast<std::size_t>(inside.span_size()));
  for_each_element(view(mine.data(), inside), [&](const auto& at, index_t offset) {
    mine[static_cast<std::size_t>(offset)] = {value(me.rank, at[0], at[1], at[2])};
  });
  const memory<fp8_e4m3> send(static_cast<index_t>(mine.size()));
  send.upload(mine.data());
  const memory<fp8_e4m3> receive(static_cast<index_t>(mine.size()));
  const view<fp8_e4m3, axes, memory_space::device> from(send.data, inside);
  const view<fp8_e4m3, axes, memory_space::device> to(receive.data, outside);
  const memory<std::byte> workspace(all_to_all_bytes(from, to).value());
  const status came_to = all_to_all(cuda_executor{me.stream}, group, from, to, workspace.bytes());
  if (!came_to.ok()) return told("all_to_all", came_to);
  RANK_CUDA(cudaStreamSynchronize(me.stream));
  std::vector<fp8_e4m3> got(mine.size());
  receive.download(got.data());
  index_t wrong = 0;
  for_each_element(view(got.data(), outside), [&](const auto& at, index_t offset) {
    wrong += got[static_cast<std::size_t>(offset)].bits != value(at[0], me.rank, at[1], at[2]);
  });
  return wrong == 0 ? "" : std::to_string(wrong) + " bytes are wrong";
}
const register_rank_work exchange_work("exchange", exchange);

/// Ranks that are about to do different things hear of it, all of them, and can go on.
std::string verify(const rank_context& me) {
  memory<std::byte> scratch(nccl_scratch_bytes(me.ranks));
  auto made = nccl::make(me.communicator, me.stream, scratch.bytes(), {.verify = true});
  if (!made.ok()) return told("make", made.why());
  nccl group = made.value();
  const auto rows = [](float* data, index_t tokens, index_t heads) {
    return make_view<memory_space::device>(
        data, packed(extent<axis::token>(tokens), extent<axis::head>(heads),
                     extent<axis::head_dim, 4>()));
  };
  const auto call = [&](index_t tokens, index_t heads, index_t room = 1 << 20) {
    const memory<float> partial(8 * 4 * me.ranks * 4);
    const memory<float> lses(8 * 4 * me.ranks);
    const memory<float> output(8 * 4 * 4);
    const memory<std::byte> workspace(1 << 20);
    const status came_to = lse_reduce_scatter<log_base::e>(
        cuda_executor{me.stream}, group, rows(partial.data, tokens, heads * me.ranks),
        make_view<memory_space::device>(
            lses.data, packed(extent<axis::token>(tokens), extent<axis::head>(heads * me.ranks))),
        rows(output.data, tokens, heads), none,
        workspace.bytes().first(static_cast<std::size_t>(room)));
    if (cudaStreamSynchronize(me.stream) != cudaSuccess) _exit(2);
    return came_to;
  };
  const auto gather = [&](index_t tokens) {
    const memory<float> local(8 * 4);
    const memory<float> gathered(8 * 4 * me.ranks);
    const memory<std::byte> workspace(1 << 16);
    const status came_to =
        all_gather_heads(cuda_executor{me.stream}, group, rows(local.data, tokens, 1),
                         rows(gathered.data, tokens, me.ranks), workspace.bytes());
    if (cudaStreamSynchronize(me.stream) != cudaSuccess) _exit(2);
    return came_to;
  };
  const auto is = [](const status& got, const char* axis, const char* message) {
    return got.code == errc::rank_mismatch && std::string(got.axis) == axis &&
           std::string(got.message) == message && std::string(got.operand) == "lse_reduce_scatter";
  };
  if (!call(5, 2).ok()) return "a call that is alike was refused";
  const status tokens = call(me.rank == 1 ? 4 : 5, 2);
  if (!is(tokens, "token", "seen on rank 1") || tokens.got != 4 || tokens.expected != 5) {
    return told("another number of tokens", tokens);
  }
  const status heads = call(5, me.rank == me.ranks - 1 ? 3 : 2);
  const std::string last = "seen on rank " + std::to_string(me.ranks - 1);
  if (!is(heads, "head", last.c_str())) return told("another number of heads", heads);
  // A rank that refuses the call itself: it has no room.
  const status refused = call(5, 2, me.rank == 0 ? 16 : 1 << 20);
  if (me.rank == 0 ? refused.code != errc::capacity_exceeded
                   : !is(refused, "capacity_exceeded", "seen on rank 0")) {
    return told("a refusal", refused);
  }
  const status gathered = gather(me.rank == 2 ? 3 : 5);
  if (gathered.code != errc::rank_mismatch || std::string(gathered.axis) != "token" ||
      std::string(gathered.operand) != "all_gather_heads") {
    return told("a gather of other tokens", gathered);
  }
  const status other = me.rank == 1 ? gather(5) : call(5, 2);
  if (other.code != errc::rank_mismatch || std::string(other.axis) != "operation") {
    return told("another operation", other);
  }
  const status again = call(5, 2);
  if (!again.ok()) return told("after all that", again);

  const result<bool> all = agree(group, true);
  const result<bool> not_all = agree(group, me.rank != 1);
  if (!all.ok() || !all.value()) return told("agree", all.why());
  if (!not_all.ok() || not_all.value()) return "one rank said no, and agree() did not";
  const status met = group.barrier();
  if (!met.ok()) return told("barrier", met);
  RANK_CUDA(cudaStreamSynchronize(me.stream));
  return "";
}
const register_rank_work verify_work("verify", verify);

std::string refusals(const rank_context& me) {
  const auto refused = [](const auto& made, errc code, const char* operand) {
    return made.why().code == code && std::string(made.why().operand) == operand;
  };
  memory<std::byte> scratch(nccl_scratch_bytes(me.ranks));
  const auto little = scratch.bytes().first(16);
  const auto askew = std::span(scratch.data + 4, scratch.count - 4);
  if (!refused(nccl::make(nullptr, me.stream), errc::invalid_argument, "communicator") ||
      !refused(nccl::make(me.communicator, me.stream, {}, {.ranks = me.ranks + 1}),
               errc::invalid_argument, "communicator") ||
      !refused(nccl::make(me.communicator, me.stream, {}, {.verify = true}), errc::unsupported,
               "verify") ||
      !refused(nccl::make(me.communicator, me.stream, little), errc::capacity_exceeded,
               "scratch") ||
      !refused(nccl::make(me.communicator, me.stream, askew), errc::misaligned, "scratch")) {
    return "what no transport can be made of was taken";
  }
  auto made = nccl::make(me.communicator, me.stream);
  if (!made.ok()) return told("make", made.why());
  nccl group = made.value();
  if (group.rank() != me.rank || group.size() != me.ranks) return "another rank or size";
  if (group.method() != nccl_method::send_receive) return "another method";
  if (!group.check().ok()) return told("check", group.check());
  if (group.barrier().code != errc::unsupported) return "a barrier without scratch";
  char text[96] = {};
  group.describe(text, sizeof text);
  const std::string version = std::to_string(group.version() / 10000) + "." +
                              std::to_string(group.version() / 100 % 100) + "." +
                              std::to_string(group.version() % 100);
  if (text != "nccl " + version + ", ncclSend and ncclRecv") return text;
  return "";
}
const register_rank_work refusal_work("refusals", refusals);

/// The kernels of this library in a captured call, by name.
std::string launches(const rank_context& me) {
  auto made = nccl::make(me.communicator, me.stream, {}, {.straight_from = 0});
  if (!made.ok()) return told("make", made.why());
  nccl group = made.value();
  const auto kernels = [&](index_t tokens, auto head_major, int& packs, int& combines, int& all) {
    constexpr bool HeadMajor = decltype(head_major)::value;
    const scatter_shape shape{me.ranks, tokens, 4, 64};
    const style with = HeadMajor ? style::head_major : style::tiled;
    scatter_operands<bf16, float, HeadMajor> host(shape, with, with);
    const memory<bf16> partial(host.partial_output.layout.span_size());
    const memory<float> lses(host.partial_lse.layout.span_size());
    const memory<bf16> output(host.output.layout.span_size());
    const memory<std::byte> workspace(lse_reduce_scatter_bytes<bf16>(shape.message()).value());
    cudaGraph_t captured = nullptr;
    if (cudaStreamBeginCapture(me.stream, cudaStreamCaptureModeGlobal) != cudaSuccess) _exit(2);
    const status came_to = lse_reduce_scatter<log_base::e>(
        cuda_executor{me.stream}, group, on_device(partial.data, host.partial_output.view()),
        on_device(lses.data, host.partial_lse.view()), on_device(output.data, host.output.view()),
        none, workspace.bytes());
    if (cudaStreamEndCapture(me.stream, &captured) != cudaSuccess || !came_to.ok()) _exit(2);
    std::size_t count = 0;
    if (cudaGraphGetNodes(captured, nullptr, &count) != cudaSuccess) _exit(2);
    std::vector<cudaGraphNode_t> nodes(count);
    if (cudaGraphGetNodes(captured, nodes.data(), &count) != cudaSuccess) _exit(2);
    packs = combines = all = 0;
    for (const cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type{};
      if (cudaGraphNodeGetType(node, &type) != cudaSuccess) _exit(2);
      if (type == cudaGraphNodeTypeMemcpy || type == cudaGraphNodeTypeMemset) ++all;
      if (type != cudaGraphNodeTypeKernel) continue;
      ++all;
      cudaKernelNodeParams what{};
      const char* name = "";
      if (cudaGraphKernelNodeGetParams(node, &what) != cudaSuccess) {
        static_cast<void>(
            cudaGetLastError());  // a kernel of NCCL, which this runtime does not know
        continue;
      }
      if (cudaFuncGetName(&name, what.func) != cudaSuccess) _exit(2);
      packs += std::strstr(name, "pack_kernel") != nullptr;
      combines += std::strstr(name, "lse_combine_kernel") != nullptr;
    }
    if (cudaGraphDestroy(captured) != cudaSuccess) _exit(2);
  };
  int packs = 0, combines = 0, all = 0;
  kernels(1, std::false_type{}, packs, combines, all);
  if (packs != 0 || combines != 1 || all != 2) return "one token does not go straight";
  kernels(5, std::true_type{}, packs, combines, all);
  if (packs != 0 || combines != 1 || all != 2) return "head-major does not go straight";
  kernels(5, std::false_type{}, packs, combines, all);
  if (packs != 1 || combines != 1 || all != 3) return "head-sliced costs another launch";
  return "";
}
const register_rank_work launch_work("launches", launches);

/// Numbers of ranks to try: two and four, and as many as there are GPUs.
std::vector<int> sizes() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) return {};
  std::vector<int> ranks{2, 4};
  if (devices > 4) ranks.push_back(devices < 16 ? devices : 16);
  return ranks;
}

}  // namespace

TEST_CASE("nccl: a reduce-scatter has the bits of the host, eager and replayed, every way") {
  for (const int ranks : sizes()) CHECK(on_processes("every_way", ranks) == "");
}
TEST_CASE("nccl: parity 36: a gather is bit exact, into the leading heads of a wider buffer") {
  for (const int ranks : sizes()) CHECK(on_processes("gather", ranks) == "");
}
#if NCCL_VERSION_CODE >= 22703
TEST_CASE("nccl: a gather within symmetric windows is bit exact") {
  int devices = 0;
  REQUIRE(cudaGetDeviceCount(&devices) == cudaSuccess);
  if (devices < 2) {
    MESSAGE("left out: ranks of one GPU have no window in common");
    return;
  }
  CHECK(on_processes("gather_in_windows", 2) == "");
}
#endif
TEST_CASE("nccl: L08: an all-to-all moves fp8 as bytes") {
  for (const int ranks : sizes()) CHECK(on_processes("exchange", ranks) == "");
}
TEST_CASE("nccl: J05: ranks that differ, or refuse, are named on all of them") {
  CHECK(on_processes("verify", 3) == "");
}
TEST_CASE("nccl: what a transport cannot be made of") { CHECK(on_processes("refusals", 2) == ""); }
TEST_CASE("nccl: what goes straight launches no kernel before the exchange") {
  CHECK(on_processes("launches", 2) == "");
}
TEST_CASE("nccl: one rank alone") {
  for (const char* work : {"every_way", "gather", "exchange"}) CHECK(on_processes(work, 1) == "");
}
