// SPDX-License-Identifier: Apache-2.0
// Writes the composition of an op by calls:
//
//   static void compose(Compose& c) {
//     Builder b(c);
//     Value x = b.input(0);
//     b.output(where(x > 0.0, x, x * c.attribute("alpha", 0.01)));
//   }
//
// Every row of docs/custom-ops.md that is not here is reached by Builder::node, which is told the
// types of its results.
#ifndef TESSERA_BUILDER_H
#define TESSERA_BUILDER_H

#include <cmath>
#include <cstdio>

#include "tessera/custom_op.h"

namespace tessera {
namespace custom {

class Builder;
class Value;

// An argument of a node: a value, a number, a text or a list of them.
class Argument {
 public:
  Argument(const Value& v);
  Argument(double v) : text_(real(v)) {}
  Argument(float v) : text_(real(static_cast<double>(v))) {}
  Argument(int v) : text_(std::to_string(v)) {}
  Argument(int64_t v) : text_(std::to_string(v)) {}
  Argument(bool v) : text_(v ? "true" : "false") {}
  Argument(DType t) : text_(ir_name(t)) {}
  Argument(const char* v) : text_(quoted(v)) {}
  Argument(const std::string& v) : text_(quoted(v)) {}
  Argument(const std::vector<int64_t>& v) : text_(list(v)) {}
  Argument(const std::vector<Value>& v);
  static Argument none() { return raw("none"); }
  // As it stands in the text form.
  static Argument raw(const std::string& text) {
    Argument a(0);
    a.text_ = text;
    return a;
  }

  const std::string& text() const { return text_; }
  static const char* ir_name(DType t) {
    static const char* const names[] = {"f32", "f16", "bf16", "f64", "i64",
                                        "i32", "i16", "i8",   "u8",  "bool"};
    return names[static_cast<int>(t)];
  }
  static std::string quoted(const std::string& s) {
    std::string out = "\"";
    for (char c : s) {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
    return out + "\"";
  }

 private:
  static std::string real(double v) {
    if (std::isnan(v)) return "nan";
    if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
    char text[40];
    std::snprintf(text, sizeof(text), "%.17g", v);
    std::string out = text;
    return out.find_first_of(".e") == std::string::npos ? out + ".0" : out;
  }
  template <typename List>
  static std::string list(const List& items) {
    std::string out = "[";
    for (size_t i = 0; i < items.size(); ++i)
      out += (i ? ", " : "") + Argument(static_cast<typename List::value_type>(items[i])).text();
    return out + "]";
  }
  std::string text_;
};

// A tensor of a composition.
class Value {
 public:
  Value(Builder* b, int number, const Type& type) : b_(b), number_(number), type_(type) {}

  const Type& type() const { return type_; }
  DType dtype() const { return type_.dtype; }
  const std::vector<int64_t>& shape() const { return type_.shape; }
  int rank() const { return type_.rank(); }
  int number() const { return number_; }
  Builder& builder() const { return *b_; }

  Value cast(DType dtype) const;
  Value reshape(const std::vector<int64_t>& shape) const;
  Value expand(const std::vector<int64_t>& shape) const;
  Value permute(const std::vector<int64_t>& dims) const;
  Value transpose(int a, int b) const;
  Value slice(int dim, int64_t begin, int64_t end) const;
  // Reductions; no dims: all of them.
  Value sum(const std::vector<int64_t>& dims = {}, bool keep = false) const;
  Value mean(const std::vector<int64_t>& dims = {}, bool keep = false) const;
  Value amax(const std::vector<int64_t>& dims = {}, bool keep = false) const;
  Value amin(const std::vector<int64_t>& dims = {}, bool keep = false) const;
  Value softmax(int dim) const;

 private:
  Builder* b_;
  int number_;
  Type type_;
};

class Builder {
 public:
  explicit Builder(Compose& c) : c_(c) {
    for (int i = 0; i < c.inputs(); ++i) {
      inputs_.push_back(Value(this, next_++, c.input(i)));
      lines_ += "  input %" + std::to_string(i) + " \"" + std::to_string(i) +
                "\" : " + type_text(inputs_.back().type()) + "\n";
    }
  }
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;
  // The composition is complete when the builder goes.
  ~Builder() {
    std::string outputs;
    for (const Value& v : outputs_)
      outputs += (outputs.empty() ? "  output %" : ", %") + std::to_string(v.number());
    c_.text("tessera 1\ngraph \"composition\" {\n" + lines_ + outputs + "\n}\n");
  }

  Value input(int i) const {
    if (i < 0 || static_cast<size_t>(i) >= inputs_.size())
      throw std::out_of_range("there is no " + detail::tensor_name("input", i));
    return inputs_[static_cast<size_t>(i)];
  }
  // The next output.
  void output(const Value& v) { outputs_.push_back(v); }

  // Any row, by its name in the text form, with the types of its results.
  std::vector<Value> node(const std::string& row, const std::vector<Argument>& args,
                          const std::vector<Type>& types) {
    std::string results, stated, given;
    std::vector<Value> out;
    for (const Type& t : types) {
      results += (out.empty() ? "%" : ", %") + std::to_string(next_);
      stated += (out.empty() ? "" : ", ") + type_text(t);
      out.push_back(Value(this, next_++, t));
    }
    for (size_t i = 0; i < args.size(); ++i) given += (i ? ", " : "") + args[i].text();
    lines_ += "  " + results + " = " + row + "(" + given + ") : " + stated + "\n";
    return out;
  }
  Value node(const std::string& row, const std::vector<Argument>& args, const Type& type) {
    return node(row, args, std::vector<Type>{type})[0];
  }
  // A custom op of a library; attributes are given as text, [["alpha", 0.5]].
  std::vector<Value> custom(const std::string& domain, const std::string& name, int version,
                            const std::vector<Value>& inputs, const std::vector<Type>& types,
                            const std::string& attributes = "[]") {
    return node("custom", {domain, name, version, inputs, Argument::raw(attributes)}, types);
  }

  // A pointwise row on values of one type, or numbers, broadcast to each other.
  Value pointwise(const std::string& row, const std::vector<Value>& values,
                  const std::vector<Argument>& args, bool gives_bool = false) {
    if (values.empty()) throw std::invalid_argument(row + " needs a tensor");
    Type t = values[0].type();
    for (const Value& v : values) t.shape = broadcast(row, t.shape, v.shape());
    if (row == "where") t.dtype = values.back().dtype();
    if (gives_bool) t.dtype = DType::Bool;
    return node(row, args, t);
  }
  Value unary(const std::string& row, const Value& x) { return pointwise(row, {x}, {x}); }
  Value full(const Type& t, double value) { return node("full", {value}, t); }

  static std::string type_text(const Type& t) {
    std::string out = std::string(Argument::ir_name(t.dtype)) + "[";
    for (size_t i = 0; i < t.shape.size(); ++i) out += (i ? "," : "") + std::to_string(t.shape[i]);
    return out + "]";
  }

 private:
  static std::vector<int64_t> broadcast(const std::string& row, const std::vector<int64_t>& a,
                                        const std::vector<int64_t>& b) {
    std::vector<int64_t> out(std::max(a.size(), b.size()), 1);
    for (const std::vector<int64_t>* s : {&a, &b})
      for (size_t i = 0; i < s->size(); ++i) {
        int64_t& d = out[out.size() - s->size() + i];
        if (d != 1 && (*s)[i] != 1 && d != (*s)[i])
          throw std::invalid_argument(row + ": shapes do not broadcast");
        if (d == 1) d = (*s)[i];
      }
    return out;
  }
  Compose& c_;
  std::vector<Value> inputs_, outputs_;
  std::string lines_;
  int next_ = 0;
};

inline Argument::Argument(const Value& v) : text_("%" + std::to_string(v.number())) {}
inline Argument::Argument(const std::vector<Value>& v) : text_(list(v)) {}

}  // namespace custom
}  // namespace tessera

#include "tessera/builder_ops.h"

#endif
