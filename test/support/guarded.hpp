// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

#include <headwise/core/element.hpp>
#include <headwise/core/status.hpp>
#include <headwise/view/view.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

namespace support {

using headwise::index_t;

/// Memory between two guards. Every byte is 0xff, which is a NaN in each floating-point type, until
/// somebody writes it; so a test sees what was not written, what was written outside of a view, and
/// what was read from where nothing had been written.
template <class T>
class guarded {
 public:
  static constexpr index_t guard_bytes = 256;

  /// Aligned to 64 bytes, and then `past` elements further on.
  explicit guarded(index_t elements, index_t past = 0)
      : count_(elements),
        bytes_(elements * index_t{sizeof(T)}),
        first_(guard_bytes + past * index_t{sizeof(T)}),
        total_(first_ + bytes_ + guard_bytes),
        memory_(static_cast<std::byte*>(
            ::operator new (static_cast<std::size_t>(total_), std::align_val_t{64}))) {
    std::memset(memory_.get(), 0xff, static_cast<std::size_t>(total_));
  }

  T* data() { return reinterpret_cast<T*>(memory_.get() + first_); }
  std::byte* bytes() { return memory_.get() + first_; }
  index_t size() const { return count_; }

  /// Bytes, guards included, that have been written although no element of the views is there.
  template <class... Views>
  index_t stray_bytes(const Views&... views) const;

 private:
  struct release {
    void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{64}); }
  };

  index_t count_;
  index_t bytes_;
  index_t first_;
  index_t total_;
  std::unique_ptr<std::byte, release> memory_;
};

/// Calls f(indices, offset) for each element of a view, in the order of its axes.
template <class View, class F>
void for_each_element(const View& what, F f) {
  constexpr int rank = View::rank;
  const auto extents = what.layout().extents();
  const auto strides = what.layout().strides();
  std::array<index_t, static_cast<std::size_t>(rank)> at{};
  const auto entry = [&at](int i) -> index_t& { return at[static_cast<std::size_t>(i)]; };
  for (int i = 0; i < rank; ++i) {
    if (extents[i] == 0) return;
  }
  for (;;) {
    index_t offset = 0;
    for (int i = 0; i < rank; ++i) offset += entry(i) * strides[i];
    f(at, offset);
    int i = rank - 1;
    while (i >= 0 && ++entry(i) == extents[i]) entry(i--) = 0;
    if (i < 0) return;
  }
}

template <class T>
template <class... Views>
index_t guarded<T>::stray_bytes(const Views&... views) const {
  std::vector<bool> allowed(static_cast<std::size_t>(total_));
  [[maybe_unused]] const auto allow = [&](const auto& what) {
    using element = typename std::remove_cvref_t<decltype(what)>::value_type;
    const std::byte* const start = reinterpret_cast<const std::byte*>(what.data());
    for_each_element(what, [&](const auto&, index_t offset) {
      const index_t at = start - memory_.get() + offset * index_t{sizeof(element)};
      for (std::size_t b = 0; b < sizeof(element); ++b) {
        allowed.at(static_cast<std::size_t>(at) + b) = true;
      }
    });
  };
  (allow(views), ...);
  index_t stray = 0;
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    if (!allowed[i] && memory_.get()[i] != std::byte{0xff}) ++stray;
  }
  return stray;
}

template <class T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

/// Elements of a view that differ, bit for bit, from what expected(indices) gives.
template <class View, class Expected>
index_t wrong_elements(const View& what, Expected expected) {
  index_t wrong = 0;
  for_each_element(what, [&](const auto& at, index_t offset) {
    const typename View::value_type wanted = expected(at);
    if (!same_bits(what.data()[offset], wanted)) ++wrong;
  });
  return wrong;
}

/// Writes value(indices) to every element.
template <class View, class Value>
void fill(const View& what, Value value) {
  for_each_element(what, [&](const auto& at, index_t offset) { what.data()[offset] = value(at); });
}

/// An element with these low bits (of any type, never all ones, which is the poison).
template <class T>
T element_of_bits(std::uint64_t bits) {
  T element{};
  std::memcpy(&element, &bits, sizeof(T));
  T poison;
  std::memset(&poison, 0xff, sizeof(T));
  if (same_bits(element, poison)) std::memset(&element, 0, sizeof(T));
  return element;
}

}  // namespace support
