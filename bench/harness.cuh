// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/core/element.hpp>
#include <headwise/core/status.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// Times operations on a GPU. An operation is a callable that enqueues it on a stream; a graph holds
// at least 20 of them and is replayed, so that neither launches nor the host are in the figure.
//
// Variants that are compared take turns: A A A .. B B B .. A A A .., at least five rounds. A turn
// begins with a replay that is not timed, then times a few; its figure is their median, and a ratio
// is the median over the rounds of the ratio of two turns of one round.
//
// warm: every operation works on the same buffers. cold: operations rotate over buffer sets that
// together exceed four times the L2 cache, at least three, so that none finds its data there.

namespace bench {

using headwise::index_t;

[[noreturn]] inline void die(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what);
  std::exit(1);
}
inline void check(cudaError_t said, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (said != cudaSuccess) die(file, line, cudaGetErrorString(said));
}
inline void check(const headwise::status& said, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (said.ok()) return;
  char text[512];
  headwise::format_status(said, text, sizeof text);
  die(file, line, text);
}
template <class T>
T checked(const headwise::result<T>& made, const char* file = __builtin_FILE(),
          int line = __builtin_LINE()) {
  if (!made.ok()) check(made.why(), file, line);
  return made.value();
}

namespace detail {

__device__ inline std::uint64_t hash(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

template <class T>
__global__ void fill_kernel(T* first, index_t count, float low, float high, std::uint64_t seed) {
  const index_t threads = index_t{gridDim.x} * blockDim.x;
  for (index_t i = index_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += threads) {
    const std::uint64_t bits = hash(hash(seed) + static_cast<std::uint64_t>(i));
    if constexpr (headwise::is_reducible<T>) {
      const float unit = static_cast<float>(bits >> 40) * 0x1p-24f;
      first[i] = headwise::from_float<T>(low + (high - low) * unit);
    } else if constexpr (std::is_same_v<T, std::byte>) {
      first[i] = static_cast<std::byte>(bits & 0xff);
    } else {
      first[i] = static_cast<T>(low) +
                 static_cast<T>((bits >> 32) % static_cast<std::uint64_t>(high - low));
    }
  }
}

template <int>
__global__ void empty_kernel() {}

template <int>
__global__ void hold_kernel(std::uint64_t nanoseconds) {
  std::uint64_t start = 0;
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

}  // namespace detail

inline double median_of(std::vector<double> numbers) {
  if (numbers.empty()) return 0;
  const std::size_t middle = numbers.size() / 2;
  std::sort(numbers.begin(), numbers.end());
  return numbers.size() % 2 == 1 ? numbers[middle] : (numbers[middle - 1] + numbers[middle]) / 2;
}
inline double deviation_of(const std::vector<double>& numbers, double median) {
  std::vector<double> apart;
  for (const double number : numbers) apart.push_back(std::fabs(number - median));
  return median_of(apart);
}

/// Keeps the stream busy while the host enqueues what is timed behind it.
inline void hold(cudaStream_t stream, std::uint64_t nanoseconds) {
  detail::hold_kernel<0><<<1, 1, 0, stream>>>(nanoseconds);
  check(cudaGetLastError());
}

/// A file for figures, with its first line; none where it has no name.
inline std::FILE* open_csv(const std::string& name) {
  if (name.empty()) return nullptr;
  std::FILE* const csv = std::fopen(name.c_str(), "w");
  if (csv == nullptr) die(__FILE__, __LINE__, ("cannot write " + name).c_str());
  std::fputs(
      "bench,shape,variant,temperature,us,noise_percent,gb_per_s,"
      "share_of_copy,ratio_to_baseline,bytes,blocks,threads\n",
      csv);
  return csv;
}

/// Random numbers from low up to high (not included), or any bytes; new ones at each call.
template <class T>
void fill(T* first, index_t count, float low, float high) {
  static std::uint64_t seed = 1;
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<index_t>((count + 255) / 256, 2048));
  detail::fill_kernel<T><<<blocks, 256>>>(first, count, low, high, seed++);
  check(cudaGetLastError());
}

/// `sets` buffers of `count` elements each, random from low to high, aligned to 256 bytes.
template <class T>
class buffers {
 public:
  buffers(index_t sets, index_t count, float low = -1, float high = 1)
      : pitch_(headwise::detail::round_up(count * index_t{sizeof(T)}, 256) / index_t{sizeof(T)}) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_),
                     static_cast<std::size_t>(sets * pitch_) * sizeof(T)));
    fill(data_, sets * pitch_, low, high);
  }
  buffers(const buffers&) = delete;
  buffers& operator=(const buffers&) = delete;
  ~buffers() { cudaFree(data_); }

  T* operator[](index_t set) const { return data_ + set * pitch_; }

 private:
  index_t pitch_;
  T* data_ = nullptr;
};

struct variant {
  std::string name;
  double bytes;  ///< of one operation, read plus written, as the caller counts them
  std::function<void(cudaStream_t, index_t set)> enqueue;
  std::string baseline = {};  ///< what its ratio is to; the first variant where it is not said
};

/// A copy of `bytes`, which reads and writes as many.
template <class To, class From>
variant plain_copy(std::string name, const buffers<To>& to, const buffers<From>& from,
                   index_t bytes) {
  return {std::move(name), 2.0 * static_cast<double>(bytes),
          [&to, &from, bytes](cudaStream_t stream, index_t set) {
            check(cudaMemcpyAsync(to[set], from[set], static_cast<std::size_t>(bytes),
                                  cudaMemcpyDeviceToDevice, stream));
          }};
}

/// A kernel that does nothing: what a launch costs.
inline variant empty_launch() {
  return {"empty_kernel", 0, [](cudaStream_t stream, index_t) {
            detail::empty_kernel<0><<<1, 32, 0, stream>>>();
            check(cudaGetLastError());
          }};
}

class harness {
 public:
  /// Reads the arguments and prints on what it runs. Ends the program with status 77 where there is
  /// no GPU.
  harness(int argc, char** argv, const char* name) : name_(name) {
    read_arguments(argc, argv);
    print_environment();
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (auto& event : events_) check(cudaEventCreate(&event));
    csv_ = open_csv(csv_name_);
    measure_copy();
    std::printf("%-34s %-34s %-4s %10s %7s %8s %7s %8s  %s\n", "shape", "variant", "", "us", "+-%",
                "GB/s", "of copy", "ratio", "to; launches per operation");
  }
  harness(const harness&) = delete;
  harness& operator=(const harness&) = delete;
  ~harness() {
    for (auto& event : events_) cudaEventDestroy(event);
    cudaStreamDestroy(stream_);
    if (csv_ != nullptr) std::fclose(csv_);
  }

  bool wanted(const std::string& shape) {
    const bool yes = (name_ + " " + shape).find(filter_) != std::string::npos;
    matched_ = matched_ || yes;
    return yes;
  }

  /// Buffer sets that a cold run needs of operations that touch at least so many bytes each.
  index_t sets_for(double bytes) const {
    if (quick_) return 3;
    const auto least = static_cast<index_t>(4.0 * static_cast<double>(l2_bytes_) / bytes) + 1;
    const index_t sets = std::max<index_t>(least, 3);
    return sets <= operations_ ? sets : headwise::detail::round_up(sets, per_graph(sets));
  }

  /// Times the variants in turns, cold over `sets` buffer sets and warm on set 0.
  void compare(const std::string& shape, const std::vector<variant>& variants, index_t sets) {
    check(cudaDeviceSynchronize());  // fill() runs on another stream
    for (const bool cold : {false, true}) {
      std::vector<subject> subjects;
      for (const variant& one : variants) {
        // Graphs of the same size, so that what a replay costs beside its operations is the same.
        subjects.push_back(capture(one, cold ? sets : 1, operations_over(sets)));
      }
      run(subjects);
      for (const subject& one : subjects) report(shape, cold, one, subjects);
      release(subjects);
    }
  }

  /// A line beside the table, not in the CSV.
  void note(const std::string& text) const { std::printf("  %s\n", text.c_str()); }

  /// The program's exit status. That no shape has the filter in its name is no failure: several
  /// benches may be run with one filter.
  int finish() const {
    if (!matched_) std::printf("no shape has '%s' in its name\n", filter_.c_str());
    return 0;
  }

 private:
  static constexpr index_t most_graphs = 64;
  static constexpr std::size_t replays_per_turn = 6;
  static constexpr std::size_t least_rounds = 5;
  static constexpr std::size_t most_rounds = 200;

  /// A variant and its figures, in microseconds of one operation.
  struct subject {
    const variant* what = nullptr;
    std::vector<cudaGraphExec_t> graphs = {};
    double operations = 0;  ///< of one graph
    double launches = 0;    ///< kernels of one operation
    double copies = 0;      ///< memory copies of one operation
    unsigned blocks = 0;    ///< of the first kernel
    unsigned threads = 0;
    std::uint64_t hold_ns = 0;
    std::vector<double> replays = {};
    std::vector<double> turns = {};

    double us() const { return median_of(replays); }
    double noise_percent() const { return us() > 0 ? 100 * deviation_of(replays, us()) / us() : 0; }
    /// Standard error of the median, as a part of it; 1.858 is 1.4826 (the deviation of a normal
    /// distribution over its median absolute one) times 1.2533 (median against mean).
    double uncertainty() const {
      return 1.858 * noise_percent() / 100 / std::sqrt(static_cast<double>(replays.size()));
    }
  };

  static void usage(const char* program) {
    std::printf(
        "%s [--csv FILE] [--filter TEXT] [--quick] [--operations N]\n"
        "  --csv FILE      write the figures there\n"
        "  --filter TEXT   only shapes with TEXT in their name\n"
        "  --quick         every shape once, to see that it runs; the figures mean nothing\n"
        "  --operations N  operations in a graph, at least 20 (20)\n",
        program);
  }

  void read_arguments(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string argument = argv[i];
      const bool has_value = i + 1 < argc;
      if (argument == "--quick") {
        quick_ = true;
      } else if (argument == "--csv" && has_value) {
        csv_name_ = argv[++i];
      } else if (argument == "--filter" && has_value) {
        filter_ = argv[++i];
      } else if (argument == "--operations" && has_value) {
        operations_ = std::max<index_t>(20, std::atoi(argv[++i]));
      } else {
        usage(argv[0]);
        std::exit(argument == "--help" ? 0 : 2);
      }
    }
  }

  /// NVML is looked up at run time: it is the driver's, and a machine that builds may lack it.
  static std::string driver_version() {
    char version[96] = "unknown";
    void* library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
    if (library == nullptr) return version;
    const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    const auto get =
        reinterpret_cast<int (*)(char*, unsigned)>(dlsym(library, "nvmlSystemGetDriverVersion"));
    if (init == nullptr || get == nullptr || init() != 0 || get(version, sizeof version) != 0) {
      return "unknown";
    }
    return version;
  }

  void print_environment() {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
      std::puts("no GPU, or no driver for one");
      std::exit(77);
    }
    check(error);
    cudaDeviceProp device{};
    int driver = 0;
    int runtime = 0;
    check(cudaGetDeviceProperties(&device, 0));
    check(cudaDriverGetVersion(&driver));
    check(cudaRuntimeGetVersion(&runtime));
    l2_bytes_ = device.l2CacheSize;
    std::printf("%s; driver %s (CUDA %d.%d); CUDA runtime %d.%d; nvcc %d.%d; L2 %d MiB\n",
                device.name, driver_version().c_str(), driver / 1000, driver % 1000 / 10,
                runtime / 1000, runtime % 1000 / 10, __CUDACC_VER_MAJOR__, __CUDACC_VER_MINOR__,
                device.l2CacheSize >> 20);
  }

  /// What the share of copy bandwidth is of.
  void measure_copy() {
    constexpr index_t bytes = index_t{256} << 20;
    const double moved = 2.0 * static_cast<double>(bytes);
    const index_t sets = sets_for(moved);
    const buffers<float> from(sets, bytes / 4);
    const buffers<float> to(sets, bytes / 4);
    const variant copy = plain_copy("", to, from, bytes);
    check(cudaDeviceSynchronize());
    std::vector<subject> subjects{capture(copy, sets, operations_over(sets))};
    run(subjects);
    copy_gb_per_s_ = moved / subjects[0].us() / 1e3;
    std::printf(
        "copy bandwidth %.0f GB/s (cudaMemcpyAsync of 256 MiB on the device, bytes read "
        "plus bytes written)\n\n",
        copy_gb_per_s_);
    release(subjects);
  }

  index_t per_graph(index_t sets) const {
    return std::max(operations_, headwise::detail::ceil_div(sets, most_graphs));
  }
  /// Of each graph, where operations rotate over so many sets.
  index_t operations_over(index_t sets) const {
    const index_t operations = per_graph(sets);
    return sets <= operations ? headwise::detail::round_up(operations, sets) : operations;
  }

  static void release(const std::vector<subject>& subjects) {
    for (const subject& one : subjects) {
      for (const cudaGraphExec_t graph : one.graphs) check(cudaGraphExecDestroy(graph));
    }
  }

  /// Graphs that together go over all sets. Precondition: `operations` is a multiple of `sets`, or
  /// the other way round.
  subject capture(const variant& what, index_t sets, index_t operations) {
    subject made{&what};
    made.operations = static_cast<double>(operations);
    const index_t graphs = sets > operations ? sets / operations : 1;
    for (index_t g = 0; g < graphs; ++g) {
      check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
      for (index_t i = 0; i < operations; ++i) {
        what.enqueue(stream_, (g * operations + i) % sets);
      }
      cudaGraph_t captured = nullptr;
      check(cudaStreamEndCapture(stream_, &captured));
      if (g == 0) read_nodes(captured, made);
      cudaGraphExec_t graph = nullptr;
      check(cudaGraphInstantiate(&graph, captured, 0));
      check(cudaGraphDestroy(captured));
      made.graphs.push_back(graph);
    }
    warm_up(made);
    return made;
  }

  static void read_nodes(cudaGraph_t graph, subject& into) {
    std::size_t count = 0;
    check(cudaGraphGetNodes(graph, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    if (count > 0) check(cudaGraphGetNodes(graph, nodes.data(), &count));
    double kernels = 0;
    double copies = 0;
    for (const cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type{};
      check(cudaGraphNodeGetType(node, &type));
      copies += type == cudaGraphNodeTypeMemcpy ? 1 : 0;
      if (type != cudaGraphNodeTypeKernel) continue;
      kernels += 1;
      if (into.blocks != 0) continue;
      cudaKernelNodeParams launch{};
      check(cudaGraphKernelNodeGetParams(node, &launch));
      into.blocks = launch.gridDim.x * launch.gridDim.y * launch.gridDim.z;
      into.threads = launch.blockDim.x * launch.blockDim.y * launch.blockDim.z;
    }
    into.launches = kernels / into.operations;
    into.copies = copies / into.operations;
  }

  /// Variants may share buffers: each goes on at the sets where the one before it stopped, or it
  /// would find in the cache what that one just read.
  void replay(const subject& one) {
    check(cudaGraphLaunch(one.graphs[position_++ % one.graphs.size()], stream_));
  }

  /// Every graph once or more, and how long the stream must be held for the host to stay ahead.
  void warm_up(subject& one) {
    using clock = std::chrono::steady_clock;
    std::vector<double> host_us;
    const std::size_t times = std::max<std::size_t>(one.graphs.size(), quick_ ? 1 : 5);
    for (std::size_t i = 0; i < times; ++i) replay(one);
    check(cudaStreamSynchronize(stream_));
    for (int i = 0; i < 5; ++i) {
      const auto start = clock::now();
      check(cudaEventRecord(events_[0], stream_));
      replay(one);
      check(cudaEventRecord(events_[1], stream_));
      host_us.push_back(std::chrono::duration<double, std::micro>(clock::now() - start).count());
      check(cudaStreamSynchronize(stream_));
    }
    const double hold_us = std::min(2 * median_of(host_us) + 10, 20e3);
    one.hold_ns = static_cast<std::uint64_t>(1e3 * hold_us);
  }

  void take_turn(subject& one) {
    const std::size_t timed = quick_ ? 3 : replays_per_turn;
    replay(one);
    for (std::size_t i = 0; i < timed; ++i) {
      hold(stream_, one.hold_ns);
      check(cudaEventRecord(events_[2 * i], stream_));
      replay(one);
      check(cudaEventRecord(events_[2 * i + 1], stream_));
    }
    check(cudaStreamSynchronize(stream_));
    std::vector<double> turn;
    for (std::size_t i = 0; i < timed; ++i) {
      float ms = 0;
      check(cudaEventElapsedTime(&ms, events_[2 * i], events_[2 * i + 1]));
      turn.push_back(1e3 * static_cast<double>(ms) / one.operations);
    }
    one.replays.insert(one.replays.end(), turn.begin(), turn.end());
    one.turns.push_back(median_of(turn));
  }

  /// Rounds until every median is known to half a percent, or a second is over.
  void run(std::vector<subject>& subjects) {
    using clock = std::chrono::steady_clock;
    const auto limit = clock::now() + std::chrono::seconds(1);
    const std::size_t least = quick_ ? 1 : least_rounds;
    for (std::size_t round = 0; round < most_rounds; ++round) {
      const bool settled = std::all_of(subjects.begin(), subjects.end(), [](const subject& one) {
        return one.uncertainty() < 0.005;
      });
      if (round >= least && (quick_ || settled || clock::now() > limit)) break;
      for (subject& one : subjects) take_turn(one);
    }
  }

  void report(const std::string& shape, bool cold, const subject& one,
              const std::vector<subject>& all) const {
    const variant& what = *one.what;
    const subject* baseline = &all[0];
    if (!what.baseline.empty()) {
      const auto found = std::find_if(all.begin(), all.end(), [&](const subject& other) {
        return other.what->name == what.baseline;
      });
      if (found == all.end()) die(__FILE__, __LINE__, ("no variant " + what.baseline).c_str());
      baseline = &*found;
    }
    std::vector<double> ratios;
    for (std::size_t i = 0; i < one.turns.size(); ++i) {
      ratios.push_back(one.turns[i] / baseline->turns[i]);
    }
    const double ratio = median_of(ratios);
    const double gb_per_s = what.bytes / one.us() / 1e3;
    const double share = gb_per_s / copy_gb_per_s_;
    const char* const temperature = cold ? "cold" : "warm";
    std::printf("%-34s %-34s %-4s %10.3f %7.2f %8.0f %7.3f %8.3f  %s; %g", shape.c_str(),
                what.name.c_str(), temperature, one.us(), one.noise_percent(), gb_per_s, share,
                ratio, baseline->what->name.c_str(), one.launches);
    if (one.copies > 0) std::printf(" and %g copies", one.copies);
    std::printf("\n");
    std::fflush(stdout);
    if (csv_ == nullptr) return;
    std::fprintf(csv_, "%s,%s,%s,%s,%.4f,%.3f,%.1f,%.4f,%.4f,%.0f,%u,%u\n", name_.c_str(),
                 shape.c_str(), what.name.c_str(), temperature, one.us(), one.noise_percent(),
                 gb_per_s, share, ratio, what.bytes, one.blocks, one.threads);
    std::fflush(csv_);
  }

  std::string name_;
  std::string csv_name_;
  std::string filter_;
  bool quick_ = false;
  bool matched_ = false;
  index_t operations_ = 20;
  std::size_t position_ = 0;
  int l2_bytes_ = 0;
  double copy_gb_per_s_ = 1;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t events_[2 * replays_per_turn] = {};
  std::FILE* csv_ = nullptr;
};

}  // namespace bench
