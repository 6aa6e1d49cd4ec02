// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/core/status.hpp>

#include <string>

namespace support {

/// A status as a sentence, for CHECKs and INFOs.
inline std::string sentence(const headwise::status& what) {
  char text[512];
  headwise::format_status(what, text, sizeof text);
  return text;
}

}  // namespace support
