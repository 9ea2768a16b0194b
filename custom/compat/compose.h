// SPDX-License-Identifier: Apache-2.0
// A recorded program as text IR: the program is walked in its order, and each variable has the
// value that was last written to it. Writing to a part of a variable gives the variable a new value
// with that part replaced, so inputs of the op are never changed.
#pragma once

#include "custom/compat/expr.h"

namespace tessera::compat {

class Composer {
 public:
  explicit Composer(tessera_recorder& r);

  Value read(const View& v);
  void write(const View& v, const Value& x);
  void run(const tessera_program& p);
  void run(const Statement& s);

  Writer w;

 private:
  Value current(const Variable& v);
  Value constant(const Variable& v);
  void repeat(const tessera_program& p);
  void branch(const tessera_program& p);

  void map(const Statement& s);
  void reduce(const Statement& s);
  void dynamic_slice(const Statement& s);
  void dynamic_update(const Statement& s);
  void matmul(const Statement& s);
  void arg_extreme(const Statement& s);
  void top_k(const Statement& s);
  void sort(const Statement& s);
  void multi_slice(const Statement& s);
  void multi_update(const Statement& s);
  void random(const Statement& s);
  void custom(const Statement& s);
  Value places(const Value& offsets, int64_t i, int64_t size, int64_t extent);

  tessera_recorder& r_;
  std::vector<Value> values_;  // by variable
};

}  // namespace tessera::compat
