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

/// Where the elements of a view are: a view without its type, so that what goes through all of them
/// is compiled once.
struct places {
  const std::byte* start = nullptr;
  index_t element_bytes = 1;
  std::vector<index_t> extents;
  std::vector<index_t> strides;
};

template <class View>
places places_of(const View& what) {
  places of{reinterpret_cast<const std::byte*>(what.data()),
            index_t{sizeof(typename View::value_type)},
            {},
            {}};
  const auto extents = what.layout().extents();
  const auto strides = what.layout().strides();
  for (int i = 0; i < what.rank; ++i) {
    of.extents.push_back(extents[i]);
    of.strides.push_back(strides[i]);
  }
  return of;
}

/// Offsets of all elements in the order of the axes, by these strides.
inline std::vector<index_t> offsets_of(const std::vector<index_t>& extents,
                                       const std::vector<index_t>& strides) {
  std::vector<index_t> offsets{0};
  for (const index_t extent : extents) {
    if (extent == 0) return {};  // whatever large the others are
  }
  for (std::size_t axis = 0; axis < extents.size(); ++axis) {
    std::vector<index_t> next;
    for (const index_t offset : offsets) {
      for (index_t i = 0; i < extents[axis]; ++i) next.push_back(offset + i * strides[axis]);
    }
    offsets.swap(next);
  }
  return offsets;
}
template <class View>
std::vector<index_t> offsets_of(const View& what) {
  const places of = places_of(what);
  return offsets_of(of.extents, of.strides);
}

/// Bytes of [memory, memory + count) that are not 0xff though they are no element's.
inline index_t count_stray(const std::byte* memory, index_t count,
                           const std::vector<places>& written) {
  std::vector<bool> allowed(static_cast<std::size_t>(count));
  for (const places& of : written) {
    for (const index_t offset : offsets_of(of.extents, of.strides)) {
      const index_t at = of.start - memory + offset * of.element_bytes;
      for (index_t b = at; b < at + of.element_bytes; ++b) {
        allowed.at(static_cast<std::size_t>(b)) = true;
      }
    }
  }
  index_t stray = 0;
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    if (!allowed[i] && memory[i] != std::byte{0xff}) ++stray;
  }
  return stray;
}

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
        first_(guard_bytes + past * index_t{sizeof(T)}),
        total_(first_ + elements * index_t{sizeof(T)} + guard_bytes),
        memory_(static_cast<std::byte*>(
            ::operator new (static_cast<std::size_t>(total_), std::align_val_t{64}))) {
    std::memset(memory_.get(), 0xff, static_cast<std::size_t>(total_));
  }

  T* data() { return reinterpret_cast<T*>(memory_.get() + first_); }
  index_t size() const { return count_; }

  /// Bytes, guards included, that have been written although no element of the views is there.
  template <class... Views>
  index_t stray_bytes(const Views&... views) const {
    return count_stray(memory_.get(), total_, {places_of(views)...});
  }

 private:
  struct release {
    void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{64}); }
  };

  index_t count_;
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
