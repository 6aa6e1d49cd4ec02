// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

extern char** environ;

// Tests whose ranks are processes with a NCCL communicator: one on each GPU, or several on one.

namespace support {

/// What a rank of a test is given.
struct rank_context {
  int rank = 0;
  int ranks = 1;
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
};

/// What one rank does; returns what is wrong, or nothing.
using rank_work = std::string (*)(const rank_context&);

inline std::map<std::string, rank_work>& rank_works() {
  static std::map<std::string, rank_work> works;
  return works;
}
struct register_rank_work {
  register_rank_work(const char* name, rank_work work) { rank_works()[name] = work; }
};

inline std::string failed(const char* call, const char* why) {
  return std::string(call) + ": " + why;
}
#define RANK_CUDA(call)                                                                         \
  do {                                                                                          \
    const cudaError_t rank_said = (call);                                                       \
    if (rank_said != cudaSuccess) return support::failed(#call, cudaGetErrorString(rank_said)); \
  } while (false)
#define RANK_NCCL(call)                                                                         \
  do {                                                                                          \
    const ncclResult_t rank_said = (call);                                                      \
    if (rank_said != ncclSuccess) return support::failed(#call, ncclGetErrorString(rank_said)); \
  } while (false)

/// The id that rank 0 made, handed over in a file that appears whole.
inline bool share_id(const std::string& file, int rank, ncclUniqueId& id) {
  if (rank == 0) {
    if (ncclGetUniqueId(&id) != ncclSuccess) return false;
    std::ofstream(file + ".part", std::ios::binary)
        .write(reinterpret_cast<const char*>(&id), sizeof id);
    std::filesystem::rename(file + ".part", file);
    return true;
  }
  for (int tries = 0; tries < 3000; ++tries) {
    std::ifstream from(file, std::ios::binary);
    if (from.read(reinterpret_cast<char*>(&id), sizeof id)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

inline std::string run_rank(const std::string& name, rank_context me, const std::string& file) {
  int devices = 0;
  RANK_CUDA(cudaGetDeviceCount(&devices));
  if (devices < me.ranks) {
    // NCCL takes ranks of one GPU for one host's mistake; as ranks of several hosts it lets them
    // be, and reaches them through sockets.
    setenv("NCCL_HOSTID", ("rank" + std::to_string(me.rank)).c_str(), 1);
  }
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("NCCL_IB_DISABLE", "1", 1);
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  RANK_CUDA(cudaSetDevice(me.rank % devices));
  ncclUniqueId id;
  if (!share_id(file, me.rank, id)) return "no id of the communicator";
  RANK_NCCL(ncclCommInitRank(&me.communicator, me.ranks, id, me.rank));
  RANK_CUDA(cudaStreamCreateWithFlags(&me.stream, cudaStreamNonBlocking));
  const std::string wrong = rank_works().at(name)(me);
  if (!wrong.empty()) return wrong;  // peers may wait for this rank: the parent ends them
  RANK_CUDA(cudaStreamDestroy(me.stream));
  RANK_NCCL(ncclCommDestroy(me.communicator));
  return "";
}

/// Runs a registered work on `ranks` processes of this program; what the first of them that is not
/// content says, or nothing. Processes that are still there after `seconds` are ended. Rank
/// `killed`, if there is one, must end by SIGKILL; of the others that is a failure, as any signal
/// is.
inline std::string on_processes(const char* name, int ranks, int seconds = 90, int killed = -1) {
  const std::string file =
      (std::filesystem::temp_directory_path() /
       ("headwise-" + std::to_string(getpid()) + "-" + name + "-" + std::to_string(ranks)))
          .string();
  std::filesystem::remove(file);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  struct rank_process {
    int rank;
    pid_t id;
  };
  std::vector<rank_process> running;
  for (int r = 0; r < ranks; ++r) {
    const std::string words[] = {program,           "--rank-work",         name,
                                 std::to_string(r), std::to_string(ranks), file};
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    pid_t process = 0;
    if (posix_spawn(&process, program.c_str(), nullptr, nullptr, arguments.data(), environ) != 0) {
      for (const rank_process& other : running) {
        kill(other.id, SIGKILL);
        waitpid(other.id, nullptr, 0);
      }
      return "a process did not start";
    }
    running.push_back({r, process});
  }
  std::string wrong;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!running.empty()) {
    for (std::size_t i = 0; i < running.size();) {
      int status = 0;
      if (waitpid(running[i].id, &status, WNOHANG) == running[i].id) {
        const bool as_it_must = running[i].rank == killed
                                    ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                    : status == 0;
        if (!as_it_must && wrong.empty()) {
          wrong = "rank " + std::to_string(running[i].rank) + " failed";
          if (WIFSIGNALED(status)) wrong += ", by signal " + std::to_string(WTERMSIG(status));
        }
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    if (!wrong.empty() || std::chrono::steady_clock::now() > deadline) {
      if (wrong.empty()) wrong = "ranks were still there after the time limit";
      for (const rank_process& left : running) {
        kill(left.id, SIGKILL);
        waitpid(left.id, nullptr, 0);
      }
      running.clear();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::filesystem::remove(file);
  return wrong;
}

/// For main(): does the work of a rank if the arguments ask for one, and returns its exit status;
/// -1 if they do not.
inline int rank_main(int argc, char** argv) {
  if (argc != 6 || std::strcmp(argv[1], "--rank-work") != 0) return -1;
  rank_context me;
  me.rank = std::atoi(argv[3]);
  me.ranks = std::atoi(argv[4]);
  const std::string wrong = run_rank(argv[2], me, argv[5]);
  if (wrong.empty()) return 0;
  std::printf("rank %d of %d, %s: %s\n", me.rank, me.ranks, argv[2], wrong.c_str());
  std::fflush(stdout);
  _exit(1);  // without waiting for peers in NCCL's destructors
}

}  // namespace support
