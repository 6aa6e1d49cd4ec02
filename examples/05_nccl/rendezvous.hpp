// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <nccl.h>

#include <arpa/inet.h>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <netdb.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

// How the ranks get the id of their communicator from rank 0: in a file that all of them see, or
// from a socket of rank 0. An engine has a way of its own; NCCL does not care.

namespace rendezvous {

inline constexpr int tries = 1500;  // half a minute
inline void wait_a_little() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

/// Rank 0 writes the file, whole at once; the others wait for it. Start with a name that is new.
inline bool by_file(const std::string& file, int rank, ncclUniqueId& id) {
  if (rank == 0) {
    std::ofstream part(file + ".part", std::ios::binary);
    part.write(reinterpret_cast<const char*>(&id), sizeof id);
    part.close();
    std::error_code error;
    std::filesystem::rename(file + ".part", file, error);
    return part.good() && !error;
  }
  for (int i = 0; i < tries; ++i, wait_a_little()) {
    std::ifstream from(file, std::ios::binary);
    if (from.read(reinterpret_cast<char*>(&id), sizeof id)) return true;
  }
  return false;
}

/// A socket that is closed at the end of the scope.
struct connection {
  explicit connection(int opened) : handle(opened) {}
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  ~connection() {
    if (handle >= 0) close(handle);
  }
  int handle;
};

inline bool serve(int port, int peers, const ncclUniqueId& id) {
  const connection listening(socket(AF_INET, SOCK_STREAM, 0));
  const int yes = 1;
  setsockopt(listening.handle, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  any.sin_port = htons(static_cast<std::uint16_t>(port));
  if (bind(listening.handle, reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 ||
      listen(listening.handle, peers) != 0) {
    return false;
  }
  for (int peer = 0; peer < peers; ++peer) {
    const connection accepted(accept(listening.handle, nullptr, nullptr));
    if (send(accepted.handle, &id, sizeof id, MSG_NOSIGNAL) != ssize_t{sizeof id}) return false;
  }
  return true;
}

inline bool fetch(const std::string& host, const std::string& port, ncclUniqueId& id) {
  addrinfo wanted{};
  wanted.ai_family = AF_INET;
  wanted.ai_socktype = SOCK_STREAM;
  for (int i = 0; i < tries; ++i, wait_a_little()) {
    addrinfo* found = nullptr;
    if (getaddrinfo(host.c_str(), port.c_str(), &wanted, &found) != 0) continue;
    const connection to(socket(AF_INET, SOCK_STREAM, 0));
    const bool connected = connect(to.handle, found->ai_addr, found->ai_addrlen) == 0;
    freeaddrinfo(found);
    if (connected && recv(to.handle, &id, sizeof id, MSG_WAITALL) == ssize_t{sizeof id})
      return true;
  }
  return false;
}

/// `address`: HOST:PORT of rank 0.
inline bool by_socket(const std::string& address, int rank, int ranks, ncclUniqueId& id) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return false;
  const std::string port = address.substr(colon + 1);
  if (rank == 0) return serve(std::atoi(port.c_str()), ranks - 1, id);
  return fetch(address.substr(0, colon), port, id);
}

}  // namespace rendezvous
