// SPDX-License-Identifier: Apache-2.0
// Writes nodes of the text IR and knows the type of each value. Nodes that would change nothing are
// left out.
#pragma once

#include "custom/compat/recorder_impl.h"

namespace tessera::compat {

struct Value {
  int id = -1;
  int32_t type = FLOAT;
  Shape shape;

  bool there() const { return id >= 0; }
};

std::string number_text(double x);

class Writer {
 public:
  Value input(int32_t type, const Shape& shape);
  // A node with the arguments in `args` as they stand in the text; `bodies` in braces.
  Value node(std::string_view row, const std::string& args, int32_t type, const Shape& shape);
  std::vector<Value> nodes(std::string_view row, const std::string& args,
                           const std::vector<Value>& types, const std::string& bodies = {});
  // Of any shape: the result is broadcast.
  Value pointwise(std::string_view row, const std::vector<Value>& operands, int32_t type);
  Value full(double number, int64_t integer, int32_t type, const Shape& shape);
  Value cast(const Value& x, int32_t type);

  Value reshape(const Value& x, const Shape& shape);
  Value permute(const Value& x, const std::vector<int64_t>& order);
  Value slice(const Value& x, int64_t dim, int64_t begin, int64_t end);
  Value expand(const Value& x, const Shape& shape);
  Value flip(const Value& x, int64_t dim);
  Value bits(const Value& x, int32_t type);
  Value cat(const std::vector<Value>& parts, int64_t dim);
  // x with the part [begin, begin + size of part) of dim replaced.
  Value put(const Value& x, const Value& part, int64_t dim, int64_t begin);

  std::string finish(const std::vector<Value>& outputs) const;
  // The same as the body of a node, with the inputs in the order of `inputs`, which has all.
  std::string body(const std::vector<Value>& inputs, const std::vector<Value>& outputs) const;

  static std::string ref(const Value& x);
  static std::string type_text(int32_t type, const Shape& shape);
  static std::string list(const std::vector<int64_t>& values);

 private:
  int next_ = 0;
  std::vector<Value> inputs_;
  std::string body_;
};

}  // namespace tessera::compat
