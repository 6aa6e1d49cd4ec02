// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/view/view.hpp>

#include <concepts>

// Views from and to DLPack's DLTensor. Opt-in, and written against the members of that struct, so
// that dlpack.h is not needed here. Numbers and meanings as in dlpack.h of DLPack 1.1
// (https://github.com/dmlc/dlpack): strides count elements, byte_offset is added to data.

namespace headwise::inline v0 {

/// The members of DLTensor.
template <class Tensor>
concept dlpack_tensor = requires(const Tensor& t) {
  { t.data } -> std::convertible_to<const void*>;
  static_cast<int>(t.device.device_type);
  { t.device.device_id } -> std::convertible_to<std::int32_t>;
  { t.ndim } -> std::convertible_to<std::int32_t>;
  { t.dtype.code } -> std::convertible_to<int>;
  { t.dtype.bits } -> std::convertible_to<int>;
  { t.dtype.lanes } -> std::convertible_to<int>;
  { t.shape } -> std::convertible_to<const std::int64_t*>;
  { t.strides } -> std::convertible_to<const std::int64_t*>;
  { t.byte_offset } -> std::convertible_to<std::uint64_t>;
};

namespace detail {

/// DLDeviceType.
enum class dlpack_device : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3, cuda_managed = 13 };

/// DLDataTypeCode. `none` is ours: an element type that DLPack cannot name.
enum class dlpack_code : std::int32_t {
  none = -1,
  signed_integer = 0,
  unsigned_integer = 1,
  ieee_float = 2,
  bfloat = 4,
  boolean = 6,
  e4m3fn = 10,
};

template <class T>
constexpr dlpack_code dlpack_code_of() noexcept {
  switch (element_kind_of<T>) {
    case element_kind::f16:
    case element_kind::f32:
    case element_kind::f64: return dlpack_code::ieee_float;
    case element_kind::bf16: return dlpack_code::bfloat;
    case element_kind::e4m3: return dlpack_code::e4m3fn;
    case element_kind::opaque: break;
  }
  if (std::is_same_v<std::remove_cv_t<T>, bool>) return dlpack_code::boolean;
  if (!std::is_integral_v<T>) return dlpack_code::none;
  return std::is_signed_v<T> ? dlpack_code::signed_integer : dlpack_code::unsigned_integer;
}

/// The device type under which memory of this space is handed out.
constexpr dlpack_device dlpack_device_of(memory_space space) noexcept {
  switch (space) {
    case memory_space::host: return dlpack_device::cpu;
    case memory_space::device: return dlpack_device::cuda;
    case memory_space::pinned: return dlpack_device::cuda_host;
  }
  return dlpack_device::cpu;
}

/// Managed memory can be read from both sides; pinned memory is host memory as well.
constexpr bool dlpack_device_is(memory_space space, int device) noexcept {
  const auto type = static_cast<dlpack_device>(device);
  if (type == dlpack_device_of(space) || type == dlpack_device::cuda_managed) return true;
  return space == memory_space::host && type == dlpack_device::cuda_host;
}

template <class T, memory_space Space, class... Axes, int Rank, int... Position>
constexpr auto view_of_rows(T* data, [[maybe_unused]] const index_row<Rank>& extents,
                            [[maybe_unused]] const index_row<Rank>& strides, axis_list<Axes...>,
                            std::integer_sequence<int, Position...>) noexcept {
  return view<T, layout<dim<Axes>...>, Space>(
      data, layout<dim<Axes>...>(dim<Axes>(extents[Position], strides[Position])...));
}

template <class T>
constexpr status check_dlpack_element(int code, int bits, int lanes, const char* operand) noexcept {
  constexpr int expected_code = static_cast<int>(dlpack_code_of<T>());
  constexpr int expected_bits = static_cast<int>(8 * sizeof(T));
  if (code != expected_code) {
    return failure(errc::unsupported, operand, "the dtype code is not the one of the element type",
                   code, expected_code);
  }
  if (bits != expected_bits) {
    return failure(errc::unsupported, operand, "the dtype bits are not those of the element type",
                   bits, expected_bits);
  }
  if (lanes != 1) {
    return failure(errc::unsupported, operand, "the dtype lanes are not 1", lanes, 1);
  }
  return {};
}

}  // namespace detail

/// The view of a DLTensor's elements, one axis named per dimension, outermost first:
///
///     from_dlpack<bf16, memory_space::device, axis::token, axis::head, axis::head_dim>(tensor)
///
/// All extents and strides are run-time values; refine() or dispatch() makes them static. Null
/// strides mean packed (DLPack before 1.1). The tensor keeps owning its memory. A plain DLTensor
/// cannot say that it is read-only: for a managed one with that flag, ask for a view of const T.
///
/// Errors: shape_mismatch (ndim), unsupported (dtype or device type), invalid_argument (a negative
/// or missing extent or stride, null data), misaligned, out_of_range.
template <class T, memory_space Space, axis_type... Axes, dlpack_tensor Tensor>
result<view<T, layout<dim<Axes>...>, Space>> from_dlpack(const Tensor& from,
                                                         const char* operand = "tensor") noexcept {
  static_assert(detail::dlpack_code_of<T>() != detail::dlpack_code::none,
                "headwise: DLPack has no name for this element type");
  constexpr int rank = static_cast<int>(sizeof...(Axes));
  if (from.ndim != rank) {
    return failure(errc::shape_mismatch, operand, "ndim is not the number of axes", from.ndim,
                   rank);
  }
  const status element =
      detail::check_dlpack_element<T>(from.dtype.code, from.dtype.bits, from.dtype.lanes, operand);
  if (!element.ok()) return element;
  const int device = static_cast<int>(from.device.device_type);
  if (!detail::dlpack_device_is(Space, device)) {
    return failure(errc::unsupported, operand,
                   "the device type is not the one of the view's memory space", device,
                   static_cast<int>(detail::dlpack_device_of(Space)));
  }
  if (rank != 0 && from.shape == nullptr) {
    return failure(errc::invalid_argument, operand, "the shape is a null pointer");
  }

  detail::index_row<rank> extents{};
  detail::index_row<rank> strides{};
  [[maybe_unused]] const char* const names[] = {Axes::name..., ""};
  index_t packed = 1;
  for (int i = rank - 1; i >= 0; --i) {
    extents[i] = from.shape[i];
    strides[i] = from.strides == nullptr ? packed : from.strides[i];
    if (extents[i] >= 0 && packed > INT64_MAX / detail::greater<index_t>(extents[i], 1)) {
      return failure(errc::out_of_range, operand,
                     "the number of elements does not fit into 63 bits", extents[i],
                     INT64_MAX / packed, names[i]);
    }
    packed *= detail::greater<index_t>(extents[i], 0);
  }
  T* data = nullptr;
  if (from.data != nullptr) {
    const void* first = static_cast<const unsigned char*>(from.data) + from.byte_offset;
    data = static_cast<T*>(const_cast<void*>(first));
  }
  const auto converted =
      detail::view_of_rows<T, Space>(data, extents, strides, detail::axis_list<Axes...>{},
                                     std::make_integer_sequence<int, rank>{});
  const status well_formed = validate(operand, converted);
  if (!well_formed.ok()) return well_formed;
  return converted;
}

/// A DLTensor of the view's elements. `shape` and `strides` are the caller's, with room for one
/// number per axis, and must outlive the tensor. The device id is that of the GPU, 0 for host
/// memory. A view of const T has no such tensor: DLTensor's data is not const, so the caller
/// decides.
template <dlpack_tensor Tensor, class T, class... Dims, memory_space Space>
constexpr Tensor to_dlpack(const view<T, layout<Dims...>, Space>& from, std::int64_t* shape,
                           std::int64_t* strides, std::int32_t device_id = 0) noexcept {
  static_assert(detail::dlpack_code_of<T>() != detail::dlpack_code::none,
                "headwise: DLPack has no name for this element type");
  static_assert(!std::is_const_v<T>, "headwise: a DLTensor cannot say that it is read-only");
  const auto extents = from.layout().extents();
  const auto steps = from.layout().strides();
  for (int i = 0; i < from.rank; ++i) {
    shape[i] = extents[i];
    strides[i] = steps[i];
  }
  Tensor to{};
  to.data = from.empty() ? nullptr : from.data();
  to.device.device_type = static_cast<decltype(to.device.device_type)>(
      static_cast<int>(detail::dlpack_device_of(Space)));
  to.device.device_id = device_id;
  to.ndim = from.rank;
  to.dtype.code = static_cast<decltype(to.dtype.code)>(detail::dlpack_code_of<T>());
  to.dtype.bits = static_cast<decltype(to.dtype.bits)>(8 * sizeof(T));
  to.dtype.lanes = 1;
  to.shape = shape;
  to.strides = strides;
  to.byte_offset = 0;
  return to;
}

}  // namespace headwise::inline v0
