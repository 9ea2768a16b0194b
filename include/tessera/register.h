// SPDX-License-Identifier: Apache-2.0
// From a class with some of the functions of custom_op.h to the table of callbacks.
#ifndef TESSERA_REGISTER_H
#define TESSERA_REGISTER_H

#include "tessera/custom_op.h"

namespace tessera {
namespace custom {
namespace detail {

// Whether a class has a function is found by whether a call of it compiles.
#define TESSERA_DETAIL_HAS(function, argument)                                                  \
  template <typename T>                                                                         \
  auto has_##function(int)->decltype(T::function(std::declval<argument&>()), std::true_type()); \
  template <typename T>                                                                         \
  std::false_type has_##function(long);
TESSERA_DETAIL_HAS(compose, Compose)
TESSERA_DETAIL_HAS(gradients, Gradients)
TESSERA_DETAIL_HAS(work, WorkEstimate)
#undef TESSERA_DETAIL_HAS

template <typename T>
auto has_compute(int)
    -> decltype(std::declval<const T&>().compute(std::declval<const Run&>()), std::true_type());
template <typename T>
std::false_type has_compute(long);

template <typename T>
constexpr unsigned flags_of(decltype(T::flags)*) {
  return T::flags;
}
template <typename T>
constexpr unsigned flags_of(...) {
  return 0;
}

template <typename T, bool Prepared = std::is_constructible<T, Prepare&>::value>
struct Computes {
  static void add(tessera_op& op) {
    op.compute = [](const tessera_run* r) { T{}.compute(Run(r)); };
  }
};
template <typename T>
struct Computes<T, true> {
  static void add(tessera_op& op) {
    op.prepare = [](tessera_call* c) -> void* {
      Prepare p(c);
      return new T(p);
    };
    op.destroy = [](void* instance) { delete static_cast<T*>(instance); };
    op.compute = [](const tessera_run* r) { static_cast<const T*>(r->instance)->compute(Run(r)); };
  }
};

template <typename T>
void add_compute(tessera_op& op, std::true_type) {
  Computes<T>::add(op);
}
template <typename T>
void add_compute(tessera_op&, std::false_type) {}
template <typename T>
void add_compose(tessera_op& op, std::true_type) {
  op.compose = [](tessera_call* c) {
    Compose compose(c);
    T::compose(compose);
  };
}
template <typename T>
void add_compose(tessera_op&, std::false_type) {}
template <typename T>
void add_gradients(tessera_op& op, std::true_type) {
  op.gradients = [](tessera_call* c) {
    Gradients g(c);
    T::gradients(g);
  };
}
template <typename T>
void add_gradients(tessera_op&, std::false_type) {}
template <typename T>
void add_work(tessera_op& op, std::true_type) {
  op.work = [](tessera_call* c) {
    WorkEstimate w(c);
    T::work(w);
  };
}
template <typename T>
void add_work(tessera_op&, std::false_type) {}

}  // namespace detail

template <typename T>
tessera_op describe(const char* domain, const char* name, int version) {
  using namespace detail;
  static_assert(decltype(has_compute<T>(0))::value || decltype(has_compose<T>(0))::value,
                "an op has a function compute(const Run&) or compose(Compose&)");
  tessera_op op{};
  op.size = sizeof(tessera_op);
  op.abi = TESSERA_OPS_ABI;
  op.domain = domain;
  op.name = name;
  op.version = version;
  op.flags = flags_of<T>(nullptr);
  op.setup = [](tessera_call* c) {
    Setup s(c);
    T::setup(s);
  };
  add_compute<T>(op, decltype(has_compute<T>(0))());
  add_compose<T>(op, decltype(has_compose<T>(0))());
  add_gradients<T>(op, decltype(has_gradients<T>(0))());
  add_work<T>(op, decltype(has_work<T>(0))());
  return op;
}

struct Registration {
  int answer;
  explicit Registration(const tessera_op& op) : answer(tessera_register_op(&op)) {}
};

}  // namespace custom
}  // namespace tessera

#define TESSERA_DETAIL_JOIN2(a, b) a##b
#define TESSERA_DETAIL_JOIN(a, b) TESSERA_DETAIL_JOIN2(a, b)

// At namespace scope; the op is there when the library is loaded.
#define TESSERA_REGISTER_OP(type, domain, name, version)            \
  static const ::tessera::custom::Registration TESSERA_DETAIL_JOIN( \
      tessera_op_, __COUNTER__)(::tessera::custom::describe<type>(domain, name, version))

#endif
