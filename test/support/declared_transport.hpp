// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/transport/transport.hpp>

namespace support {

/// A transport for code that is compiled and never linked; it costs no <thread>.
struct declared_transport {
  int rank();
  int size();
  headwise::status exchange(std::span<const headwise::send_chunk> send,
                            std::span<const headwise::receive_chunk> receive,
                            const headwise::call_signature& call);
  headwise::status all_gather(const headwise::send_chunk& own,
                              std::span<const headwise::receive_chunk> receive,
                              const headwise::call_signature& call);
  headwise::status barrier();
};

}  // namespace support
