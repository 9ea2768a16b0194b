// SPDX-License-Identifier: Apache-2.0
// The generator of kernels/random.h as vector code.
#ifdef TESSERA_HAVE_LLVM

#include "codegen/vector_internal.h"

namespace tessera::codegen {
namespace {

Vector word(const Vector& x, uint32_t v) {
  return constant_int(*x.e, DType::I32, static_cast<int32_t>(v));
}
Vector xor_shift(const Vector& x, int n) {
  return x ^ shift_right(x, n);
}

Vector mix(Vector x) {
  x = xor_shift(x, 17) * word(x, 0xed5ad4bb);
  x = xor_shift(x, 11) * word(x, 0xac4c1b51);
  x = xor_shift(x, 15) * word(x, 0x31848bab);
  return xor_shift(x, 14);
}

Vector fold(const Vector& x) {
  Vector low = convert(x, DType::I32), high = convert(shift_right(x, 32), DType::I32);
  return low ^ (high * word(high, 0x85ebca6b));
}

}  // namespace

VectorKey random_key(const Vector& seed, const Vector& counter, const Vector& stream) {
  Vector s = convert(stream, DType::I32);
  Vector a = mix(fold(seed) ^ mix(s + word(s, 0x9e3779b9)));
  return {a, mix(fold(counter) + mix(a))};
}

Vector random_uniform(const VectorKey& key, const Vector& index_low) {
  Vector x = index_low ^ key.a;
  x = xor_shift(x, 17) * word(x, 0xed5ad4bb);
  x = xor_shift(x, 11) + key.b;
  x = x * word(x, 0xac4c1b51);
  x = xor_shift(x, 15) * word(x, 0x31848bab);
  x = xor_shift(x, 14);
  return convert(shift_right(x, 8), DType::F32) * constant(*x.e, DType::F32, 0x1p-24);
}

}  // namespace tessera::codegen

#endif  // TESSERA_HAVE_LLVM
