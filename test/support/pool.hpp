// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/collective/pooled.cuh>
#include <headwise/reference/lse_combine.hpp>

#include <support/device.hpp>
#include <support/packed.hpp>
#include <support/ranks.hpp>
#include <support/scatter.hpp>

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

// Ranks of a peer pool, as tests have them. What a rank does is a function that returns what is
// wrong, or nothing: it runs on a thread or in a process, where nothing may be asserted.
//
// Ranks may share a GPU, where a kernel of one waits for kernels of the others. So whatever may
// wait for the device (an allocation, a copy from pageable memory, a module, a graph) is done on
// all ranks, with a meeting behind it, before one of them makes a call.

#define TRY_JOIN_(one, other) one##other
#define TRY_JOIN(one, other) TRY_JOIN_(one, other)
#define TRY_STATUS_(call, tried)                                                            \
  do {                                                                                      \
    const headwise::status tried = (call);                                                  \
    if (!tried.ok()) return support::at_line(__FILE__, __LINE__, support::sentence(tried)); \
  } while (false)
#define TRY_TEXT_(call, tried)        \
  do {                                \
    const std::string tried = (call); \
    if (!tried.empty()) return tried; \
  } while (false)
#define TRY_OK(call) TRY_STATUS_(call, TRY_JOIN(tried_, __COUNTER__))
#define TRY_CUDA(call) TRY_OK(headwise::detail::cuda_status((call), "test"))
/// Of what returns what is wrong.
#define TRY(call) TRY_TEXT_(call, TRY_JOIN(tried_, __COUNTER__))
#define TRY_THAT(condition, text)                                                         \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      return support::at_line(__FILE__, __LINE__, std::string(#condition ": ") + (text)); \
    }                                                                                     \
  } while (false)

namespace support {

inline std::string at_line(const char* file, int line, const std::string& text) {
  const char* const name = std::strrchr(file, '/');
  return std::string(name != nullptr ? name + 1 : file) + ":" + std::to_string(line) + ": " + text;
}

// ---- memory ---------------------------------------------------------------------------------

/// Operands in host memory, the same bytes at the same offsets on the device, and what was fetched
/// from there. All 0xff at first, with 256 bytes of guard in front of and behind each. Taken at
/// once; handing parts of it out asks nothing of CUDA.
class twin_memory {
 public:
  twin_memory() = default;
  twin_memory(const twin_memory&) = delete;
  twin_memory& operator=(const twin_memory&) = delete;
  ~twin_memory() {
    cudaFree(device_);
    cudaFreeHost(host_);
    cudaFreeHost(got_);
  }

  cudaError_t open(index_t bytes) {
    const auto size = static_cast<std::size_t>(bytes);
    const auto pinned = cudaHostAllocPortable;
    cudaError_t said = cudaMalloc(reinterpret_cast<void**>(&device_), size);
    if (said == cudaSuccess) said = cudaHostAlloc(reinterpret_cast<void**>(&host_), size, pinned);
    if (said == cudaSuccess) said = cudaHostAlloc(reinterpret_cast<void**>(&got_), size, pinned);
    if (said == cudaSuccess) bytes_ = bytes;
    return said;
  }
  /// Gives back all that was taken.
  void forget() {
    used_ = 0;
    parts_.clear();
  }

  /// Aligned to 256 bytes, and then `past` elements further on.
  template <class T>
  T* take(const char* name, index_t count, index_t past = 0) {
    const index_t start = headwise::detail::round_up(used_, index_t{256}) + guard;
    const index_t first = start + past * index_t{sizeof(T)};
    const index_t end = first + count * index_t{sizeof(T)};
    if (end + guard > bytes_) {
      std::fprintf(stderr, "twin_memory: %s: %lld bytes are too few\n", name,
                   static_cast<long long>(bytes_));
      std::abort();  // an error of the test itself
    }
    std::memset(host_ + used_, 0xff, static_cast<std::size_t>(end + guard - used_));
    used_ = end + guard;
    parts_.push_back({name, first, end});
    return reinterpret_cast<T*>(host_ + first);
  }

  template <class T>
  T* there(T* host) const {
    const std::byte* const at = reinterpret_cast<const std::byte*>(host);
    return reinterpret_cast<T*>(device_ + (at - host_));
  }
  template <class T, class Layout>
  headwise::view<T, Layout, memory_space::device> there(
      const headwise::view<T, Layout>& host) const {
    return {there(host.data()), host.layout()};
  }

  cudaError_t upload(cudaStream_t stream) const {
    return cudaMemcpyAsync(device_, host_, static_cast<std::size_t>(used_), cudaMemcpyHostToDevice,
                           stream);
  }
  cudaError_t fetch(cudaStream_t stream) const {
    return cudaMemcpyAsync(got_, device_, static_cast<std::size_t>(used_), cudaMemcpyDeviceToHost,
                           stream);
  }

  /// What was fetched and is not as it stands in host memory, gaps and guards included; or nothing.
  std::string differences() const {
    if (std::memcmp(host_, got_, static_cast<std::size_t>(used_)) == 0) return "";
    index_t wrong = 0;
    index_t first = -1;
    for (index_t i = 0; i < used_; ++i) {
      if (host_[i] == got_[i]) continue;
      ++wrong;
      if (first < 0) first = i;
    }
    std::string where = "a guard";
    for (const part& one : parts_) {
      if (first < one.first || first >= one.end) continue;
      where = std::string(one.name) + " + " + std::to_string(first - one.first) + " of " +
              std::to_string(one.end - one.first);
    }
    char text[200];
    std::snprintf(text, sizeof text, "%lld bytes are wrong, first in %s: 0x%02x, not 0x%02x",
                  static_cast<long long>(wrong), where.c_str(), static_cast<unsigned>(got_[first]),
                  static_cast<unsigned>(host_[first]));
    return text;
  }
  /// The fetched elements of a view of host memory.
  template <class View>
  std::vector<std::byte> fetched(const View& what) const {
    constexpr std::size_t size = sizeof(typename View::value_type);
    std::vector<std::byte> bytes;
    for_each_element(what, [&](const auto&, index_t offset) {
      const std::byte* const at =
          got_ + (reinterpret_cast<const std::byte*>(what.data() + offset) - host_);
      bytes.insert(bytes.end(), at, at + size);
    });
    return bytes;
  }

 private:
  static constexpr index_t guard = 256;

  struct part {
    const char* name;
    index_t first, end;
  };

  std::byte* device_ = nullptr;
  std::byte* host_ = nullptr;
  std::byte* got_ = nullptr;
  index_t bytes_ = 0;
  index_t used_ = 0;
  std::vector<part> parts_;
};

// ---- ranks ----------------------------------------------------------------------------------

/// Keeps a stream busy, so that this rank comes late. By the GPU's clock, in nanoseconds.
template <class = void>
__global__ void spin_kernel(unsigned long long duration) {
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  const unsigned long long end = now + duration;
  while (now < end) asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
}
inline cudaError_t spin(cudaStream_t stream, index_t nanoseconds) {
  spin_kernel<><<<1, 1, 0, stream>>>(static_cast<unsigned long long>(nanoseconds));
  return cudaGetLastError();
}

/// A kernel of a test is loaded before anything waits, as those of a pool are.
template <class... Parameters>
headwise::status load_kernel(void (*kernel)(Parameters...)) {
  return headwise::detail::load_kernel(reinterpret_cast<const void*>(kernel));
}

struct pool_rank {
  headwise::bootstrap_ref group;
  cudaStream_t stream = nullptr;
  cudaStream_t other_stream = nullptr;  ///< made by those who need it: hardware queues are few
  twin_memory memory;

  explicit pool_rank(headwise::bootstrap_ref ranks) : group(ranks) {}
  pool_rank(const pool_rank&) = delete;
  pool_rank& operator=(const pool_rank&) = delete;
  ~pool_rank() {
    if (stream != nullptr) cudaStreamDestroy(stream);
    if (other_stream != nullptr) cudaStreamDestroy(other_stream);
  }

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  headwise::status meet() const { return headwise::detail::barrier(group); }

  std::string open(index_t bytes) {
    TRY_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    TRY_CUDA(memory.open(bytes));
    TRY_OK(load_kernel(&spin_kernel<void>));
    TRY_OK(meet());
    return "";
  }
};

using pool_work = std::function<std::string(pool_rank&)>;

inline int gpu_count() {
  int count = 0;
  REQUIRE_CUDA(cudaGetDeviceCount(&count));
  return count;
}
/// One, and two where there are two.
inline std::vector<int> one_or_two_gpus() {
  return gpu_count() > 1 ? std::vector<int>{1, 2} : std::vector<int>{1};
}

/// Ranks as threads, rank r on GPU r % gpus; what is wrong on each of them, or nothing.
inline std::string on_pool_ranks(int ranks, int gpus, const pool_work& work,
                                 index_t bytes = index_t{8} << 20) {
  const auto came_to = on_ranks(
      ranks,
      [&](headwise::in_process& me) -> std::string {
        headwise::transport_bootstrap group(me);
        TRY_OK(headwise::detail::unanimous(
            group, headwise::detail::cuda_status(cudaSetDevice(me.rank() % gpus), "device")));
        pool_rank rank(group);
        TRY(rank.open(bytes));
        std::string wrong = work(rank);
        // A peer may be waiting in a kernel: nothing is freed before it has found out.
        const cudaError_t drained = cudaDeviceSynchronize();
        const headwise::status met = rank.meet();
        if (wrong.empty()) TRY_CUDA(drained);
        if (wrong.empty()) TRY_OK(met);
        TRY_THAT(!wrong.empty() || cudaGetLastError() == cudaSuccess, "an error is left behind");
        return wrong;
      },
      std::chrono::seconds(40));
  std::string all;
  for (std::size_t r = 0; r < came_to.size(); ++r) {
    if (came_to[r].empty()) continue;
    all += (all.empty() ? std::to_string(ranks) + " ranks on " + std::to_string(gpus) + " GPUs: "
                        : std::string("; ")) +
           "rank " + std::to_string(r) + ": " + came_to[r];
  }
  return all;
}

/// Memory of the kind with peer access, whose last slab a test may look into.
class open_memory {
 public:
  headwise::result<headwise::mapped_slab> map(headwise::bootstrap_ref ranks,
                                              index_t bytes) noexcept {
    const headwise::result<headwise::mapped_slab> mapped = memory_.map(ranks, bytes);
    if (mapped.ok()) last_ = mapped.value();
    return mapped;
  }
  headwise::status unmap(headwise::bootstrap_ref ranks, headwise::mapped_slab& slab) noexcept {
    return memory_.unmap(ranks, slab);
  }
  headwise::memory_kind kind() const noexcept { return memory_.kind(); }
  headwise::memory_reason reason() const noexcept { return memory_.reason(); }
  const headwise::mapped_slab& last() const noexcept { return last_; }

 private:
  headwise::peer_access_memory memory_;
  headwise::mapped_slab last_;
};

inline constexpr headwise::protocol all_protocols[] = {
    headwise::protocol::ll, headwise::protocol::push, headwise::protocol::pull};

/// Opens a pool with channels of these names, hands it to work(pool), and closes it.
template <class Memory = headwise::automatic_memory, class Work>
std::string with_pool(pool_rank& me, const headwise::pool_options& options,
                      std::initializer_list<const char*> names, const Work& work) {
  const auto pool = std::make_unique<headwise::peer_pool<Memory>>();
  TRY_OK(pool->open(me.group, options));
  std::string wrong;
  const headwise::status prepared = pool->prepare(me.group, names);
  if (prepared.ok()) {
    wrong = work(*pool);
  } else {
    wrong = "prepare: " + sentence(prepared);
  }
  const headwise::status closed = pool->close(me.group);
  if (wrong.empty() && !closed.ok()) wrong = "close: " + sentence(closed);
  return wrong;
}

/// The same with one protocol for everything, and one channel, named "calls".
template <class Memory = headwise::automatic_memory, class Work>
std::string with_channel(pool_rank& me, headwise::pool_options options, headwise::protocol how,
                         const Work& work) {
  const headwise::protocol_table table = headwise::protocol_table::only(how);
  options.table = &table;
  const std::string wrong = with_pool<Memory>(
      me, options, {"calls"},
      [&](headwise::peer_pool<Memory>& pool) { return work(pool, pool.channel("calls").value()); });
  return wrong.empty() ? "" : std::string(to_string(how)) + ": " + wrong;
}

// ---- calls ----------------------------------------------------------------------------------

struct reduce_run {
  scatter_shape shape;
  style output_style = style::packed;
  style lse_style = style::packed;
  style result_style = style::packed;
  bool in_place = false;         ///< the output in place of this rank's part of the partial one
  bool merged_in_place = false;  ///< the merged LSE in place of this rank's LSE
  index_t past = 0;              ///< elements that pointers are off their alignment
  index_t sequences = 3;         ///< by which keys are told, where they are

  std::string told() const {
    return std::to_string(shape.tokens) + " tokens, " + std::to_string(shape.heads) + " heads, " +
           std::to_string(shape.head_dim) + " wide, styles " +
           std::to_string(static_cast<int>(output_style)) + " " +
           std::to_string(static_cast<int>(lse_style)) + " " +
           std::to_string(static_cast<int>(result_style)) + ", in place " +
           std::to_string(in_place) + std::to_string(merged_in_place) + ", past " +
           std::to_string(past) + ", sequences " + std::to_string(sequences);
  }
};

/// How a call is told how many keys a rank holds.
enum class key_counts { none, by_token, by_sequence };

/// One rank's part in an lse_reduce_scatter: its operands in a twin_memory, new ones for each seed,
/// and what must come out. About one row in eight of a rank is empty, its payload is NaN. Of keys
/// that are told by sequence one row at least is padding.
template <class T, log_base Base = log_base::e, class Lse = float, bool HeadMajor = false,
          bool Merged = true, key_counts Counts = key_counts::none, bool Sink = false,
          class Policy = headwise::nan_policy::empty>
class reduce_call {
 public:
  using rows = rows_operand<T, HeadMajor>;
  using plane = plane_operand<Lse>;
  using rows_view = typename rows::view_type;
  using result_view = typename rows_operand<T>::view_type;

  reduce_call(twin_memory& memory, const reduce_run& run, int rank, Policy policy = {})
      : memory_(&memory),
        run_(run),
        rank_(rank),
        policy_(policy),
        rows_layout_(rows::layout_of(run.output_style, run.shape.tokens, run.shape.all_heads(),
                                     run.shape.head_dim)),
        lses_layout_(plane::layout_of(run.lse_style, run.shape.tokens, run.shape.all_heads())),
        rows_(memory.take<T>("partial_output", rows_layout_.span_size(), run.past)),
        lses_(memory.take<Lse>("partial_lse", lses_layout_.span_size(), run.past)),
        counts_(memory.take<std::int32_t>("valid", by_sequence ? run.sequences : run.shape.tokens)),
        starts_(memory.take<std::int32_t>("query_starts",
                                          by_sequence ? run.sequences * starts_stride + 1 : 0)),
        sinks_(memory.take<float>("sink", run.shape.heads)) {
    const auto result_layout = rows_operand<T>::layout_of(run.result_style, run.shape.tokens,
                                                          run.shape.heads, run.shape.head_dim);
    const auto merged_layout =
        plane_operand<float>::layout_of(run.result_style, run.shape.tokens, run.shape.heads);
    if (run.in_place) {
      output_ = headwise::slice<headwise::axis::head>(
                    headwise::permute<headwise::axis::token, headwise::axis::head,
                                      headwise::axis::head_dim>(partial()),
                    rank * run.shape.heads, run.shape.heads)
                    .value();
    } else {
      output_ = {memory.take<T>("output", result_layout.span_size(), run.past), result_layout};
    }
    if (run.merged_in_place) {
      if constexpr (std::is_same_v<Lse, float>) {
        merged_ =
            headwise::slice<headwise::axis::head>(lse(), rank * run.shape.heads, run.shape.heads)
                .value();
      } else {
        std::abort();  // an error of the test itself
      }
    } else {
      merged_ = {memory.take<float>("merged_lse", merged_layout.span_size()), merged_layout};
    }
  }

  const reduce_run& run() const { return run_; }
  std::string told() const { return run_.told(); }
  result_view output() const { return output_; }
  headwise::view<float, typename plane_operand<float>::layout_type> merged() const {
    return merged_;
  }

  /// New operands. Precondition: the copy of those before is complete.
  void fill(std::uint64_t seed) {
    problem_ = {run_.shape, seed, sizeof(Lse) == 2};
    set_bytes(rows_, rows_layout_.span_size());
    set_bytes(lses_, lses_layout_.span_size());
    forget_results();
    const index_t heads = run_.shape.all_heads();
    const auto to =
        headwise::permute<headwise::axis::token, headwise::axis::head, headwise::axis::head_dim>(
            partial());
    put_counts();
    for (index_t t = 0; t < run_.shape.tokens; ++t) {
      for (index_t h = 0; h < heads; ++h) {
        lse()(t, h) = lse_of(rank_, t, h);
        if (problem_.empty(rank_, t, h)) continue;
        for (index_t d = 0; d < run_.shape.head_dim; ++d)
          to(t, h, d) = problem_.output(rank_, t, h, d);
      }
    }
    for (index_t h = 0; h < run_.shape.heads; ++h)
      sinks_[h] = sink_of(rank_ * run_.shape.heads + h);
  }
  /// The number of keys of a token on a rank, in place of what is drawn.
  void set_counts(std::function<std::int32_t(int, index_t)> counts) {
    static_assert(Counts == key_counts::by_token);
    given_ = std::move(counts);
  }
  /// Poison where the results go; in place there is none.
  void forget_results() {
    if (!run_.in_place) set_view(output_);
    if (!run_.merged_in_place) set_view(merged_);
  }

  template <headwise::entry Entry = headwise::entry::strided>
  headwise::status enqueue(const headwise::pool_channel& channel,
                           const headwise::on_stream& where) const {
    const auto sink = [&] {
      if constexpr (Sink) {
        return memory_->there(headwise::view(
            sinks_, headwise::packed(headwise::extent<headwise::axis::head>(run_.shape.heads))));
      } else {
        return headwise::none;
      }
    }();
    return headwise::lse_reduce_scatter<Base, Entry>(
        channel, where, memory_->there(headwise::view<const T, decltype(rows_layout_)>(partial())),
        memory_->there(headwise::view<const Lse, decltype(lses_layout_)>(lse())),
        memory_->there(output_), merged_there(), valid_there(), sink, policy_);
  }

  /// The same call over a transport. Of this set of types only: none of what is optional.
  template <class Executor, class Group>
  headwise::status over(const Executor& executor, Group& group,
                        std::span<std::byte> workspace) const {
    static_assert(Merged && Counts == key_counts::none && !Sink);
    return headwise::lse_reduce_scatter<Base>(
        executor, group, memory_->there(headwise::view<const T, decltype(rows_layout_)>(partial())),
        memory_->there(headwise::view<const Lse, decltype(lses_layout_)>(lse())),
        memory_->there(output_), merged_there(), workspace);
  }

  /// Writes what must come out to the host's memory.
  void expect() {
    const scatter_shape& shape = run_.shape;
    const index_t block = shape.tokens * shape.heads;
    std::vector<T> values(static_cast<std::size_t>(shape.ranks * block * shape.head_dim));
    std::memset(values.data(), 0xff, values.size() * sizeof(T));
    std::vector<float> all_lses(static_cast<std::size_t>(shape.ranks * block));
    const headwise::view from =
        packed_outputs(values.data(), shape.ranks, shape.tokens, shape.heads, shape.head_dim);
    const headwise::view from_lses =
        packed_lses(all_lses.data(), shape.ranks, shape.tokens, shape.heads);
    for (index_t s = 0; s < shape.ranks; ++s) {
      for (index_t t = 0; t < shape.tokens; ++t) {
        const bool no_keys = Counts != key_counts::none && count_of(static_cast<int>(s), t) == 0;
        for (index_t h = 0; h < shape.heads; ++h) {
          const index_t head = rank_ * shape.heads + h;
          from_lses(s, t, h) = no_keys ? -std::numeric_limits<float>::infinity()
                                       : headwise::to_float(lse_of(s, t, head));
          if (problem_.empty(s, t, head)) continue;
          for (index_t d = 0; d < shape.head_dim; ++d) {
            from(s, t, h, d) = problem_.output(s, t, head, d);
          }
        }
      }
    }
    const headwise::gathered_shards shards{from, from_lses};
    const headwise::view sinks(
        sinks_, headwise::packed(headwise::extent<headwise::axis::head>(shape.heads)));
    headwise::status came_to{};
    const auto combine = [&](const auto& merged, const auto& sink) {
      came_to = headwise::reference::lse_combine<Base>(shards, output_, merged, sink, policy_);
    };
    if constexpr (Merged && Sink) combine(merged_, sinks);
    if constexpr (Merged && !Sink) combine(merged_, headwise::none);
    if constexpr (!Merged && Sink) combine(headwise::none, sinks);
    if constexpr (!Merged && !Sink) combine(headwise::none, headwise::none);
    if (!came_to.ok()) std::abort();  // an error of the test itself
  }
  /// The same of a call that has failed.
  void expect_poison() {
    const float nan = headwise::detail::canonical_nan();
    support::fill(output_, [&](const auto&) { return headwise::from_float<T>(nan); });
    if constexpr (Merged) {
      support::fill(merged_, [&](const auto&) { return nan; });
    }
  }

 private:
  static constexpr bool by_sequence = Counts == key_counts::by_sequence;
  /// What lies between the boundaries is poison.
  static constexpr index_t starts_stride = 2;

  rows_view partial() const { return {rows_, rows_layout_}; }
  headwise::view<Lse, typename plane::layout_type> lse() const { return {lses_, lses_layout_}; }
  auto merged_there() const {
    if constexpr (Merged) {
      return memory_->there(merged_);
    } else {
      return headwise::none;
    }
  }
  /// A view of the device's numbers along one axis.
  template <class Axis>
  auto numbers_there(const std::int32_t* data, index_t count, index_t stride = 1) const {
    using along = headwise::layout<headwise::dim<Axis>>;
    return memory_->there(
        headwise::view<const std::int32_t, along>(data, along(headwise::dim<Axis>(count, stride))));
  }
  auto valid_there() const {
    if constexpr (by_sequence) {
      return headwise::keys_by_sequence{
          numbers_there<headwise::axis::sequence>(counts_, run_.sequences),
          numbers_there<headwise::axis::sequence>(starts_, run_.sequences + 1, starts_stride)};
    } else if constexpr (Counts == key_counts::by_token) {
      return numbers_there<headwise::axis::token>(counts_, run_.shape.tokens);
    } else {
      return headwise::none;
    }
  }

  Lse lse_of(index_t rank, index_t token, index_t head) const {
    const float value = problem_.lse(rank, token, head);
    if constexpr (std::is_same_v<Policy, headwise::sentinel>) {
      if (!std::isfinite(value)) return headwise::from_float<Lse>(-1e30f);
    }
    return headwise::from_float<Lse>(value);
  }
  std::int32_t count_of(int rank, index_t token) const {
    if (given_) return given_(rank, token);
    if constexpr (by_sequence) {
      for (index_t s = 0; s < run_.sequences; ++s) {
        if (start_of(s) <= token && token < start_of(s + 1)) return drawn_count(rank, s);
      }
      return 0;
    } else {
      return drawn_count(rank, token);
    }
  }
  /// Of a token, or of a sequence.
  std::int32_t drawn_count(int rank, index_t of) const {
    constexpr std::int32_t some[] = {0, 1, 5, 70};
    return some[mixed(problem_.seed, {rank, of, -7}) % 4];
  }
  /// The first row of a sequence, on all ranks; one may have no rows.
  index_t start_of(index_t sequence) const {
    index_t start = 0;
    for (index_t s = 0; s < sequence; ++s) {
      start += static_cast<index_t>(mixed(problem_.seed, {s, -11}) % 3);
    }
    return run_.shape.tokens == 0 ? 0 : headwise::detail::lesser(start, run_.shape.tokens - 1);
  }
  void put_counts() {
    if constexpr (by_sequence) {
      for (index_t s = 0; s < run_.sequences; ++s) counts_[s] = drawn_count(rank_, s);
      for (index_t s = 0; s <= run_.sequences; ++s) {
        starts_[s * starts_stride] = static_cast<std::int32_t>(start_of(s));
      }
    } else {
      for (index_t t = 0; t < run_.shape.tokens; ++t) counts_[t] = count_of(rank_, t);
    }
  }
  float sink_of(index_t head) const {
    const std::uint64_t bits = mixed(problem_.seed, {head, -9});
    constexpr float infinity = std::numeric_limits<float>::infinity();
    if (bits % 8 == 0) return -infinity;
    if (bits % 8 == 1) return infinity;
    return 8.0f * unit_float(bits);
  }
  template <class E>
  static void set_bytes(E* data, index_t count) {
    std::memset(data, 0xff, static_cast<std::size_t>(count) * sizeof(E));
  }
  template <class View>
  static void set_view(const View& what) {
    using element = typename View::value_type;
    element poison;
    std::memset(&poison, 0xff, sizeof poison);
    support::fill(what, [&](const auto&) { return poison; });
  }

  twin_memory* memory_;
  reduce_run run_;
  int rank_;
  Policy policy_;
  typename rows::layout_type rows_layout_;
  typename plane::layout_type lses_layout_;
  T* rows_;
  Lse* lses_;
  std::int32_t* counts_;  // of each token, or of each sequence
  std::int32_t* starts_;
  float* sinks_;
  result_view output_;
  headwise::view<float, typename plane_operand<float>::layout_type> merged_;
  scatter_problem<T, Base> problem_{};
  std::function<std::int32_t(int, index_t)> given_;
};

struct gather_run {
  scatter_shape shape;
  index_t tile = 0;  ///< heads that the output has room for; 0: those that are gathered
  style local_style = style::packed;
  style gathered_style = style::packed;
  bool in_place = false;
  index_t past = 0;

  std::string told() const {
    return std::to_string(shape.tokens) + " tokens, " + std::to_string(shape.heads) +
           " heads into " + std::to_string(tile) + ", " + std::to_string(shape.head_dim) +
           " wide, styles " + std::to_string(static_cast<int>(local_style)) + " " +
           std::to_string(static_cast<int>(gathered_style)) + ", in place " +
           std::to_string(in_place) + ", past " + std::to_string(past);
  }
};

/// The same of an all_gather_heads.
template <class T>
class gather_call {
 public:
  using view_type = typename rows_operand<T>::view_type;

  gather_call(twin_memory& memory, const gather_run& run, int rank)
      : memory_(&memory), run_(run), rank_(rank) {
    const index_t all = run.shape.all_heads();
    const auto whole_layout = rows_operand<T>::layout_of(
        run.gathered_style, run.shape.tokens, run.tile > all ? run.tile : all, run.shape.head_dim);
    const view_type whole(memory.take<T>("gathered", whole_layout.span_size(), run.past),
                          whole_layout);
    gathered_ = headwise::slice<headwise::axis::head>(whole, 0, all).value();
    if (run.in_place) {
      local_ = own_place();
    } else {
      const auto local_layout = rows_operand<T>::layout_of(run.local_style, run.shape.tokens,
                                                           run.shape.heads, run.shape.head_dim);
      local_ = {memory.take<T>("local", local_layout.span_size(), run.past), local_layout};
    }
  }

  std::string told() const { return run_.told(); }
  view_type gathered() const { return gathered_; }
  auto local_there() const {
    return memory_->there(headwise::view<const T, typename rows_operand<T>::layout_type>(local_));
  }
  auto gathered_there() const { return memory_->there(gathered_); }

  void fill(std::uint64_t seed) {
    seed_ = seed;
    T poison;
    std::memset(&poison, 0xff, sizeof poison);
    support::fill(gathered_, [&](const auto&) { return poison; });
    support::fill(
        local_, [&](const auto& i) { return value(rank_ * run_.shape.heads + i[1], i[0], i[2]); });
  }
  template <headwise::entry Entry = headwise::entry::strided>
  headwise::status enqueue(const headwise::pool_channel& channel,
                           const headwise::on_stream& where) const {
    return headwise::all_gather_heads<Entry>(channel, where, local_there(), gathered_there());
  }
  void expect() {
    support::fill(gathered_, [&](const auto& i) { return value(i[1], i[0], i[2]); });
  }
  /// In place this rank's own rows are poison as well.
  void expect_poison() {
    T poison;
    std::memset(&poison, 0xff, sizeof poison);
    support::fill(gathered_, [&](const auto&) { return poison; });
  }

 private:
  view_type own_place() const {
    return headwise::slice<headwise::axis::head>(gathered_, rank_ * run_.shape.heads,
                                                 run_.shape.heads)
        .value();
  }
  T value(index_t head, index_t token, index_t d) const {
    return element_of_bits<T>(mixed(seed_, {head, token, d}));
  }

  twin_memory* memory_;
  gather_run run_;
  int rank_;
  std::uint64_t seed_ = 0;
  view_type gathered_;
  view_type local_;
};

/// Two gathers behind one exchange.
template <class First, class Second>
class paired_call {
 public:
  paired_call(twin_memory& memory, const gather_run& first, const gather_run& second, int rank)
      : first_(memory, first, rank), second_(memory, second, rank) {}

  std::string told() const { return first_.told() + " and " + second_.told(); }
  void fill(std::uint64_t seed) {
    first_.fill(seed);
    second_.fill(seed + 1);
  }
  headwise::status enqueue(const headwise::pool_channel& channel,
                           const headwise::on_stream& where) const {
    return headwise::all_gather_heads(channel, where, first_.local_there(), first_.gathered_there(),
                                      second_.local_there(), second_.gathered_there());
  }
  void expect() {
    first_.expect();
    second_.expect();
  }
  void expect_poison() {
    first_.expect_poison();
    second_.expect_poison();
  }

 private:
  gather_call<First> first_;
  gather_call<Second> second_;
};

/// What a step puts on a rank's stream between new operands and what comes of them: every byte that
/// was taken of the rank's memory is compared.
template <class Step, class... Calls>
std::string check_step(pool_rank& me, const headwise::pool_channel& channel, std::uint64_t seed,
                       const Step& step, Calls&... calls) {
  std::uint64_t next = seed;
  (calls.fill(next += 100), ...);
  std::string told;
  ((told += " [" + calls.told() + "]"), ...);
  const auto run = [&]() -> std::string {
    TRY_CUDA(me.memory.upload(me.stream));
    TRY(step());
    TRY_CUDA(me.memory.fetch(me.stream));
    TRY_CUDA(cudaStreamSynchronize(me.stream));
    TRY_OK(channel.state());
    (calls.expect(), ...);
    return me.memory.differences();
  };
  const std::string wrong = run();
  return wrong.empty() ? "" : wrong + told + " seed " + std::to_string(seed);
}

/// The calls, eagerly, one behind the other.
template <class... Calls>
std::string check_calls(pool_rank& me, const headwise::pool_channel& channel, std::uint64_t seed,
                        Calls&... calls) {
  const auto step = [&]() -> std::string {
    headwise::status came_to{};
    ((came_to = came_to.ok() ? calls.enqueue(channel, {me.stream}) : came_to), ...);
    TRY_OK(came_to);
    return "";
  };
  return check_step(me, channel, seed, step, calls...);
}

// ---- graphs ---------------------------------------------------------------------------------

/// Free memory of this rank's GPU, while all ranks stand still.
inline std::string free_memory(const pool_rank& me, std::size_t& free) {
  std::size_t total = 0;
  TRY_OK(me.meet());
  TRY_CUDA(cudaMemGetInfo(&free, &total));
  TRY_OK(me.meet());
  return "";
}

/// A graph of what a rank puts on a stream. All ranks record at the same time.
class recorded {
 public:
  recorded() = default;
  recorded(const recorded&) = delete;
  recorded& operator=(const recorded&) = delete;
  ~recorded() {
    if (handle_ != nullptr) cudaGraphExecDestroy(handle_);
  }

  /// work() returns a status. Mode global: no thread may do anything unsafe meanwhile. Takes no
  /// device memory before the graph is made.
  template <class Work>
  std::string record(const pool_rank& me, cudaStream_t stream, const Work& work) {
    std::size_t before = 0;
    std::size_t after = 0;
    TRY(free_memory(me, before));
    TRY_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    const headwise::status came_to = work();
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    TRY(free_memory(me, after));
    TRY_OK(came_to);
    TRY_CUDA(ended);
    TRY_THAT(before == after, std::to_string(before) + " and " + std::to_string(after));
    std::size_t count = 0;
    TRY_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
    std::vector<cudaGraphNode_t> all(count);
    if (count > 0) TRY_CUDA(cudaGraphGetNodes(graph, all.data(), &count));
    nodes = static_cast<int>(count);
    for (const cudaGraphNode_t node : all) {
      cudaGraphNodeType type{};
      TRY_CUDA(cudaGraphNodeGetType(node, &type));
      kernels += type == cudaGraphNodeTypeKernel ? 1 : 0;
    }
    TRY_CUDA(cudaGraphInstantiate(&handle_, graph, 0));
    TRY_CUDA(cudaGraphDestroy(graph));
    TRY_CUDA(cudaGraphUpload(handle_, stream));
    TRY_CUDA(cudaStreamSynchronize(stream));
    TRY_OK(me.meet());
    return "";
  }
  cudaError_t launch(cudaStream_t stream) const { return cudaGraphLaunch(handle_, stream); }

  int nodes = 0;
  int kernels = 0;

 private:
  cudaGraphExec_t handle_ = nullptr;
};

}  // namespace support
