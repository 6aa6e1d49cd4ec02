// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/pool/channel.cuh>
#include <headwise/pool/memory.cuh>
#include <headwise/transport/call_check.hpp>
#include <headwise/view/slice.hpp>

#include <chrono>

// A peer pool: channels in memory that the GPUs of all ranks reach, and what is done collectively
// around them. docs/10_peer_pool.md argues for each invariant.

namespace headwise::inline v0 {

/// Equal on all ranks.
struct pool_options {
  pool_capacity capacity{};
  /// How long a kernel waits for its peers.
  std::chrono::nanoseconds timeout = std::chrono::seconds(10);
  /// Channels that are in use at the same time. The kernels of that many, of all ranks on a GPU,
  /// must be resident together, and get as many blocks each as leave room for the others.
  int concurrent_channels = 1;
  /// Blocks of a kernel at most; 0: as many as there is room for.
  index_t blocks = 0;
  /// Which protocol a call takes; nothing: default_protocol_table().
  const protocol_table* table = nullptr;
  /// What the kernels start counting from.
  std::uint64_t first_epoch = 0;
};

/// What is fastest on the boards that were measured (docs/measurements.md). `far`: memory of the
/// host.
constexpr protocol_table default_protocol_table(bool far, int ranks) noexcept {
  protocol_table table;
  // Twice the bytes cost more the more peers there are to send them to.
  const index_t ll_up_to = far ? 0 : (index_t{768} << 10) / detail::greater(ranks - 1, 1);
  for (protocol_table::steps* each : {&table.reduce_scatter, &table.all_gather}) {
    each->at[0] = {ll_up_to, protocol::ll};
    for (int i = 1; i < protocol_table::max_steps; ++i) each->at[i] = {INT64_MAX, protocol::push};
  }
  return table;
}

namespace detail {

/// What CUDA said of something that a capture forbids. Errors: invalid_argument, cuda_failed.
inline status capture_status(cudaError_t said) noexcept {
  if (said != cudaErrorStreamCaptureUnsupported && said != cudaErrorStreamCaptureInvalidated &&
      said != cudaErrorStreamCaptureImplicit) {
    return cuda_status(said, "device");
  }
  static_cast<void>(cudaGetLastError());
  return failure(errc::invalid_argument, "capture",
                 "a stream is being captured: open() and prepare() before the capture begins");
}

/// That no rank is in a capture, which forbids to take memory and to wait for the device. Errors:
/// invalid_argument, cuda_failed, those of `ranks`.
inline status require_no_capture(bootstrap_ref ranks) noexcept {
  // Of streams that wait for the legacy one CUDA answers, and leaves the capture as it is. All
  // ranks ask before one of them goes on: the next step ends a capture of any rank on its GPU.
  cudaStreamCaptureStatus of_legacy{};
  const status asked = unanimous(
      ranks, capture_status(cudaStreamIsCapturing(cudaStreamLegacy, &of_legacy)), "capture");
  if (!asked.ok()) return asked;
  // Of other streams it tells by refusing only, and their capture is lost: memory in the modes
  // global and thread-local, whatever GPU the stream is of; a wait for the device in all modes.
  void* taken = nullptr;
  cudaError_t said = cudaMalloc(&taken, 1);
  if (said == cudaSuccess) said = cudaFree(taken);
  if (said == cudaSuccess) said = cudaDeviceSynchronize();
  return unanimous(ranks, capture_status(said), "capture");
}

}  // namespace detail

/// Channels of one group of ranks. Not copied and not moved; close() before it is destroyed, on all
/// ranks: what it would free, peers may still write to, so that a pool that was not closed leaks
/// its memory instead.
///
/// All but channel() is collective, blocks, and comes to the same on all ranks. The device that is
/// current is this rank's, in every call.
template <class Memory = automatic_memory>
class peer_pool {
 public:
  static constexpr int max_channels = 64;

  peer_pool() = default;
  explicit peer_pool(const Memory& memory) noexcept : memory_(memory) {}
  peer_pool(const peer_pool&) = delete;
  peer_pool& operator=(const peer_pool&) = delete;

  /// What one channel takes of each rank's memory, in bytes. Errors: those of the options.
  static result<index_t> bytes_required(int ranks, const pool_options& options,
                                        index_t blocks) noexcept {
    const result<detail::slab_layout> made =
        detail::slab_layout::make(ranks, options.capacity, blocks * detail::pool_chunks_per_block);
    if (!made.ok()) return made.why();
    return made.value().bytes;
  }

  /// Compares the options over all ranks, agrees on the blocks of a kernel, loads the kernels, and
  /// sends a pattern through a channel both ways, with each protocol, to see it arrive. Not while a
  /// stream is being captured, as prepare().
  /// Errors: unsupported (ranks; a grid that could not be resident), invalid_argument (an option, a
  /// capture), rank_mismatch (naming the option), timed_out, cuda_failed, those of the memory and
  /// of `ranks`.
  status open(bootstrap_ref ranks, const pool_options& options) noexcept {
    if (open_) return failure(errc::invalid_argument, "pool", "is open already");
    const status began = begin(ranks, options);
    if (!began.ok()) return began;
    open_ = true;
    status works = try_out(ranks);
    if constexpr (requires { memory_.fall_back(); }) {
      // What a driver says of peer access and what becomes of a write are two things.
      if (!works.ok() && count_ == 0 && memory_.fall_back().ok()) works = try_out(ranks);
    }
    // A channel that could not be given back is left for close().
    open_ = works.ok() || count_ > 0;
    return works;
  }

  /// Makes channels of these names, in the order of the names, whatever order they are given in.
  /// Not while a stream is being captured, of any mode: that is refused on all ranks. The capture
  /// is lost, unless its stream is one that waits for the legacy stream.
  /// Errors: invalid_argument (a name twice, too long, or prepared already; a capture),
  /// capacity_exceeded (64 channels), rank_mismatch (other names on another rank), cuda_failed,
  /// those of the memory and of `ranks`.
  status prepare(bootstrap_ref ranks, std::initializer_list<const char*> names) noexcept {
    return prepare(ranks, std::span(names.begin(), names.size()));
  }
  status prepare(bootstrap_ref ranks, std::span<const char* const> names) noexcept {
    const char* sorted[max_channels] = {};
    const status taken = detail::unanimous(ranks, sort_names(names, sorted), "channels");
    if (!taken.ok()) return taken;
    std::uint64_t catalogue = names.size();
    for (std::size_t i = 0; i < names.size(); ++i) {
      catalogue = catalogue * 0x100000001b3u ^ detail::hash_of(sorted[i]);
    }
    const status alike = compare(
        ranks, "prepare", {{"names", static_cast<index_t>(catalogue)}, {"channels", count_}});
    if (!alike.ok()) return alike;
    const status uncaptured = detail::require_no_capture(ranks);
    if (!uncaptured.ok()) return uncaptured;
    const int before = count_;
    status made{};
    for (std::size_t i = 0; i < names.size() && made.ok(); ++i) {
      made = make_channel(ranks, sorted[i]);
    }
    if (made.ok()) made = detail::unanimous(ranks, detail::load_pool_kernels(), "load kernels");
    // All of them or none.
    while (!made.ok() && count_ > before && free_channel(ranks).ok()) {
    }
    return made;
  }

  /// Another protocol table from here on, for the channels that there are and for those that
  /// follow. A handle of before has its own; graphs keep what they were captured with. Nothing of
  /// the pool runs meanwhile. Errors: invalid_argument (not open), rank_mismatch, those of `ranks`.
  status use(bootstrap_ref ranks, const protocol_table& table) noexcept {
    const status able = detail::unanimous(
        ranks, open_ ? status{} : failure(errc::invalid_argument, "pool", "is not open"), "table");
    if (!able.ok()) return able;
    const status alike = compare(ranks, "use", {{"table", static_cast<index_t>(hash_of(table))}});
    if (!alike.ok()) return alike;
    table_ = table;
    options_.table = &table_;
    for (int i = 0; i < count_; ++i) channels_[i].table_ = table;
    return {};
  }

  /// A prepared channel. Errors: invalid_argument.
  result<pool_channel> channel(const char* name) const noexcept {
    for (int i = 0; i < count_; ++i) {
      if (std::strcmp(channels_[i].name_, name) == 0) return channels_[i];
    }
    return failure(errc::invalid_argument, "channel",
                   "of this name is not prepared: call prepare() on all ranks, before any capture");
  }

  int channel_count() const noexcept { return count_; }
  /// Blocks that a kernel has at most.
  index_t blocks() const noexcept { return blocks_; }
  index_t bytes_of_channel() const noexcept { return layout_.bytes; }
  const Memory& memory() const noexcept { return memory_; }

  /// Gives back the channels that were prepared last, down to `channels` of them. Graphs that use
  /// them are gone, and nothing of them runs any more.
  /// Errors: out_of_range, those of the memory.
  status roll_back(bootstrap_ref ranks, int channels) noexcept {
    const status taken =
        detail::unanimous(ranks,
                          channels >= 0 && channels <= count_
                              ? status{}
                              : failure(errc::out_of_range, "channels",
                                        "there are no more than this", channels, count_),
                          "channels");
    if (!taken.ok()) return taken;
    while (count_ > channels) {
      const status freed = free_channel(ranks);
      if (!freed.ok()) return freed;
    }
    return {};
  }

  /// Makes channels that have failed usable again. Waits for what is on the device; kernels that
  /// wait for peers come to an end within the time-out.
  /// Errors: cuda_failed, those of `ranks`.
  status reset(bootstrap_ref ranks) noexcept {
    const status drained =
        detail::unanimous(ranks, detail::cuda_status(cudaDeviceSynchronize(), "device"), "reset");
    if (!drained.ok()) return drained;
    for (int i = 0; i < count_; ++i) {
      const status restarted = restart_channel(ranks, i);
      if (!restarted.ok()) return restarted;
    }
    return {};
  }

  /// Errors: those of the memory and of `ranks`. A pool that could not be closed can be closed
  /// again.
  status close(bootstrap_ref ranks) noexcept {
    // Without a channel there is nothing that peers could still use.
    if (!open_ || count_ == 0) {
      open_ = false;
      return {};
    }
    const status freed = roll_back(ranks, 0);
    if (freed.ok()) open_ = false;
    return freed;
  }

 private:
  static constexpr const char* probe_name = "probe";

  status compare(bootstrap_ref ranks, const char* what,
                 std::initializer_list<call_field> fields) const noexcept {
    call_signature call{what, {}};
    int i = 0;
    for (const call_field& field : fields) call.fields[i++] = field;
    detail::call_record all[max_ranks];
    const status gathered = detail::gather_each(ranks, detail::record_of(call, {}), all);
    if (!gathered.ok()) return gathered;
    return detail::compare_records(all, ranks.size(), ranks.rank(), call);
  }

  status begin(bootstrap_ref ranks, const pool_options& options) noexcept {
    options_ = options;
    const auto checked = [&]() -> status {
      const status ranks_ok = require_supported_ranks(ranks.size());
      if (!ranks_ok.ok()) return ranks_ok;
      if (options.timeout.count() < 1) {
        return failure(errc::invalid_argument, "timeout", "must be positive (nanoseconds)",
                       options.timeout.count(), 1);
      }
      if (options.concurrent_channels < 1) {
        return failure(errc::invalid_argument, "concurrent_channels", "must be positive",
                       options.concurrent_channels, 1);
      }
      return detail::slab_layout::make(ranks.size(), options.capacity, 1).why();
    };
    const status valid = detail::unanimous(ranks, checked(), "options");
    if (!valid.ok()) return valid;
    const status alike = compare(
        ranks, "open",
        {{"tokens", options.capacity.tokens},
         {"heads", options.capacity.heads},
         {"row_bytes", options.capacity.row_bytes},
         {"ll_bytes", options.capacity.ll_bytes},
         {"timeout", options.timeout.count()},
         {"concurrent_channels", options.concurrent_channels},
         {"blocks", options.blocks},
         {"table", options.table == nullptr ? 0 : static_cast<index_t>(hash_of(*options.table))},
         {"first_epoch", static_cast<index_t>(options.first_epoch)}});
    if (!alike.ok()) return alike;
    // Before other memory is tried, which would not help.
    const status uncaptured = detail::require_no_capture(ranks);
    if (!uncaptured.ok()) return uncaptured;
    if (options.table != nullptr) {
      // The caller's need not outlive this call: channels are made later.
      table_ = *options.table;
      options_.table = &table_;
    }
    return agree_on_blocks(ranks);
  }

  static std::uint64_t hash_of(const protocol_table& table) noexcept {
    detail::signature_of hash;
    for (const protocol_table::steps* each : {&table.reduce_scatter, &table.all_gather}) {
      for (const protocol_table::step& one : each->at) {
        hash.add(static_cast<std::uint64_t>(one.up_to)).add(static_cast<std::uint64_t>(one.which));
      }
    }
    return hash.bits();
  }

  /// As many as all GPUs have room for, over all channels and ranks.
  status agree_on_blocks(bootstrap_ref ranks) noexcept {
    struct gpu_record {
      std::uint64_t code = 0;
      index_t blocks = 0;
      unsigned char uuid[16] = {};
    };
    gpu_record mine;
    int device = 0;
    cudaDeviceProp properties{};
    cudaError_t said = cudaGetDevice(&device);
    if (said == cudaSuccess) said = cudaGetDeviceProperties(&properties, device);
    const status asked = detail::unanimous(ranks, detail::cuda_status(said, "device"), "device");
    if (!asked.ok()) return asked;
    mine.blocks = properties.multiProcessorCount * detail::pool_blocks_per_multiprocessor;
    std::memcpy(mine.uuid, &properties.uuid, sizeof mine.uuid);
    gpu_record all[max_ranks];
    const status gathered = detail::gather_each(ranks, mine, all);
    if (!gathered.ok()) return gathered;
    index_t blocks = INT64_MAX;
    alone_ = options_.concurrent_channels == 1;
    for (int r = 0; r < ranks.size(); ++r) {
      index_t sharing = 0;
      for (int other = 0; other < ranks.size(); ++other) {
        if (std::memcmp(all[r].uuid, all[other].uuid, sizeof mine.uuid) == 0) ++sharing;
      }
      if (sharing > 1) alone_ = false;
      blocks = detail::lesser(blocks, all[r].blocks / (sharing * options_.concurrent_channels));
    }
    if (options_.blocks > 0) {
      if (blocks < options_.blocks) {
        return failure(errc::unsupported, "blocks",
                       "of all channels and ranks would not be resident together (expected: the "
                       "most of one)",
                       options_.blocks, blocks);
      }
      blocks = options_.blocks;
    }
    if (blocks < 1) {
      return failure(errc::unsupported, "concurrent_channels",
                     "more kernels than can be resident together on a GPU",
                     options_.concurrent_channels, 0);
    }
    blocks_ = blocks;
    const result<detail::slab_layout> made = detail::slab_layout::make(
        ranks.size(), options_.capacity, blocks * detail::pool_chunks_per_block);
    if (!made.ok()) return made.why();
    layout_ = made.value();
    return {};
  }

  status sort_names(std::span<const char* const> names, const char** sorted) const noexcept {
    if (!open_) return failure(errc::invalid_argument, "pool", "is not open");
    if (names.size() + static_cast<std::size_t>(count_) > max_channels) {
      return failure(errc::capacity_exceeded, "channels", "more than a pool has",
                     static_cast<index_t>(names.size()) + count_, max_channels);
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
      const char* const name = names[i];
      if (name == nullptr || *name == '\0' || std::strlen(name) >= detail::most_channel_name) {
        return failure(errc::invalid_argument, "name", "has from 1 to 47 characters");
      }
      std::size_t j = i;
      for (; j > 0 && std::strcmp(sorted[j - 1], name) > 0; --j) sorted[j] = sorted[j - 1];
      sorted[j] = name;
      if ((j > 0 && std::strcmp(sorted[j - 1], name) == 0) || channel(name).ok()) {
        return failure(errc::invalid_argument, "name", "a channel of this name was prepared");
      }
    }
    return {};
  }

  status make_channel(bootstrap_ref ranks, const char* name) noexcept {
    const result<mapped_slab> mapped = memory_.map(ranks, layout_.bytes);
    if (!mapped.ok()) return mapped.why();
    detail::channel_state* state = nullptr;
    std::uint64_t* report = nullptr;
    cudaError_t said = cudaMalloc(&state, sizeof *state);
    if (said == cudaSuccess) {
      said = cudaHostAlloc(&report, sizeof *report, cudaHostAllocMapped | cudaHostAllocPortable);
    }
    if (said == cudaSuccess) *report = 0;
    const detail::channel_state begin{options_.first_epoch, 0, options_.first_epoch, 0};
    if (said == cudaSuccess) said = cudaMemcpy(state, &begin, sizeof begin, cudaMemcpyHostToDevice);
    if (said == cudaSuccess) said = cudaDeviceSynchronize();
    cudaPointerAttributes place{};
    if (said == cudaSuccess) {
      said = cudaPointerGetAttributes(&place, mapped.value().of[ranks.rank()]);
    }
    status made = detail::unanimous(ranks, detail::cuda_status(said, "channel"), "channel");
    // Callers may have mapped both kinds: a slab in the host's memory makes all of them far.
    bool far = place.type == cudaMemoryTypeHost;
    bool all_far[max_ranks] = {};
    if (made.ok()) made = detail::gather_each(ranks, far, all_far);
    for (int r = 0; r < ranks.size(); ++r) far = far || all_far[r];
    slabs_[count_] = mapped.value();
    pool_channel& channel = channels_[count_];
    channel = pool_channel{};
    for (int r = 0; r < ranks.size(); ++r) channel.ports_.slab[r] = slabs_[count_].of[r];
    channel.ports_.layout = layout_;
    channel.ports_.state = state;
    // With unified addressing one pointer serves host and device.
    channel.ports_.report = report;
    channel.ports_.patience = static_cast<std::uint64_t>(options_.timeout.count());
    channel.ports_.rank = ranks.rank();
    channel.ports_.ranks = ranks.size();
    channel.ports_.alone = alone_;
    channel.ports_.far = far;
    channel.table_ =
        options_.table != nullptr ? *options_.table : default_protocol_table(far, ranks.size());
    channel.capacity_ = options_.capacity;
    // So much in flight is enough for what is between a GPU and the host's memory; more of it only
    // makes the first chunks wait for the last.
    constexpr index_t far_blocks = 64;
    channel.blocks_ = far && options_.blocks == 0 ? detail::lesser(blocks_, far_blocks) : blocks_;
    channel.chunks_ = channel.blocks_ * detail::pool_chunks_per_block;
    std::strncpy(channel.name_, name, detail::most_channel_name - 1);
    ++count_;
    if (!made.ok()) static_cast<void>(free_channel(ranks));
    return made;
  }

  status free_channel(bootstrap_ref ranks) noexcept {
    pool_channel& last = channels_[count_ - 1];
    const status unmapped = memory_.unmap(ranks, slabs_[count_ - 1]);
    if (!unmapped.ok()) return unmapped;
    cudaError_t said = cudaFree(last.ports_.state);
    if (said == cudaSuccess) said = cudaFreeHost(last.ports_.report);
    last = pool_channel{};
    --count_;
    return detail::cuda_status(said, "channel");
  }

  /// Precondition: nothing runs on any of the ranks.
  status restart_channel(bootstrap_ref ranks, int which) noexcept {
    detail::channel_ports& ports = channels_[which].ports_;
    detail::channel_state state{};
    status came_to = detail::cuda_status(
        cudaMemcpy(&state, ports.state, sizeof state, cudaMemcpyDeviceToHost), "channel");
    std::uint64_t epochs[max_ranks] = {};
    came_to = detail::unanimous(ranks, came_to, "reset");
    if (!came_to.ok()) return came_to;
    came_to = detail::gather_each(ranks, state.epoch, epochs);
    if (!came_to.ok()) return came_to;
    std::uint64_t last = 0;
    for (int r = 0; r < ranks.size(); ++r) last = detail::greater(last, epochs[r]);
    // No epoch is used twice: one that was begun on some ranks only left its marks.
    last = detail::epoch_after(last);
    state = {last, 0, last, 0};
    cudaError_t said =
        cudaMemset(ports.slab[ports.rank], 0, static_cast<std::size_t>(ports.layout.payload));
    if (said == cudaSuccess) {
      said = cudaMemcpy(ports.state, &state, sizeof state, cudaMemcpyHostToDevice);
    }
    if (said == cudaSuccess) said = cudaDeviceSynchronize();
    const status restarted = detail::unanimous(ranks, detail::cuda_status(said, "reset"), "reset");
    if (restarted.ok()) *static_cast<volatile std::uint64_t*>(ports.report) = 0;
    return restarted;
  }

  /// Whether a channel does what it should, on all ranks.
  status try_out(bootstrap_ref ranks) noexcept {
    status works = prepare(ranks, {probe_name});
    if (!works.ok()) return works;
    works = detail::unanimous(ranks, probe(ranks), probe_name);
    const status removed = roll_back(ranks, 0);
    return works.ok() ? removed : works;
  }

  /// Gathers a pattern with the kernels that calls use, and reads it back. Errors: unsupported
  /// (bytes got lost), cuda_failed, pool_channel::state().
  status probe(bootstrap_ref group) const noexcept {
    const int ranks = group.size();
    if (ranks == 1) return {};
    using pattern = std::uint8_t;
    const index_t heads = detail::lesser(options_.capacity.heads, index_t{8});
    const index_t width = detail::lesser(options_.capacity.row_bytes, index_t{512});
    const index_t part = heads * width;
    const auto bytes = static_cast<std::size_t>(part * (ranks + 1));
    pattern* on_device = nullptr;
    pattern* on_host = nullptr;
    cudaStream_t stream = nullptr;
    cudaError_t said = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (said == cudaSuccess) said = cudaMalloc(&on_device, bytes);
    if (said == cudaSuccess) said = cudaMallocHost(&on_host, bytes);
    // What takes memory may wait for the device, where a peer that shares it would wait already.
    status came_to = detail::unanimous(group, detail::cuda_status(said, "probe"), probe_name);
    pool_channel channel = channels_[0];
    const auto value = [&](int rank, index_t i, protocol how) {
      return static_cast<pattern>(1 + rank * 37 + i * 11 + (i >> 8) + static_cast<index_t>(how));
    };
    for (const protocol how : {protocol::ll, protocol::push, protocol::pull}) {
      const detail::pool_rows rows{heads, width};
      if (!channel.ports_.layout.fits(how, pool_operation::all_gather, rows)) continue;
      channel.table_ = protocol_table::only(how);
      for (int turn = 0; turn < 2 && came_to.ok(); ++turn) {
        std::memset(on_host, 0, bytes);
        for (index_t i = 0; i < part; ++i) on_host[i] = value(channel.rank(), i + turn, how);
        const auto rows_view = [&](pattern* data, index_t count) {
          return make_view<memory_space::device>(
              data, packed(extent<axis::token>(1), extent<axis::head>(count),
                           extent<axis::head_dim>(width)));
        };
        pattern* const gathered = on_device + part;
        said = cudaMemcpyAsync(on_device, on_host, bytes, cudaMemcpyHostToDevice, stream);
        came_to = detail::cuda_status(said, "probe");
        if (came_to.ok()) {
          came_to = pool_launcher{channel, stream}.all_gather_heads(
              rows_view(on_device, heads), rows_view(gathered, heads * ranks));
        }
        if (!came_to.ok()) break;
        said = cudaMemcpyAsync(on_host, gathered, static_cast<std::size_t>(part * ranks),
                               cudaMemcpyDeviceToHost, stream);
        if (said == cudaSuccess) said = cudaStreamSynchronize(stream);
        came_to = detail::cuda_status(said, "probe");
        if (came_to.ok()) came_to = channel.state();
        index_t lost = 0;
        for (int r = 0; r < ranks && came_to.ok(); ++r) {
          for (index_t i = 0; i < part; ++i) {
            lost += on_host[r * part + i] != value(r, i + turn, how) ? 1 : 0;
          }
        }
        if (lost > 0) {
          came_to = failure(errc::unsupported, to_string(how),
                            "bytes (got) of a pattern did not arrive in a peer's memory", lost, 0);
        }
      }
    }
    cudaFreeHost(on_host);
    cudaFree(on_device);
    if (stream != nullptr) cudaStreamDestroy(stream);
    static_cast<void>(cudaGetLastError());
    return came_to;
  }

  Memory memory_{};
  pool_options options_{};
  protocol_table table_{};
  detail::slab_layout layout_{};
  index_t blocks_ = 0;
  bool alone_ = false;
  bool open_ = false;
  int count_ = 0;
  mapped_slab slabs_[max_channels] = {};
  pool_channel channels_[max_channels] = {};
};

}  // namespace headwise::inline v0
