// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <headwise/version.hpp>

#include <doctest/doctest.h>

#include <string>

TEST_CASE("the version in the header is the one that the build hands to packages") {
  const std::string version = std::to_string(headwise::version_major) + "." +
                              std::to_string(headwise::version_minor) + "." +
                              std::to_string(headwise::version_patch);
  CHECK(version == MESON_PROJECT_VERSION);
  CHECK(HEADWISE_VERSION ==
        headwise::version_major * 10000 + headwise::version_minor * 100 + headwise::version_patch);
}
