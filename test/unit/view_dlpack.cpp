// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

// The struct here has the members of DLPack's DLTensor; its numbers are written out as dlpack.h of
// DLPack 1.1 has them, so that the header's own constants are compared with something.

#include <headwise/view/dlpack.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <type_traits>

using namespace headwise;

namespace {

enum device : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3, rocm = 10, cuda_managed = 13 };

struct tensor_struct {
  void* data;
  struct {
    device device_type;
    std::int32_t device_id;
  } device;
  std::int32_t ndim;
  struct {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
  } dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

alignas(16) bf16 memory[4 * 32 * 8 + 1];

/// 22 of 32 heads of width 8, bf16, in memory of this process.
struct sample {
  std::int64_t shape[3] = {4, 22, 8};
  std::int64_t strides[3] = {256, 8, 1};
  tensor_struct tensor{memory, {cpu, 0}, 3, {4, 16, 1}, shape, strides, 0};
};

template <memory_space Space = memory_space::host>
auto taken(const tensor_struct& tensor) {
  return from_dlpack<bf16, Space, axis::token, axis::head, axis::head_dim>(tensor, "query");
}

void check_why(const status& why, errc code, const char* axis, index_t got, index_t expected) {
  CHECK(why.code == code);
  CHECK(std::string(why.operand) == "query");
  CHECK(std::string(why.axis) == axis);
  CHECK(why.got == got);
  CHECK(why.expected == expected);
}

TEST_CASE("from_dlpack: a strided tensor, and one without strides") {
  sample given;
  const auto query = taken(given.tensor);
  REQUIRE(query.ok());
  CHECK(query.value().data() == memory);
  CHECK(query.value().extent<axis::token>() == 4);
  CHECK(query.value().extent<axis::head>() == 22);
  CHECK(query.value().extent<axis::head_dim>() == 8);
  CHECK(query.value().stride<axis::token>() == 256);
  CHECK(query.value().stride<axis::head>() == 8);
  CHECK(query.value().stride<axis::head_dim>() == 1);

  given.tensor.strides = nullptr;
  const auto packed_query = taken(given.tensor);
  REQUIRE(packed_query.ok());
  CHECK(packed_query.value().stride<axis::token>() == 22 * 8);
  CHECK(packed_query.value().stride<axis::head>() == 8);
  CHECK(packed_query.value().is_contiguous());

  given.tensor.byte_offset = 6;
  CHECK(taken(given.tensor).value().data() == memory + 3);
}

template <class Change>
status why_not(Change change) {
  sample given;
  change(given);
  return taken(given.tensor).why();
}

TEST_CASE("from_dlpack: wrong tensors are refused with both values") {
  check_why(why_not([](sample& it) { it.tensor.ndim = 2; }), errc::shape_mismatch, "", 2, 3);
  check_why(why_not([](sample& it) { it.tensor.shape = nullptr; }), errc::invalid_argument, "", 0,
            0);

  const status code = why_not([](sample& it) { it.tensor.dtype.code = 2; });
  check_why(code, errc::unsupported, "", 2, 4);
  CHECK(std::string(code.message).find("code") != std::string::npos);
  const status bits = why_not([](sample& it) { it.tensor.dtype.bits = 32; });
  check_why(bits, errc::unsupported, "", 32, 16);
  CHECK(std::string(bits.message).find("bits") != std::string::npos);
  const status lanes = why_not([](sample& it) { it.tensor.dtype.lanes = 4; });
  check_why(lanes, errc::unsupported, "", 4, 1);
  CHECK(std::string(lanes.message).find("lanes") != std::string::npos);

  check_why(why_not([](sample& it) { it.shape[1] = -22; }), errc::invalid_argument, "head", -22, 0);
  check_why(why_not([](sample& it) {
              it.shape[1] = -22;
              it.tensor.strides = nullptr;
            }),
            errc::invalid_argument, "head", -22, 0);
  check_why(why_not([](sample& it) { it.strides[0] = -256; }), errc::invalid_argument, "token",
            -256, 0);
  check_why(why_not([](sample& it) { it.tensor.byte_offset = 1; }), errc::misaligned, "", 1, 0);
  check_why(why_not([](sample& it) { it.tensor.data = nullptr; }), errc::invalid_argument, "", 0,
            0);

  const index_t huge = index_t{1} << 56;
  check_why(why_not([](sample& it) {
              it.shape[0] = index_t{1} << 56;
              it.shape[1] = 16;
              it.tensor.strides = nullptr;
            }),
            errc::out_of_range, "token", huge, INT64_MAX / 128);
  check_why(why_not([](sample& it) { it.strides[0] = INT64_MAX / 2; }), errc::out_of_range, "token",
            4, 1);
}

TEST_CASE("from_dlpack: nothing at all is a tensor too") {
  sample given;
  given.shape[0] = 0;
  given.tensor.data = nullptr;
  given.tensor.byte_offset = 64;
  CHECK(taken(given.tensor).ok());
  CHECK(taken(given.tensor).value().data() == nullptr);
  given.tensor.strides = nullptr;
  CHECK(taken(given.tensor).ok());

  tensor_struct scalar{memory, {cpu, 0}, 0, {4, 16, 1}, nullptr, nullptr, 2};
  const auto one = from_dlpack<const bf16, memory_space::host>(scalar);
  REQUIRE(one.ok());
  CHECK(one.value().data() == memory + 1);
}

TEST_CASE("from_dlpack: the device must be the memory space of the view") {
  const auto why = [](auto space, device given_device) {
    sample given;
    given.tensor.device.device_type = given_device;
    return taken<decltype(space)::value>(given.tensor).why();
  };
  constexpr std::integral_constant<memory_space, memory_space::host> host;
  constexpr std::integral_constant<memory_space, memory_space::device> gpu;
  constexpr std::integral_constant<memory_space, memory_space::pinned> pinned;
  CHECK(why(host, cpu).ok());
  CHECK(why(host, cuda_host).ok());
  CHECK(why(host, cuda_managed).ok());
  check_why(why(host, cuda), errc::unsupported, "", 2, 1);
  CHECK(why(gpu, cuda).ok());
  CHECK(why(gpu, cuda_managed).ok());
  check_why(why(gpu, cpu), errc::unsupported, "", 1, 2);
  check_why(why(gpu, cuda_host), errc::unsupported, "", 3, 2);
  check_why(why(gpu, rocm), errc::unsupported, "", 10, 2);
  CHECK(why(pinned, cuda_host).ok());
  CHECK(why(pinned, cuda_managed).ok());
  check_why(why(pinned, cpu), errc::unsupported, "", 1, 3);
  check_why(why(pinned, cuda), errc::unsupported, "", 2, 3);
}

template <class T>
void check_dtype(int code, int bits) {
  T element{};
  std::int64_t shape[1];
  std::int64_t strides[1];
  const auto row = make_view(&element, packed(extent<axis::head, 1>()));
  auto tensor = to_dlpack<tensor_struct>(row, shape, strides);
  CHECK(int{tensor.dtype.code} == code);
  CHECK(int{tensor.dtype.bits} == bits);
  CHECK(int{tensor.dtype.lanes} == 1);
  CHECK(from_dlpack<T, memory_space::host, axis::head>(tensor).ok());
  ++tensor.dtype.code;
  CHECK(from_dlpack<T, memory_space::host, axis::head>(tensor).why().expected == code);
}

TEST_CASE("DLPack's numbers for the element types") {
  check_dtype<float>(2, 32);
  check_dtype<double>(2, 64);
  check_dtype<fp16>(2, 16);
  check_dtype<bf16>(4, 16);
  check_dtype<fp8_e4m3>(10, 8);
  check_dtype<std::int32_t>(0, 32);
  check_dtype<std::int64_t>(0, 64);
  check_dtype<std::uint8_t>(1, 8);
  check_dtype<bool>(6, 8);
}

TEST_CASE("to_dlpack fills the caller's arrays, and comes back") {
  const view<bf16,
             layout<dim<axis::token, dynamic_extent, 256>, dim<axis::head, 22, 8>,
                    dim<axis::head_dim, 8, 1>>,
             memory_space::device>
      query(memory, {dim<axis::token, dynamic_extent, 256>(4), {}, {}});
  std::int64_t shape[4] = {-7, -7, -7, -7};
  std::int64_t strides[4] = {-7, -7, -7, -7};
  const auto tensor = to_dlpack<tensor_struct>(query, shape, strides, 5);
  CHECK(tensor.data == memory);
  CHECK(tensor.device.device_type == cuda);
  CHECK(tensor.device.device_id == 5);
  CHECK(tensor.ndim == 3);
  CHECK(tensor.shape == shape);
  CHECK(tensor.strides == strides);
  CHECK(tensor.byte_offset == 0);
  CHECK(shape[0] == 4);
  CHECK(shape[1] == 22);
  CHECK(shape[2] == 8);
  CHECK(strides[0] == 256);
  CHECK(strides[1] == 8);
  CHECK(strides[2] == 1);
  CHECK(shape[3] == -7);
  CHECK(strides[3] == -7);

  const auto back = taken<memory_space::device>(tensor);
  REQUIRE(back.ok());
  CHECK(back.value().data() == query.data());
  CHECK(back.value().stride<axis::token>() == 256);

  const auto host = to_dlpack<tensor_struct>(view<bf16, layout<>>(memory), shape, strides);
  CHECK(host.device.device_type == cpu);
  CHECK(host.ndim == 0);
  const auto pinned =
      to_dlpack<tensor_struct>(view<bf16, layout<>, memory_space::pinned>(memory), shape, strides);
  CHECK(pinned.device.device_type == cuda_host);
}

TEST_CASE("only tensors are taken for one") {
  static_assert(dlpack_tensor<tensor_struct>);
  static_assert(!dlpack_tensor<int>);
  static_assert(!dlpack_tensor<sample>);
}

}  // namespace
