// SPDX-License-Identifier: Apache-2.0
// A region's body with every type decided, the form that both engines read: straight-line code over
// values, and slots that say how memory (or an index) is walked.
#pragma once

#include <string>
#include <vector>

#include "base/attrs.h"
#include "base/tensor.h"
#include "ir/graph.h"
#include "ops/op.h"

namespace tessera::codegen {

// A value of the code: 0 .. inputs-1 are the operands, then one per instruction.
struct CodeArg {
  int value = -1;  // -1: the literal below
  Arg literal;
  DType as = DType::F32;  // converted to this before the op
};

struct Instr {
  Op op = Op::Copy;
  std::vector<CodeArg> args;
  DType result = DType::F32;
  int index_slot = -1;  // iota, uniform: the slot that walks the index
  int param = -1;       // iota: start, step at param, param + 1; uniform: the stream
};

enum class SlotKind : uint8_t { kLoad, kStore, kIndex, kReduce, kKey };

struct Slot {
  SlotKind kind = SlotKind::kLoad;
  DType dtype = DType::F32;  // of memory; of the accumulator for kReduce
  Dims strides;              // per iteration dim, in elements; of the result for kReduce
  int value = -1;            // the value loaded, stored or reduced
  Op reduce = Op::Sum;
};

struct TypedCode {
  Dims shape;                 // the iteration space
  std::vector<bool> reduced;  // per dim; all reductions agree
  std::vector<Instr> instrs;
  std::vector<Slot> slots;   // inputs, outputs, then indices
  std::vector<DType> types;  // of every value
  std::vector<int64_t> params;
  int inputs = 0, outputs = 0;
  bool reduces = false;
  int cost = 1;  // flops per element, about
  // Integer division fails on zero: where params hold the address of the region's flag, else -1.
  int failure_param = -1;

  bool is_reduced(size_t dim) const { return reduces && reduced[dim]; }
};

// Whether an instruction divides integers, which the data may forbid.
bool divides_integers(const Instr& in);

TypedCode make_typed_code(const Graph& body, const std::vector<TensorRef>& inputs,
                          const std::vector<TensorRef>& outputs);

// The type a value of dtype `t` has in registers: half precision computes in f32.
constexpr DType compute_type(DType t) {
  return t == DType::F16 || t == DType::BF16 ? DType::F32 : t;
}

}  // namespace tessera::codegen
