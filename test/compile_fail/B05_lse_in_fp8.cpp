// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: load_lse: an LSE is stored as fp32, fp16 or bf16
// Eight bits hold no LSE.

#include <headwise/lse/log_base.hpp>

using namespace headwise;

#ifndef PASS
using element = fp8_e4m3;
#else
using element = bf16;
#endif

int main() { return load_lse<log_base::e>(element{}).value > 0 ? 1 : 0; }
