// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/core/cuda_status.cuh>
#include <headwise/core/profiler_range.cuh>
#include <headwise/transport/call_check.hpp>
#include <headwise/transport/transport.hpp>

#include <cuda_runtime_api.h>
#include <nccl.h>

// Ranks that have a NCCL communicator, on one machine or on many. Compiles with nvcc, and with any
// C++20 compiler that finds the headers of CUDA and NCCL.

#if NCCL_VERSION_CODE < 21903
#error "Headwise needs NCCL 2.19.3 or newer"
#endif

#if NCCL_VERSION_CODE >= 22800
// Weak, so that a program which was built with a newer header loads where NCCL is older, and hears
// of it from nccl::make().
extern "C" __attribute__((weak)) ncclResult_t ncclAlltoAll(const void*, void*, size_t,
                                                           ncclDataType_t, ncclComm_t,
                                                           cudaStream_t);
#endif

namespace headwise::inline v0 {

/// The oldest NCCL that this header works with, as NCCL_VERSION_CODE counts: 2.19.3.
inline constexpr int least_nccl_version = 21903;

/// Writes a version as "2.28.9"; always terminated; returns the length of the whole text.
constexpr std::size_t format_nccl_version(int version, char* buffer,
                                          std::size_t capacity) noexcept {
  detail::text_sink out{buffer, capacity};
  out.put(index_t{version / 10000});
  out.put('.');
  out.put(index_t{version / 100 % 100});
  out.put('.');
  out.put(index_t{version % 100});
  return out.finish();
}

/// How messages that are equal and side by side are exchanged.
enum class nccl_method : std::uint8_t {
  automatic,
  send_receive,  ///< a group of ncclSend and ncclRecv; what a rank has for itself does not move
  all_to_all,    ///< ncclAlltoAll, from NCCL 2.28 on; moves a rank's own (unused) part as well
};

constexpr const char* to_string(nccl_method method) noexcept {
  switch (method) {
    case nccl_method::automatic: return "automatic";
    case nccl_method::send_receive: return "ncclSend and ncclRecv";
    case nccl_method::all_to_all: return "ncclAlltoAll";
  }
  return "unknown";
}

/// Equal on all ranks.
struct nccl_options {
  nccl_method method = nccl_method::automatic;
  /// The size that the communicator must have; 0: any.
  int ranks = 0;
  /// Bytes per peer from which a reduce-scatter that can go straight from the caller's memory does:
  /// its LSEs are then a second transfer to the same peer, which NCCL takes one behind the other.
  /// docs/measurements.md has the figures of the default.
  index_t straight_from = index_t{6} << 20;
  /// Before each call outside of a capture, exchange what the ranks believe that they are about to
  /// do, compare it, and refuse the call on all of them where it differs, naming the rank. Waits
  /// for the stream: for finding bugs, not for serving.
  bool verify = false;
};

/// Bytes of device memory that nccl::make() takes as scratch: what barrier(), agree() and `verify`
/// need.
constexpr index_t nccl_scratch_bytes(index_t ranks) noexcept {
  return (ranks + 1) * index_t{sizeof(detail::call_record)};
}

namespace detail {

/// Errors: nccl_failed.
inline status nccl_status(ncclResult_t said, const char* operand,
                          source_line where = source_line::current()) noexcept {
  if (said == ncclSuccess || said == ncclInProgress) return {};
  return failure(errc::nccl_failed, operand, ncclGetErrorString(said), said, ncclSuccess, "",
                 where);
}

/// A communicator that does not block is waited for: what was asked of it is then on the stream.
/// Errors: nccl_failed.
inline status nccl_settled(ncclComm_t communicator, ncclResult_t said,
                           const char* operand) noexcept {
  while (said == ncclInProgress) {
    const ncclResult_t asked = ncclCommGetAsyncError(communicator, &said);
    if (asked != ncclSuccess) said = asked;
  }
  return nccl_status(said, operand);
}

}  // namespace detail

/// One rank of a caller's communicator, on a caller's stream: a few pointers and numbers. The
/// communicator and the stream outlive it; it is used by one thread at a time.
///
/// Everything is put on the stream and nothing is allocated, so all calls can be captured into a
/// graph. NCCL has no way to tell peers that a rank will not come: where one refuses a call, fails
/// or is gone, the others wait until the communicator is aborted (ncclCommAbort); check() reports
/// what NCCL has found out meanwhile. `verify` is the exception.
class nccl {
 public:
  /// All-gathers go to parts that follow each other.
  static constexpr bool gathers_adjacent = true;

  /// `scratch`: nccl_scratch_bytes() of device memory, aligned to 16, or nothing; then barrier(),
  /// agree() and `verify` are not to be had.
  /// Errors: invalid_argument (no communicator; one of another size, or of a device that is not
  /// current), unsupported (a NCCL that is too old, or lacks the method; more than 16 ranks),
  /// capacity_exceeded, misaligned (the scratch), cuda_failed, nccl_failed.
  static result<nccl> make(ncclComm_t communicator, cudaStream_t stream,
                           std::span<std::byte> scratch = {},
                           const nccl_options& options = {}) noexcept {
    nccl made(communicator, stream, scratch.empty() ? nullptr : scratch.data(), options);
    const status can = made.start(scratch);
    if (!can.ok()) return can;
    return made;
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  cudaStream_t stream() const noexcept { return stream_; }
  /// The same rank, on another stream. NCCL runs what it is given for one communicator in the order
  /// in which it was given it, whatever the stream; that order is the same on all ranks.
  nccl on(cudaStream_t stream) const noexcept {
    nccl other = *this;
    other.stream_ = stream;
    return other;
  }
  /// Of the NCCL that is running, as NCCL_VERSION_CODE counts.
  int version() const noexcept { return version_; }
  index_t straight_from() const noexcept { return options_.straight_from; }
  /// What was chosen; never `automatic`.
  nccl_method method() const noexcept { return options_.method; }

  /// "nccl 2.28.9, ncclSend and ncclRecv", as snprintf writes.
  std::size_t describe(char* buffer, std::size_t capacity) const noexcept {
    char version[24] = {};
    format_nccl_version(version_, version, sizeof version);
    detail::text_sink out{buffer, capacity};
    out.put("nccl ");
    out.put(version);
    out.put(", ");
    out.put(to_string(options_.method));
    return out.finish();
  }

  /// What NCCL has found out by itself (a peer that failed, a network that is gone).
  /// Errors: nccl_failed.
  status check() const noexcept {
    ncclResult_t found = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &found);
    return detail::nccl_status(asked != ncclSuccess ? asked : found, "communicator");
  }

  /// Runs of one chunk are sent one by one, and cut alike at both ends.
  /// Errors: invalid_argument (not one chunk per plane and peer), those of check_chunk(),
  /// cuda_failed, nccl_failed; with `verify` rank_mismatch.
  status exchange(std::span<const send_chunk> send, std::span<const receive_chunk> receive,
                  const call_signature& call) noexcept {
    const auto ranks = static_cast<std::size_t>(size_);
    const auto checked = [&]() -> status {
      if (send.size() != receive.size() || send.size() % ranks != 0) {
        return failure(errc::invalid_argument, "send", "one chunk per plane and rank, both ways",
                       static_cast<index_t>(send.size()), static_cast<index_t>(receive.size()));
      }
      for (std::size_t i = 0; i < send.size(); ++i) {
        const status sent_ok = check_chunk("send", send[i]);
        if (!sent_ok.ok()) return sent_ok;
        const status received_ok = check_chunk("receive", receive[i]);
        if (!received_ok.ok()) return received_ok;
      }
      return {};
    };
    const status chunks_ok = checked();
    if (!chunks_ok.ok()) return refuse(chunks_ok);
    const status same = verify(call, {});
    if (!same.ok()) return same;
    const profiler_range range(call.operation);
    for (std::size_t i = static_cast<std::size_t>(rank_); i < send.size(); i += ranks) {
      const status kept = keep(send[i], receive[i]);
      if (!kept.ok()) return kept;
    }
    const auto moved = [](index_t bytes) { return static_cast<std::size_t>(bytes); };
    if (size_ == 1) return {};
#if NCCL_VERSION_CODE >= 22800
    if (options_.method == nccl_method::all_to_all && call.side_by_side && send.size() == ranks) {
      const auto peer = static_cast<std::size_t>(rank_ == 0 ? 1 : 0);
      const index_t part = send[peer].bytes();
      if (part == 0) return {};
      const index_t before = static_cast<index_t>(peer) * part;
      return finish(ncclAlltoAll(static_cast<const std::byte*>(send[peer].data) - before,
                                 static_cast<std::byte*>(receive[peer].data) - before, moved(part),
                                 ncclUint8, communicator_, stream_));
    }
#endif
    ncclResult_t said = ncclGroupStart();
    for (std::size_t i = 0; i < send.size(); ++i) {
      const auto peer = static_cast<int>(i % ranks);
      if (peer == rank_) continue;
      const auto* from = static_cast<const std::byte*>(send[i].data);
      for (index_t run = 0; goes_on(said) && run < runs_of(send[i]); ++run) {
        said = ncclSend(from + run * send[i].pitch, moved(send[i].run_bytes), ncclUint8, peer,
                        communicator_, stream_);
      }
      auto* to = static_cast<std::byte*>(receive[i].data);
      for (index_t run = 0; goes_on(said) && run < runs_of(receive[i]); ++run) {
        said = ncclRecv(to + run * receive[i].pitch, moved(receive[i].run_bytes), ncclUint8, peer,
                        communicator_, stream_);
      }
    }
    const ncclResult_t ended = ncclGroupEnd();  // in any case: a group must not stay open
    return finish(goes_on(said) ? ended : said);
  }

  /// Errors: invalid_argument (not one chunk per rank), unsupported (parts that do not follow each
  /// other), those of check_chunk(), nccl_failed; with `verify` rank_mismatch.
  status all_gather(const send_chunk& own, std::span<const receive_chunk> receive,
                    const call_signature& call) noexcept {
    const auto checked = [&]() -> status {
      const status own_ok = check_chunk("own", own);
      if (!own_ok.ok()) return own_ok;
      if (receive.size() != static_cast<std::size_t>(size_)) {
        return failure(errc::invalid_argument, "receive", "one chunk per rank",
                       static_cast<index_t>(receive.size()), size_);
      }
      for (std::size_t r = 0; r < receive.size(); ++r) {
        const status received_ok = check_chunk("receive", receive[r]);
        if (!received_ok.ok()) return received_ok;
        const auto* const expected =
            static_cast<const std::byte*>(receive[0].data) + static_cast<index_t>(r) * own.bytes();
        const bool adjacent =
            own.bytes() == 0 || (runs_of(own) == 1 && runs_of(receive[r]) == 1 &&
                                 receive[r].bytes() == own.bytes() && receive[r].data == expected);
        if (!adjacent) {
          return failure(errc::unsupported, "receive",
                         "NCCL gathers equal parts that follow each other without a gap",
                         static_cast<index_t>(r), 0, "rank");
        }
      }
      return {};
    };
    const status chunks_ok = checked();
    if (!chunks_ok.ok()) return refuse(chunks_ok);
    const status same = verify(call, {});
    if (!same.ok() || own.bytes() == 0) return same;
    const profiler_range range(call.operation);
    return finish(ncclAllGather(own.data, receive[0].data, static_cast<std::size_t>(own.bytes()),
                                ncclUint8, communicator_, stream_));
  }

  /// Up to 64 bytes a rank of host memory, through the scratch; waits for the stream.
  /// Errors: invalid_argument, unsupported (no scratch, or the stream is being captured),
  /// cuda_failed, nccl_failed.
  status all_gather_host(const send_chunk& own, std::span<const receive_chunk> receive,
                         const call_signature& call) noexcept {
    constexpr index_t most = 64;
    if (own.bytes() > most || runs_of(own) > 1) {
      return failure(errc::invalid_argument, "own", "one run of so many bytes at most", own.bytes(),
                     most);
    }
    if (receive.size() != static_cast<std::size_t>(size_)) {
      return failure(errc::invalid_argument, "receive", "one chunk per rank",
                     static_cast<index_t>(receive.size()), size_);
    }
    for (const receive_chunk& one : receive) {
      if (one.bytes() == own.bytes() && runs_of(one) == runs_of(own)) continue;
      return failure(errc::invalid_argument, "receive", "one run of as many bytes as are sent",
                     one.bytes(), own.bytes());
    }
    detail::call_record mine{};
    detail::call_record all[max_ranks];
    mine.operation = detail::hash_of(call.operation);
    std::memcpy(mine.values, own.data, static_cast<std::size_t>(own.bytes()));
    const status gathered = gather_records(mine, all, call.operation);
    if (!gathered.ok()) return gathered;
    for (std::size_t r = 0; r < receive.size(); ++r) {
      if (all[r].operation != mine.operation) {
        return failure(errc::rank_mismatch, call.operation, detail::seen_on[r], 0, 0, "operation");
      }
      std::memcpy(receive[r].data, all[r].values, static_cast<std::size_t>(own.bytes()));
    }
    return {};
  }

  /// On the stream: what comes behind it there runs when all ranks have come to it.
  /// Errors: unsupported (no scratch), nccl_failed; with `verify` rank_mismatch.
  status barrier() noexcept {
    const status scratch_ok = require_scratch("barrier");
    if (!scratch_ok.ok()) return scratch_ok;
    const status same = verify({"barrier", {}}, {});
    if (!same.ok()) return same;
    return finish(ncclAllGather(scratch_, scratch_ + sizeof(detail::call_record), 1, ncclUint8,
                                communicator_, stream_));
  }

  /// With `verify` the peers of this call get rank_mismatch, with the code of `why` as its axis and
  /// this rank in the message; without, they wait for this rank. Returns `why`.
  status refuse(const status& why) noexcept {
    static_cast<void>(verify({"refused", {}}, why).ok());
    return why;
  }

 private:
  nccl(ncclComm_t communicator, cudaStream_t stream, std::byte* scratch,
       const nccl_options& options) noexcept
      : communicator_(communicator), stream_(stream), scratch_(scratch), options_(options) {}

  status start(std::span<std::byte> scratch) noexcept {
    if (communicator_ == nullptr) {
      return failure(errc::invalid_argument, "communicator", "is a null pointer");
    }
    const status told = detail::nccl_status(ncclGetVersion(&version_), "nccl");
    if (!told.ok()) return told;
    if (version_ < least_nccl_version || version_ / 10000 != NCCL_VERSION_CODE / 10000) {
      return failure(errc::unsupported, "nccl",
                     "the NCCL that is running (got) is too old, or of another major version than "
                     "its header (expected)",
                     version_, NCCL_VERSION_CODE);
    }
    int device = 0;
    int current = 0;
    const ncclResult_t asked[] = {ncclCommCount(communicator_, &size_),
                                  ncclCommUserRank(communicator_, &rank_),
                                  ncclCommCuDevice(communicator_, &device)};
    for (const ncclResult_t said : asked) {
      const status ok = detail::nccl_status(said, "communicator");
      if (!ok.ok()) return ok;
    }
    const status current_ok = detail::cuda_status(cudaGetDevice(&current), "device");
    if (!current_ok.ok()) return current_ok;
    if (device != current) {
      return failure(errc::invalid_argument, "communicator",
                     "is of another device (got) than the current one (expected)", device, current,
                     "device");
    }
    const status ranks_ok = require_supported_ranks(size_);
    if (!ranks_ok.ok()) return ranks_ok;
    if (options_.ranks != 0 && options_.ranks != size_) {
      return failure(errc::invalid_argument, "communicator", "has another size than was asked for",
                     size_, options_.ranks, "rank");
    }
#if NCCL_VERSION_CODE >= 22800
    const bool has_all_to_all = version_ >= 22800 && &ncclAlltoAll != nullptr;
#else
    const bool has_all_to_all = false;
#endif
    if (options_.method == nccl_method::all_to_all && !has_all_to_all) {
      return failure(errc::unsupported, "method", "ncclAlltoAll came with NCCL 2.28", version_,
                     22800);
    }
    // The group leaves out what a rank has for itself; ncclAlltoAll is the same transfers and that.
    if (options_.method == nccl_method::automatic) options_.method = nccl_method::send_receive;
    if (scratch.empty()) return options_.verify ? require_scratch("verify") : status{};
    if (reinterpret_cast<std::uintptr_t>(scratch_) % 16 != 0) {
      return failure(errc::misaligned, "scratch", "starts on a multiple of 16 bytes",
                     static_cast<index_t>(reinterpret_cast<std::uintptr_t>(scratch_) % 16), 0);
    }
    return require_capacity("scratch", nccl_scratch_bytes(size_),
                            static_cast<index_t>(scratch.size()));
  }

  status require_scratch(const char* what) const noexcept {
    if (scratch_ != nullptr) return {};
    return failure(errc::unsupported, what, "needs the scratch that make() was not given", 0,
                   nccl_scratch_bytes(size_));
  }

  template <class Chunk>
  static constexpr index_t runs_of(const Chunk& chunk) noexcept {
    return chunk.run_bytes == 0 ? 0 : chunk.runs;
  }

  /// A communicator that does not block says ncclInProgress, and takes what comes next.
  static constexpr bool goes_on(ncclResult_t said) noexcept {
    return said == ncclSuccess || said == ncclInProgress;
  }

  /// What a rank has for itself.
  status keep(const send_chunk& from, const receive_chunk& to) const noexcept {
    if (from.bytes() == 0 || from.data == to.data) return {};
    if (from.runs != to.runs || from.run_bytes != to.run_bytes) {
      return failure(errc::unsupported, "receive", "a rank's own runs are cut alike at both ends",
                     to.run_bytes, from.run_bytes);
    }
    const auto bytes = [](index_t count) { return static_cast<std::size_t>(count); };
    if (from.runs == 1) {
      return detail::cuda_status(cudaMemcpyAsync(to.data, from.data, bytes(from.run_bytes),
                                                 cudaMemcpyDeviceToDevice, stream_),
                                 "receive");
    }
    return detail::cuda_status(
        cudaMemcpy2DAsync(to.data, bytes(to.pitch), from.data, bytes(from.pitch),
                          bytes(from.run_bytes), bytes(from.runs), cudaMemcpyDeviceToDevice,
                          stream_),
        "receive");
  }

  status finish(ncclResult_t said) const noexcept {
    const status ended = detail::nccl_settled(communicator_, said, "nccl");
    return ended.ok() ? check() : ended;
  }

  /// The record of every rank, on the host. Waits for the stream.
  status gather_records(const detail::call_record& mine, detail::call_record* all,
                        const char* operation) const noexcept {
    const status scratch_ok = require_scratch(operation);
    if (!scratch_ok.ok()) return scratch_ok;
    const result<bool> capturing = detail::is_capturing(stream_);
    if (!capturing.ok()) return capturing.why();
    if (capturing.value()) {
      return failure(errc::unsupported, operation, "waits on the host: not in a capture");
    }
    constexpr std::size_t bytes = sizeof(detail::call_record);
    const status sent = detail::cuda_status(
        cudaMemcpyAsync(scratch_, &mine, bytes, cudaMemcpyHostToDevice, stream_), operation);
    if (!sent.ok()) return sent;
    const status gathered =
        finish(ncclAllGather(scratch_, scratch_ + bytes, bytes, ncclUint8, communicator_, stream_));
    if (!gathered.ok()) return gathered;
    const status back = detail::cuda_status(
        cudaMemcpyAsync(all, scratch_ + bytes, bytes * static_cast<std::size_t>(size_),
                        cudaMemcpyDeviceToHost, stream_),
        operation);
    return back.ok() ? detail::cuda_status(cudaStreamSynchronize(stream_), operation) : back;
  }

  status verify(const call_signature& call, const status& refusal) const noexcept {
    if (!options_.verify) return {};
    const result<bool> capturing = detail::is_capturing(stream_);
    if (!capturing.ok() || capturing.value()) return capturing.why();
    detail::call_record all[max_ranks];
    detail::call_record mine = detail::record_of(call, refusal);
    mine.transport = static_cast<std::uint64_t>(options_.method);
    const status gathered = gather_records(mine, all, call.operation);
    return gathered.ok() ? detail::compare_records(all, size_, rank_, call) : gathered;
  }

  ncclComm_t communicator_;
  cudaStream_t stream_;
  std::byte* scratch_;
  nccl_options options_;
  int rank_ = 0;
  int size_ = 0;
  int version_ = 0;
};

static_assert(transport<nccl>);

#if NCCL_VERSION_CODE >= 22703

/// Memory in a symmetric window of a communicator (NCCL 2.27.3), for as long as this lives. NCCL
/// takes other kernels for an all-gather whose operands both lie in one: from some hundred
/// kilobytes on, on GPUs of one host, they are faster (docs/measurements.md). What lies in it does
/// not change.
class nccl_window {
 public:
  nccl_window() noexcept = default;
  nccl_window(nccl_window&& other) noexcept
      : communicator_(other.communicator_), window_(other.window_) {
    other.window_ = nullptr;
  }
  nccl_window& operator=(nccl_window&& other) noexcept {
    const nccl_window given_up = static_cast<nccl_window&&>(*this);
    communicator_ = other.communicator_;
    window_ = other.window_;
    other.window_ = nullptr;
    return *this;
  }
  ~nccl_window() {
    if (window_ != nullptr) static_cast<void>(ncclCommWindowDeregister(communicator_, window_));
  }

  /// `memory`: from ncclMemAlloc, of the same size on all ranks; it and the communicator outlive
  /// the window. Collective; waits for the ranks, and is not for a capture. Errors: nccl_failed.
  static result<nccl_window> make(ncclComm_t communicator, std::span<std::byte> memory) noexcept {
    nccl_window made;
    made.communicator_ = communicator;
    const status registered =
        detail::nccl_status(ncclCommWindowRegister(communicator, memory.data(), memory.size(),
                                                   &made.window_, NCCL_WIN_COLL_SYMMETRIC),
                            "window");
    if (!registered.ok()) return registered;
    return static_cast<nccl_window&&>(made);
  }

 private:
  ncclComm_t communicator_ = nullptr;
  ncclWindow_t window_ = nullptr;
};

#endif

}  // namespace headwise::inline v0
