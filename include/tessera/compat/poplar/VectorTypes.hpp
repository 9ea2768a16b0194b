// SPDX-License-Identifier: Apache-2.0
// Vector types of the device: element-wise arithmetic, v[i], {a, b} come from the compiler.
#pragma once

#include <poplar/HalfFloat.hpp>

#define TESSERA_VECTOR(type, name, n) \
  typedef type name __attribute__((vector_size(n * sizeof(type))))
TESSERA_VECTOR(half, half2, 2);
TESSERA_VECTOR(half, half4, 4);
TESSERA_VECTOR(half, half8, 8);
TESSERA_VECTOR(float, float2, 2);
TESSERA_VECTOR(float, float4, 4);
TESSERA_VECTOR(int, int2, 2);
TESSERA_VECTOR(int, int4, 4);
TESSERA_VECTOR(unsigned int, uint2, 2);
TESSERA_VECTOR(unsigned int, uint4, 4);
TESSERA_VECTOR(short, short2, 2);
TESSERA_VECTOR(short, short4, 4);
TESSERA_VECTOR(unsigned short, ushort2, 2);
TESSERA_VECTOR(unsigned short, ushort4, 4);
TESSERA_VECTOR(signed char, char2, 2);
TESSERA_VECTOR(signed char, char4, 4);
TESSERA_VECTOR(signed char, char8, 8);
TESSERA_VECTOR(unsigned char, uchar2, 2);
TESSERA_VECTOR(unsigned char, uchar4, 4);
TESSERA_VECTOR(unsigned char, uchar8, 8);
TESSERA_VECTOR(long long, longlong2, 2);
TESSERA_VECTOR(unsigned long long, ulonglong2, 2);
#undef TESSERA_VECTOR

using rptsize_t = unsigned int;
