// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/config.hpp>

/// 10000 * major + 100 * minor + patch, for #if. The one place of the version: meson.build and the
/// package files read this line.
#define HEADWISE_VERSION 100

namespace headwise::inline v0 {

inline constexpr int version_major = HEADWISE_VERSION / 10000;
inline constexpr int version_minor = HEADWISE_VERSION / 100 % 100;
inline constexpr int version_patch = HEADWISE_VERSION % 100;

}  // namespace headwise::inline v0
