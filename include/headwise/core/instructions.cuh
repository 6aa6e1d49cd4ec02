// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/config.hpp>
#include <headwise/core/element.hpp>

#include <cuda_runtime.h>

#include <cstdint>

// Instructions of the device, by what they are for, for compute capability 8.0 and up (PTX ISA 8.7:
// "Warp Level Matrix Instructions", "Asynchronous copies", "mbarrier"). Addresses of shared memory
// are 32-bit, as shared_address() gives them.

namespace headwise::inline v0::detail {

inline constexpr unsigned whole_warp = 0xffffffffu;

__device__ inline std::uint32_t shared_address(const void* shared) noexcept {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

// ---- matrices ---------------------------------------------------------------------------------
//
// Fragments of m16n8k16, g = lane / 4 and t = lane % 4: A has rows g and g + 8, columns 2t, 2t + 1
// and those + 8; B has columns (n) g, rows (k) 2t, 2t + 1 and those + 8; C has rows g and g + 8,
// columns 2t and 2t + 1.

/// Four 8 x 8 matrices of 16 bits; lanes 8i to 8i + 7 bring the addresses of the rows of the i-th.
__device__ inline void load_matrices(std::uint32_t (&to)[4], std::uint32_t row) noexcept {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
/// The same, the first two and the others.
__device__ inline void load_matrices(std::uint32_t (&first)[2], std::uint32_t (&second)[2],
                                     std::uint32_t row) noexcept {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(first[0]), "=r"(first[1]), "=r"(second[0]), "=r"(second[1])
               : "r"(row)
               : "memory");
}
/// The same, each of them transposed.
__device__ inline void load_matrices_transposed(std::uint32_t (&to)[4],
                                                std::uint32_t row) noexcept {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
/// Two of them, from the addresses of lanes 0 to 15.
__device__ inline void load_matrices(std::uint32_t (&to)[2], std::uint32_t row) noexcept {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(row)
               : "memory");
}

/// sum += a * b, in fp32.
__device__ inline void multiply_bf16(float (&sum)[4], const std::uint32_t (&a)[4],
                                     const std::uint32_t (&b)[2]) noexcept {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Base two, off by 2^-22 of it; exactly 0 for -inf.
__device__ inline float fast_exp2(float x) noexcept {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// ---- registers --------------------------------------------------------------------------------

/// Gives registers of a group of four warps back, or takes some: this many each from here on, a
/// multiple of 8. Where the target has it (sm_90a, sm_100a and later of that kind), else nothing.
template <int Registers>
__device__ inline void keep_registers() noexcept {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_FEAT_SM100_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
#endif
}
template <int Registers>
__device__ inline void take_registers() noexcept {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_FEAT_SM100_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
#endif
}

// ---- barriers of asynchronous copies ----------------------------------------------------------

__device__ inline void init_barrier(std::uint32_t barrier, unsigned arrivals) noexcept {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void arrive(std::uint32_t barrier) noexcept {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier)
               : "memory");
}
/// Returns when the phase of this parity has ended: all have arrived and all bytes are there.
__device__ inline void wait_for_phase(std::uint32_t barrier, unsigned parity) noexcept {
  std::uint32_t done = 0;
  while (done == 0) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
#else
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
#endif
  }
}

// ---- asynchronous copies ----------------------------------------------------------------------

/// Sixteen bytes, past the L1 cache.
__device__ inline void copy_async_16(std::uint32_t to, const void* from) noexcept {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/// The barrier's phase ends after the copies that this thread has begun; counts as its arrival.
__device__ inline void arrive_after_copies(std::uint32_t barrier) noexcept {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool has_bulk_copy = true;
/// Orders what was written to shared memory before what an asynchronous copy will write there.
__device__ inline void fence_for_bulk_copy() noexcept {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void arrive_expecting(std::uint32_t barrier, unsigned bytes) noexcept {
  asm volatile(
      "{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(
          barrier),
      "r"(bytes)
      : "memory");
}
/// `bytes`, a multiple of 16, both addresses aligned to that; the barrier expects them.
__device__ inline void copy_bulk(std::uint32_t to, const void* from, unsigned bytes,
                                 std::uint32_t barrier) noexcept {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
/// True for one lane of a warp that is complete.
__device__ inline bool elect_lane() noexcept {
  unsigned elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(elected));
  return elected != 0;
}
#else
inline constexpr bool has_bulk_copy = false;
__device__ inline void fence_for_bulk_copy() noexcept {}
__device__ inline void arrive_expecting(std::uint32_t, unsigned) noexcept {}
__device__ inline void copy_bulk(std::uint32_t, const void*, unsigned, std::uint32_t) noexcept {}
__device__ inline bool elect_lane() noexcept { return false; }
#endif

// ---- elements ---------------------------------------------------------------------------------

/// An element as a number, with the instructions of the device. A NaN may come out with
/// other bits than on the host; every NaN ends as the one canonical one.
template <class T>
__device__ float number_of(unsigned bits) noexcept {
  if constexpr (element_kind_of<T> == element_kind::f32) {
    return bit_cast<float>(bits);
  } else if constexpr (element_kind_of<T> == element_kind::bf16) {
    return bf16_to_float(static_cast<std::uint16_t>(bits));
  } else {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<std::uint16_t>(bits)));
    return value;
  }
}
/// Two numbers as the elements of one word, the first in its low half; a NaN becomes 0x7fff.
template <class T>
__device__ unsigned rounded_pair(float first, float second) noexcept {
  unsigned word;
  if constexpr (element_kind_of<T> == element_kind::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  }
  return word;
}

/// One rounding to nearest, with the instruction of the device.
template <class T>
__device__ T rounded_to(float value) noexcept {
  if constexpr (element_kind_of<T> == element_kind::f32) {
    return bit_cast<T>(value);
  } else {
    return bit_cast<T>(static_cast<std::uint16_t>(rounded_pair<T>(value, 0.0f)));
  }
}

/// Two e4m3 numbers, in the high bytes of the halves of a word, as bf16: exact, but for NaN, which
/// comes out as 480. An e4m3's bits are those of a bf16 whose exponent is 120 too small.
__device__ inline std::uint32_t bf16_of_e4m3(std::uint32_t high_bytes) noexcept {
  const std::uint32_t small = (high_bytes & 0x80008000u) | ((high_bytes >> 4) & 0x07f007f0u);
  constexpr std::uint32_t two_to_120 = 0x7b807b80u;
  constexpr std::uint32_t minus_zero = 0x80008000u;
  std::uint32_t numbers;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;"
      : "=r"(numbers)
      : "r"(small), "r"(two_to_120), "r"(minus_zero));
  return numbers;
}

}  // namespace headwise::inline v0::detail
