// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// expect: headwise: kv_fp8_ds_mla: the latent part is a multiple of 128, as each scale belongs to 128 numbers

#include <headwise/plan/paged_kv.hpp>

using namespace headwise;

int main() {
#ifndef PASS
  return kv_fp8_ds_mla<448, 64>::record_bytes == 0;
#else
  return kv_fp8_ds_mla<512, 64>::record_bytes == 0;
#endif
}
