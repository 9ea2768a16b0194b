// SPDX-License-Identifier: Apache-2.0
// Vertices of quantise.cpp, as they are written for the device alone: vectors and intrinsics.
#include <ipu_builtins.h>

#include <ipu_memory_intrinsics>
#include <ipu_vector_math>
#include <poplar/HalfFloat.hpp>
#include <poplar/Vertex.hpp>

using namespace poplar;

enum class RoundingMode { Nearest, Down, Stochastic };

// Keeps the upper bits of a float, and limits its size.
template <RoundingMode Mode>
class RoundFloat : public Vertex {
  typedef unsigned uint2_t __attribute__((vector_size(8)));

 public:
  Input<Vector<float, VectorLayout::COMPACT_PTR, 8>> in;
  Output<Vector<float, VectorLayout::SPAN, 8>> out;
  const unsigned dropped;  // bits
  const float limit;

  bool compute() {
    const float2* from = reinterpret_cast<const float2*>(&in[0]);
    float2* to = reinterpret_cast<float2*>(&out[0]);
    const unsigned low = (1u << dropped) - 1u;
    const uint2_t bits = {low, low};
    const float2 mask = *reinterpret_cast<const float2*>(&bits);
    const float2 bounds = {-limit, limit};
    for (unsigned i = 0; i < out.size() / 2; ++i) {
      float2 x = ipu::load_postinc(&from, 1);
      uint2_t u = *reinterpret_cast<uint2_t*>(&x);
      if (Mode == RoundingMode::Nearest) u += (low >> 1) + ((u >> dropped) & 1u);
      if (Mode == RoundingMode::Stochastic) {
        const uint2_t noise = {__builtin_ipu_urand32(), __builtin_ipu_urand32()};
        u += noise & bits;
      }
      x = *reinterpret_cast<float2*>(&u);
      x = ipu::andc(x, mask);
      ipu::store_postinc(&to, ipu::clamp(x, bounds), 1);
    }
    return true;
  }
};

template class RoundFloat<RoundingMode::Nearest>;
template class RoundFloat<RoundingMode::Down>;
template class RoundFloat<RoundingMode::Stochastic>;

// Four signed values of 4 bits in every 16: value v is stored as v + 8.
class Decompress : public Vertex {
 public:
  Input<Vector<unsigned short, VectorLayout::ONE_PTR, 8>> packed;
  Output<Vector<half, VectorLayout::SPAN, 8>> out;

  bool compute() {
    const unsigned short* from = &packed[0];
    half4* to = reinterpret_cast<half4*>(&out[0]);
    for (unsigned i = 0; i < out.size() / 4; ++i) {
      const unsigned short word = ipu::load_postinc(&from, 1);
      const ushort4 shift = {0, 4, 8, 12};
      const ushort4 value = ((ushort4{word, word, word, word}) >> shift) & 15;
      half4 x = {};
      for (unsigned k = 0; k < 4; ++k) x[k] = half(value[k]);
      ipu::store_postinc(&to, x - half(8), 1);
    }
    return true;
  }
};
