// SPDX-License-Identifier: Apache-2.0
// Rare functions: lane by lane through codegen/special_math.h, f32 lanes in double too.
#ifdef TESSERA_HAVE_LLVM

#include "codegen/vector_internal.h"

namespace tessera::codegen {
namespace {

template <D1 F>
float narrow1(float x) {
  return static_cast<float>(F(x));
}
template <D2 F>
float narrow2(float x, float y) {
  return static_cast<float>(F(x, y));
}

}  // namespace

#define TESSERA_ONE(name)                                     \
  Vector name(const Vector& a) {                              \
    return library<narrow1<special::name>, special::name>(a); \
  }
#define TESSERA_TWO(name)                                        \
  Vector name(const Vector& a, const Vector& b) {                \
    return library<narrow2<special::name>, special::name>(a, b); \
  }
TESSERA_SPECIAL(TESSERA_ONE, TESSERA_TWO)
#undef TESSERA_ONE
#undef TESSERA_TWO

}  // namespace tessera::codegen

#endif  // TESSERA_HAVE_LLVM
