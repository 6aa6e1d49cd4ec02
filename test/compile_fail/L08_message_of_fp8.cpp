// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: a message carries fp32, fp16 or bf16 partial results; fp8 can be moved, never reduced

#include <headwise/plan/message.hpp>

using namespace headwise;

#ifndef PASS
using element = fp8_e4m3;
#else
using element = fp16;
#endif

static_assert(
    message_plan::make<element>({.ranks = 2, .tokens = 1, .heads = 1, .head_dim = 8}).ok());
