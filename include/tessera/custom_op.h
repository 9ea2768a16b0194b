// SPDX-License-Identifier: Apache-2.0
// Custom ops in C++14 and later. An op is a class:
//
//   #include <tessera/custom_op.h>
//   using namespace tessera::custom;
//
//   struct Scale {
//     static void setup(Setup& s) { s.output(0, s.input(0)); }
//     static void compute(const Run& run) {
//       const float by = run.attribute("by", 1.0f);
//       auto x = run.input<float>(0);
//       auto y = run.output<float>(0);
//       const Range r = run.share(x.size());
//       for (int64_t i = r.begin; i < r.end; ++i) y[i] = by * x[i];
//     }
//   };
//   TESSERA_REGISTER_OP(Scale, "com.example", "Scale", 1);
//
// The functions that a class may have, all static unless noted:
//
//   void setup(Setup&)
//       types of the outputs; must be there
//   void compute(const Run&)
//       called by all threads; may be a const member of a class with a constructor from Prepare&,
//       which is made once per place in a program
//   void compose(Compose&)
//       instead of compute: the op as a graph of others (builder.h, or text)
//   void gradients(Gradients&)
//       the ops that compute its gradients
//   void work(WorkEstimate&)
//       operations and bytes
//   constexpr unsigned flags
//       TESSERA_ONE_THREAD, TESSERA_VARIES
//
// What they throw is the user's error, with the line of the program that called the op.
#ifndef TESSERA_CUSTOM_OP_H
#define TESSERA_CUSTOM_OP_H

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "tessera/abi.h"
#include "tessera/half.h"

namespace tessera {
namespace custom {

enum class DType : int32_t {
  Float32 = TESSERA_F32,
  Float16 = TESSERA_F16,
  BFloat16 = TESSERA_BF16,
  Float64 = TESSERA_F64,
  Int64 = TESSERA_I64,
  Int32 = TESSERA_I32,
  Int16 = TESSERA_I16,
  Int8 = TESSERA_I8,
  UInt8 = TESSERA_U8,
  Bool = TESSERA_BOOL
};

namespace detail {
template <typename T>
struct DTypeOf;
template <DType D>
struct Is {
  static constexpr DType value = D;
};
template <>
struct DTypeOf<float> : Is<DType::Float32> {};
template <>
struct DTypeOf<Half> : Is<DType::Float16> {};
template <>
struct DTypeOf<custom::BFloat16> : Is<DType::BFloat16> {};
template <>
struct DTypeOf<double> : Is<DType::Float64> {};
template <>
struct DTypeOf<int64_t> : Is<DType::Int64> {};
template <>
struct DTypeOf<int32_t> : Is<DType::Int32> {};
template <>
struct DTypeOf<int16_t> : Is<DType::Int16> {};
template <>
struct DTypeOf<int8_t> : Is<DType::Int8> {};
template <>
struct DTypeOf<uint8_t> : Is<DType::UInt8> {};
template <>
struct DTypeOf<bool> : Is<DType::Bool> {};

inline std::string tensor_name(const char* kind, int index) {
  return std::string(kind) + " " + std::to_string(index);
}
}  // namespace detail

inline const char* name_of(DType t) {
  static const char* const names[] = {"float32", "float16", "bfloat16", "float64", "int64",
                                      "int32",   "int16",   "int8",     "uint8",   "bool"};
  return names[static_cast<int>(t)];
}

// Element type and shape of a tensor.
struct Type {
  DType dtype = DType::Float32;
  std::vector<int64_t> shape;

  int rank() const { return static_cast<int>(shape.size()); }
  int64_t count() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
  bool operator==(const Type& o) const { return dtype == o.dtype && shape == o.shape; }
  bool operator!=(const Type& o) const { return !(*this == o); }
};

template <typename T>
class Span {
 public:
  Span(T* data, int64_t size) : data_(data), size_(size) {}
  T* data() const { return data_; }
  int64_t size() const { return size_; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  T* data_;
  int64_t size_;
};

// The items [begin, end).
struct Range {
  int64_t begin, end;
};

// What every callback may ask of a call.
class Call {
 public:
  explicit Call(const tessera_call* c) : c_(c) {}

  const tessera_call* handle() const { return c_; }
  int inputs() const { return tessera_call_inputs(c_); }
  int outputs() const { return tessera_call_outputs(c_); }
  Type input(int i) const { return type_of(tessera_call_input(c_, i), "input", i); }
  Type output(int i) const { return type_of(tessera_call_output(c_, i), "output", i); }

  bool has_attribute(const char* name) const {
    return tessera_call_attribute_kind(c_, name) != TESSERA_NO_ATTRIBUTE;
  }
  // The value of an attribute, or `otherwise` if it is not given. A value of another kind is an
  // error.
  float attribute(const char* name, float otherwise) const {
    return has_attribute(name) ? value(tessera_call_floats(c_, name, nullptr), name, "a float")
                               : otherwise;
  }
  float attribute(const char* name, double otherwise) const {
    return attribute(name, static_cast<float>(otherwise));
  }
  int64_t attribute(const char* name, int64_t otherwise) const {
    return has_attribute(name) ? value(tessera_call_ints(c_, name, nullptr), name, "an int")
                               : otherwise;
  }
  int64_t attribute(const char* name, int otherwise) const {
    return attribute(name, static_cast<int64_t>(otherwise));
  }
  std::string attribute(const char* name, const char* otherwise) const {
    return has_attribute(name) ? value(tessera_call_strings(c_, name, nullptr), name, "a string")
                               : otherwise;
  }
  std::vector<float> attribute(const char* name, const std::vector<float>& otherwise) const {
    int64_t n = 0;
    const float* p = tessera_call_floats(c_, name, &n);
    return has_attribute(name) ? values<float>(p, n, name, "floats") : otherwise;
  }
  std::vector<int64_t> attribute(const char* name, const std::vector<int64_t>& otherwise) const {
    int64_t n = 0;
    const int64_t* p = tessera_call_ints(c_, name, &n);
    return has_attribute(name) ? values<int64_t>(p, n, name, "ints") : otherwise;
  }
  std::vector<std::string> attribute(const char* name,
                                     const std::vector<std::string>& otherwise) const {
    int64_t n = 0;
    const char* const* p = tessera_call_strings(c_, name, &n);
    return has_attribute(name) ? values<std::string>(p, n, name, "strings") : otherwise;
  }

 protected:
  const tessera_call* c_;

 private:
  static Type type_of(const tessera_type* t, const char* kind, int i) {
    if (t == nullptr) throw std::out_of_range("there is no " + detail::tensor_name(kind, i));
    Type out;
    out.dtype = static_cast<DType>(t->dtype);
    out.shape.assign(t->shape, t->shape + t->rank);
    return out;
  }
  template <typename T>
  static T value(const T* p, const char* name, const char* kind) {
    if (p == nullptr)
      throw std::invalid_argument(std::string("attribute ") + name + " is not " + kind);
    return *p;
  }
  template <typename T, typename P>
  static std::vector<T> values(const P* p, int64_t n, const char* name, const char* kind) {
    if (p == nullptr)
      throw std::invalid_argument(std::string("attribute ") + name + " is not " + kind);
    return std::vector<T>(p, p + n);
  }
};

class Setup : public Call {
 public:
  explicit Setup(tessera_call* c) : Call(c), call_(c) {}
  using Call::output;
  void output(int i, const Type& t) {
    tessera_call_set_output(call_, i, static_cast<tessera_dtype>(t.dtype), t.rank(),
                            t.shape.data());
  }
  void output(int i, DType dtype, const std::vector<int64_t>& shape) {
    Type t;
    t.dtype = dtype;
    t.shape = shape;
    output(i, t);
  }

 private:
  tessera_call* call_;
};

class Prepare : public Call {
 public:
  explicit Prepare(tessera_call* c) : Call(c), call_(c) {}
  // Memory that every thread has to itself while compute runs.
  void scratch(int64_t bytes) { tessera_call_set_scratch(call_, bytes); }

 private:
  tessera_call* call_;
};

// One thread's part in one run.
class Run : public Call {
 public:
  explicit Run(const tessera_run* r) : Call(r->call), r_(r) {}

  int thread() const { return r_->thread; }
  int threads() const { return r_->threads; }
  // Waits for the other threads.
  void barrier() const { r_->barrier(r_); }
  // This thread's share of n items, cut at multiples of `grain`.
  Range share(int64_t n, int64_t grain = 1) const {
    const int64_t chunks = (n + grain - 1) / grain;
    return {std::min(n, chunks * thread() / threads() * grain),
            std::min(n, chunks * (thread() + 1) / threads() * grain)};
  }
  // Type of a tensor, without a copy of its shape.
  const tessera_type& input_type(int i) const {
    return checked(tessera_call_input(c_, i), "input", i);
  }
  const tessera_type& output_type(int i) const {
    return checked(tessera_call_output(c_, i), "output", i);
  }
  template <typename T>
  Span<const T> input(int i) const {
    const tessera_type& t = typed<T>(input_type(i), "input", i);
    return {static_cast<const T*>(r_->inputs[i]), count_of(t)};
  }
  template <typename T>
  Span<T> output(int i) const {
    const tessera_type& t = typed<T>(output_type(i), "output", i);
    return {static_cast<T*>(r_->outputs[i]), count_of(t)};
  }
  // The elements of a tensor of any type.
  const void* input_data(int i) const { return input_type(i), r_->inputs[i]; }
  void* output_data(int i) const { return output_type(i), r_->outputs[i]; }
  void* scratch() const { return r_->scratch; }
  void* instance() const { return r_->instance; }
  // The run ends with an error; compute should return. Throwing does the same.
  void fail(const std::string& text) const { r_->fail(r_, text.c_str()); }

 private:
  static const tessera_type& checked(const tessera_type* t, const char* kind, int i) {
    if (t == nullptr) throw std::out_of_range("there is no " + detail::tensor_name(kind, i));
    return *t;
  }
  template <typename T>
  static const tessera_type& typed(const tessera_type& t, const char* kind, int i) {
    if (static_cast<DType>(t.dtype) != detail::DTypeOf<T>::value)
      throw std::invalid_argument(detail::tensor_name(kind, i) + " is " +
                                  name_of(static_cast<DType>(t.dtype)) + ", not " +
                                  name_of(detail::DTypeOf<T>::value));
    return t;
  }
  static int64_t count_of(const tessera_type& t) {
    int64_t n = 1;
    for (int32_t d = 0; d < t.rank; ++d) n *= t.shape[d];
    return n;
  }
  const tessera_run* r_;
};

// f(T()) with the C++ type of a tensor of floats.
template <typename F>
void with_float_type(int32_t dtype, F f) {
  switch (static_cast<DType>(dtype)) {
    case DType::Float32:
      return f(float());
    case DType::Float16:
      return f(Half());
    case DType::BFloat16:
      return f(BFloat16());
    case DType::Float64:
      return f(double());
    default:
      throw std::invalid_argument(std::string("no floats: ") + name_of(static_cast<DType>(dtype)));
  }
}

class Compose : public Call {
 public:
  explicit Compose(tessera_call* c) : Call(c), call_(c) {}
  // Text IR: a graph whose inputs and outputs are those of the op.
  void text(const std::string& ir) { tessera_call_set_composition(call_, ir.c_str()); }

 private:
  tessera_call* call_;
};

// One op that computes gradients of inputs.
class Gradient {
 public:
  explicit Gradient(tessera_gradient* g, const tessera_call* c) : g_(g), c_(c) {}

  // Its next input is this input, output or gradient of an output of the op.
  Gradient& in(int index) { return add(TESSERA_IN, index); }
  Gradient& out(int index) { return add(TESSERA_OUT, index); }
  Gradient& grad_out(int index) { return add(TESSERA_GRAD_OUT, index); }
  // Its next output is the gradient of this input of the op.
  Gradient& gives(int forward_input) {
    tessera_gradient_set_output(g_, outputs_++, forward_input);
    return *this;
  }

  // Attributes: those of the op, or its own.
  Gradient& same_attributes() {
    tessera_gradient_copy_attributes(g_, c_);
    return *this;
  }
  Gradient& attribute(const char* name, float v) {
    tessera_gradient_set_floats(g_, name, 0, &v, 1);
    return *this;
  }
  Gradient& attribute(const char* name, double v) { return attribute(name, static_cast<float>(v)); }
  Gradient& attribute(const char* name, int64_t v) {
    tessera_gradient_set_ints(g_, name, 0, &v, 1);
    return *this;
  }
  Gradient& attribute(const char* name, int v) { return attribute(name, static_cast<int64_t>(v)); }
  Gradient& attribute(const char* name, const char* v) {
    tessera_gradient_set_strings(g_, name, 0, &v, 1);
    return *this;
  }
  Gradient& attribute(const char* name, const std::vector<float>& v) {
    tessera_gradient_set_floats(g_, name, 1, v.data(), static_cast<int64_t>(v.size()));
    return *this;
  }
  Gradient& attribute(const char* name, const std::vector<int64_t>& v) {
    tessera_gradient_set_ints(g_, name, 1, v.data(), static_cast<int64_t>(v.size()));
    return *this;
  }

 private:
  Gradient& add(tessera_gradient_source from, int index) {
    tessera_gradient_set_input(g_, inputs_++, from, index);
    return *this;
  }
  tessera_gradient* g_;
  const tessera_call* c_;
  int inputs_ = 0, outputs_ = 0;
};

class Gradients : public Call {
 public:
  explicit Gradients(tessera_call* c) : Call(c), call_(c) {}
  Gradient op(const char* domain, const char* name, int version = 1) {
    return Gradient(tessera_call_add_gradient(call_, domain, name, version), call_);
  }

 private:
  tessera_call* call_;
};

class WorkEstimate : public Call {
 public:
  explicit WorkEstimate(tessera_call* c) : Call(c), call_(c) {}
  void set(int64_t flops, int64_t bytes) { tessera_call_set_work(call_, flops, bytes); }

 private:
  tessera_call* call_;
};

}  // namespace custom
}  // namespace tessera

#include "tessera/builder.h"
#include "tessera/register.h"

#endif
