// SPDX-License-Identifier: Apache-2.0
// A recorded program as text IR: the program is walked in its order, and each variable has the
// value that was last written to it. Writing to a part of a variable gives the variable a new value
// with that part replaced, so inputs of the op are never changed.
#pragma once

#include "custom/compat/expr.h"

namespace tessera::compat {

// The graph that is being written: the op's, or the body of a loop or a branch. A body has an input
// for each variable that it reads before it writes it.
struct Frame {
  explicit Frame(size_t variables) : values(variables), written(variables, false) {}

  Writer w;
  std::vector<Value> values;    // by variable
  std::vector<bool> written;    // by variable
  std::map<int, Value> inputs;  // of a body, by variable
};

// What a loop of unknown length tests: before it, as input of its body, at the end of a turn.
struct Flag {
  Value go, given, next;
};

class Composer : public Frame {
 public:
  explicit Composer(tessera_recorder& r);

  Value read(const View& v);
  void write(const View& v, const Value& x);
  void run(const tessera_program& p);
  void run(const Statement& s);

 private:
  Value current(const Variable& v);
  Value constant(const Variable& v);
  void set(const Variable& v, const Value& x);

  // flow.cpp
  template <typename F>
  void within(Frame& body, const F& work);
  std::vector<Value> inputs_of(Frame& body, const std::vector<int>& variables) const;
  std::vector<Value> values_of(const std::vector<int>& variables);
  Value test(const tessera_program& p);
  void loop(Frame& body, int64_t count, const Flag* flag);
  void repeat(const tessera_program& p);
  void repeat_while(const tessera_program& p);
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
  Value seed();
  void random(const Statement& s);
  void exchange(const Statement& s);
  void custom(const Statement& s);
  Value places(const Value& offsets, int64_t i, int64_t size, int64_t extent);

  tessera_recorder& r_;
  int depth_ = 0;  // of bodies
  int seeds_ = 0;
};

}  // namespace tessera::compat
