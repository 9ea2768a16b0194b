// SPDX-License-Identifier: Apache-2.0
// What a compiled file of codelets says about its vertices. The file that custom/codelets generates
// around the user's includes this and fills the tables; the library reads them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

// Codelets compiled for another number are compiled anew.
#define TESSERA_CODELET_ABI 1

typedef enum tessera_field_kind {
  TESSERA_FIELD_UNKNOWN = 0,  // of a type that cannot be set or connected
  TESSERA_FIELD_VALUE = 1,    // state: one or more numbers in the vertex
  TESSERA_FIELD_STATE = 2,    // state: pointer and size
  TESSERA_FIELD_SCALAR = 3,   // connected: pointer to an element
  TESSERA_FIELD_VECTOR = 4,   // connected: pointer and size
  TESSERA_FIELD_SCALARS = 5,  // connected: pointer to and number of SCALARs
  TESSERA_FIELD_VECTORS = 6   // connected: pointer to and number of VECTORs
} tessera_field_kind;

enum { TESSERA_FIELD_READ = 1, TESSERA_FIELD_WRITE = 2 };

typedef struct tessera_field {
  const char* name;
  uint32_t offset;
  int32_t kind;
  int32_t direction;  // bits of TESSERA_FIELD_READ and TESSERA_FIELD_WRITE
  int32_t type;       // a row of TESSERA_POPLAR_TYPES, or -1
  uint32_t bytes;     // of an element
  uint32_t align;
  uint32_t count;  // of a VALUE: elements
  int32_t real;    // elements are floating point
} tessera_field;

typedef struct tessera_vertex {
  const char* name;
  uint32_t bytes, align;
  const tessera_field* fields;
  uint32_t field_count;
  uint32_t workers;
  void (*construct)(void*);  // null: zeros will do
  void (*compute)(void*, unsigned worker);
} tessera_vertex;

typedef struct tessera_codelets {
  uint32_t abi;
  uint32_t vertex_count;
  const tessera_vertex* vertices;
  void (*seed)(uint64_t);  // of the random numbers of this thread
} tessera_codelets;

#ifdef TESSERA_CODELET_SIDE

#include <ipu_builtins.h>

#include <new>
#include <poplar/Vertex.hpp>

namespace tessera_codelet {

template <typename T>
constexpr int type_code() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_enum_v<U>)
    return type_code<std::underlying_type_t<U>>();
  else
    return std::is_same_v<U, float>                ? 0
           : std::is_same_v<U, half>               ? 1
           : std::is_same_v<U, int>                ? 2
           : std::is_same_v<U, unsigned>           ? 3
           : std::is_same_v<U, short>              ? 4
           : std::is_same_v<U, unsigned short>     ? 5
           : std::is_same_v<U, char>               ? 6
           : std::is_same_v<U, signed char>        ? 7
           : std::is_same_v<U, unsigned char>      ? 8
           : std::is_same_v<U, bool>               ? 9
           : std::is_same_v<U, long>               ? 10
           : std::is_same_v<U, long long>          ? 10
           : std::is_same_v<U, unsigned long>      ? 11
           : std::is_same_v<U, unsigned long long> ? 11
                                                   : -1;
}

template <typename T>
constexpr bool is_real() {
  return std::is_floating_point_v<std::remove_cv_t<T>> || std::is_same_v<std::remove_cv_t<T>, half>;
}

// What a field is, by its type.
template <typename T>
struct Describe {
  using E = std::remove_all_extents_t<T>;
  static constexpr bool number =
      std::is_arithmetic_v<std::remove_cv_t<E>> || std::is_enum_v<E> || is_real<E>();
  static constexpr int kind = number ? TESSERA_FIELD_VALUE : TESSERA_FIELD_UNKNOWN;
  static constexpr int direction = 0;
  static constexpr int type = type_code<E>();
  static constexpr unsigned bytes = sizeof(E), align = alignof(E), count = sizeof(T) / sizeof(E);
  static constexpr bool real = is_real<E>();
};

template <typename T>
struct Describe<const T> : Describe<T> {};

template <typename T, int Kind, int Direction, unsigned Align>
struct Field {
  static constexpr int kind = Kind, direction = Direction, type = type_code<T>();
  static constexpr unsigned bytes = sizeof(T), align = Align < alignof(T) ? alignof(T) : Align;
  static constexpr unsigned count = 1;
  static constexpr bool real = is_real<T>();
};

// A Vector without Input and the like inside is state; with it, one more level.
template <typename T, poplar::VectorLayout L, unsigned A, bool I>
struct Describe<poplar::Vector<T, L, A, I>> : Field<T, TESSERA_FIELD_STATE, 0, A> {};

#define TESSERA_DIRECTION(name, bits)                                                       \
  template <typename T>                                                                     \
  struct Describe<poplar::name<T>> : Field<T, TESSERA_FIELD_SCALAR, bits, 1> {};            \
  template <typename T, poplar::VectorLayout L, unsigned A, bool I>                         \
  struct Describe<poplar::name<poplar::Vector<T, L, A, I>>>                                 \
      : Field<T, TESSERA_FIELD_VECTOR, bits, A> {};                                         \
  template <typename T, poplar::VectorListLayout L, unsigned A, bool I>                     \
  struct Describe<poplar::name<poplar::VectorList<T, L, A, I>>>                             \
      : Field<T, TESSERA_FIELD_VECTORS, bits, A> {};                                        \
  template <typename T, poplar::VectorLayout L, unsigned A, bool I>                         \
  struct Describe<poplar::Vector<poplar::name<T>, L, A, I>>                                 \
      : Field<T, TESSERA_FIELD_SCALARS, bits, 1> {};                                        \
  template <typename T, poplar::VectorLayout M, unsigned B, bool J, poplar::VectorLayout L, \
            unsigned A, bool I>                                                             \
  struct Describe<poplar::Vector<poplar::name<poplar::Vector<T, M, B, J>>, L, A, I>>        \
      : Field<T, TESSERA_FIELD_VECTORS, bits, B> {};
TESSERA_DIRECTION(Input, TESSERA_FIELD_READ)
TESSERA_DIRECTION(Output, TESSERA_FIELD_WRITE)
TESSERA_DIRECTION(InOut, TESSERA_FIELD_READ | TESSERA_FIELD_WRITE)
#undef TESSERA_DIRECTION

template <typename V>
constexpr unsigned workers() {
  if constexpr (std::is_base_of_v<poplar::MultiVertex, V>)
    return poplar::MultiVertex::numWorkers();
  else
    return 1;
}

template <typename V>
void compute(void* at, unsigned worker) {
  V* vertex = static_cast<V*>(at);
  if constexpr (std::is_base_of_v<poplar::MultiVertex, V>)
    (void)vertex->V::compute(worker);
  else
    (void)vertex->V::compute();
}

template <typename V>
void construct(void* at) {
  ::new (at) V;
}

// A constructor that is declared need not be defined: then it is not called.
template <typename V, bool Declared>
constexpr auto constructor() -> void (*)(void*) {
  if constexpr (!Declared && std::is_default_constructible_v<V> &&
                !std::is_trivially_default_constructible_v<V>)
    return construct<V>;
  else
    return nullptr;
}

inline void seed(std::uint64_t value) {
  random_state() = value;
}

}  // namespace tessera_codelet

#define TESSERA_CODELET_FIELD(V, field)                              \
  {                                                                  \
#field, static_cast < uint32_t>(__builtin_offsetof(V, field)),   \
        tessera_codelet::Describe < decltype(V::field)> ::kind,      \
        tessera_codelet::Describe < decltype(V::field)> ::direction, \
        tessera_codelet::Describe < decltype(V::field)> ::type,      \
        tessera_codelet::Describe < decltype(V::field)> ::bytes,     \
        tessera_codelet::Describe < decltype(V::field)> ::align,     \
        tessera_codelet::Describe < decltype(V::field)> ::count,     \
        tessera_codelet::Describe < decltype(V::field)> ::real       \
  }

#endif
