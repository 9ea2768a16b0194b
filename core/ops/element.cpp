// SPDX-License-Identifier: Apache-2.0
#include "ops/element.h"

#include <cstring>

#include "kernels/simd.h"

namespace tessera {

namespace simd = kernels::v3;

Element element_of(const Arg& number, DType dtype) {
  alignas(16) Element out{};
  auto put = [&](auto v) { std::memcpy(out.data(), &v, sizeof v); };
  const double real = number.is_number() ? number.number() : 0;
  const int64_t whole = number.kind == Arg::Kind::kFloat ? static_cast<int64_t>(real) : number.i;
  switch (dtype) {
    case DType::F32:
      put(static_cast<float>(real));
      break;
    case DType::F16:
    case DType::C32:
      put(simd::f32_to_f16(static_cast<float>(real)));
      break;
    case DType::BF16:
      put(simd::f32_to_bf16(static_cast<float>(real)));
      break;
    case DType::F64:
    case DType::C128:
      put(real);
      break;
    case DType::C64:
      put(static_cast<float>(real));
      break;
    case DType::I64:
    case DType::U64:
      put(whole);
      break;
    case DType::I32:
    case DType::U32:
      put(static_cast<int32_t>(whole));
      break;
    case DType::I16:
    case DType::U16:
      put(static_cast<int16_t>(whole));
      break;
    case DType::I8:
    case DType::U8:
      put(static_cast<uint8_t>(whole));
      break;
    case DType::Bool:
      put(static_cast<uint8_t>(real != 0));
      break;
  }
  return out;
}

}  // namespace tessera
