// SPDX-License-Identifier: Apache-2.0
#include "custom/compat/writer.h"

#include <cmath>
#include <cstdio>
#include <numeric>

#include "custom/compat/expr.h"

namespace tessera::compat {

std::string number_text(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.17g", x);
  std::string s = buffer;
  return s.find_first_of(".e") == std::string::npos ? s + ".0" : s;
}

std::string Writer::ref(const Value& x) {
  std::string s = "%";
  return s.append(std::to_string(x.id));
}

std::string Writer::list(const std::vector<int64_t>& values) {
  std::string s = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i) s += ", ";
    s += std::to_string(values[i]);
  }
  return s + "]";
}

std::string Writer::type_text(int32_t type, const Shape& shape) {
  std::string s = std::string(row_of(type).ir) + "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i) s += ",";
    s += std::to_string(shape[i]);
  }
  return s + "]";
}

Value Writer::input(int32_t type, const Shape& shape) {
  inputs_.push_back({next_++, type, shape});
  return inputs_.back();
}

Value Writer::node(std::string_view row, const std::string& args, int32_t type,
                   const Shape& shape) {
  return nodes(row, args, {Value{-1, type, shape}})[0];
}

std::vector<Value> Writer::nodes(std::string_view row, const std::string& args,
                                 const std::vector<Value>& types, const std::string& bodies) {
  std::vector<Value> out = types;
  std::string results, texts;
  for (Value& v : out) {
    v.id = next_++;
    results += (results.empty() ? "" : ", ") + ref(v);
    texts += (texts.empty() ? "" : ", ") + type_text(v.type, v.shape);
  }
  body_ +=
      "  " + results + " = " + std::string(row) + "(" + args + ")" + bodies + " : " + texts + "\n";
  return out;
}

Value Writer::pointwise(std::string_view row, const std::vector<Value>& operands, int32_t type) {
  Shape shape;
  std::string args;
  for (const Value& v : operands) {
    shape = broadcast(shape, v.shape, row);
    args += (args.empty() ? "" : ", ") + ref(v);
  }
  return node(row, args, type, shape);
}

Value Writer::full(double number, int64_t integer, int32_t type, const Shape& shape) {
  const std::string text = is_real(type)  ? number_text(number)
                           : type == BOOL ? (integer ? "true" : "false")
                                          : std::to_string(wrapped(integer, type));
  return node("full", text, type, shape);
}

Value Writer::cast(const Value& x, int32_t type) {
  if (x.type == type) return x;
  if (std::string_view(row_of(x.type).ir) == row_of(type).ir) return {x.id, type, x.shape};
  const bool wider = is_real(type) || (row_of(type).bytes > row_of(x.type).bytes);
  if ((is_unsigned(x.type) && type != BOOL && wider) || (is_real(x.type) && is_unsigned(type)))
    return cast_unsigned(*this, x, type);
  return node("_to_copy", ref(x), type, x.shape);
}

Value Writer::reshape(const Value& x, const Shape& shape) {
  if (x.shape == shape) return x;
  return node("view", ref(x) + ", " + list(shape), x.type, shape);
}

Value Writer::permute(const Value& x, const std::vector<int64_t>& order) {
  std::vector<int64_t> same(order.size());
  std::iota(same.begin(), same.end(), 0);
  if (order == same) return x;
  Shape shape;
  for (int64_t d : order) shape.push_back(x.shape[d]);
  return node("permute", ref(x) + ", " + list(order), x.type, shape);
}

Value Writer::slice(const Value& x, int64_t dim, int64_t begin, int64_t end) {
  if (begin == 0 && end == x.shape[dim]) return x;
  Shape shape = x.shape;
  shape[dim] = end - begin;
  const std::string where =
      std::to_string(dim) + ", " + std::to_string(begin) + ", " + std::to_string(end);
  return node("slice", ref(x) + ", " + where + ", 1", x.type, shape);
}

Value Writer::expand(const Value& x, const Shape& shape) {
  if (x.shape == shape) return x;
  return node("expand", ref(x) + ", " + list(shape), x.type, shape);
}

Value Writer::flip(const Value& x, int64_t dim) {
  return node("flip", ref(x) + ", [" + std::to_string(dim) + "]", x.type, x.shape);
}

Value Writer::bits(const Value& x, int32_t type) {
  const std::string_view want = row_of(type).ir;
  if (want == row_of(x.type).ir) return {x.id, type, x.shape};
  return node("view", ref(x) + ", " + std::string(want), type, x.shape);
}

Value Writer::cat(const std::vector<Value>& parts, int64_t dim) {
  if (parts.size() == 1) return parts[0];
  Shape shape = parts[0].shape;
  shape[dim] = 0;
  std::string args = "[";
  for (const Value& p : parts) {
    shape[dim] += p.shape[dim];
    args += (args.size() > 1 ? ", " : "") + ref(p);
  }
  return node("cat", args + "], " + std::to_string(dim), parts[0].type, shape);
}

Value Writer::put(const Value& x, const Value& part, int64_t dim, int64_t begin) {
  if (part.shape == x.shape) return part;
  const std::string where = std::to_string(dim) + ", " + std::to_string(begin) + ", " +
                            std::to_string(begin + part.shape[dim]);
  return node("slice_scatter", ref(x) + ", " + ref(part) + ", " + where + ", 1", x.type, x.shape);
}

std::string Writer::body(const std::vector<Value>& inputs,
                         const std::vector<Value>& outputs) const {
  std::string s = " {\n";
  for (const Value& v : inputs)
    s += "  input " + ref(v) + " \"x" + std::to_string(v.id) +
         "\" : " + type_text(v.type, v.shape) + "\n";
  s += body_;
  for (const Value& v : outputs) s += "  output " + ref(v) + "\n";
  return s + "}";
}

std::string Writer::finish(const std::vector<Value>& outputs) const {
  return "tessera 1\ngraph \"op\"" + body(inputs_, outputs) + "\n";
}

}  // namespace tessera::compat
