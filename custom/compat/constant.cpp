// SPDX-License-Identifier: Apache-2.0
// Constant tensors of compositions, for the text has no literals of tensors: custom("tessera",
// "Constant", 1, [], [["values", [...]]]) is a vector of f32 or, of integers, of i64.
#include <cstring>

#include "tessera/abi.h"

namespace {

bool real(const tessera_call* call) {
  return tessera_call_attribute_kind(call, "values") == TESSERA_FLOATS;
}

void setup(tessera_call* call) {
  int64_t n = 0;
  const bool found =
      tessera_call_floats(call, "values", &n) || tessera_call_ints(call, "values", &n);
  if (!found) return tessera_fail(call, "Constant: `values` is a list of numbers");
  tessera_call_set_output(call, 0, real(call) ? TESSERA_F32 : TESSERA_I64, 1, &n);
}

void compute(const tessera_run* run) {
  int64_t n = 0;
  if (real(run->call)) {
    const float* values = tessera_call_floats(run->call, "values", &n);
    std::memcpy(run->outputs[0], values, static_cast<size_t>(n) * sizeof *values);
  } else {
    const int64_t* values = tessera_call_ints(run->call, "values", &n);
    std::memcpy(run->outputs[0], values, static_cast<size_t>(n) * sizeof *values);
  }
}

const int registered = [] {
  tessera_op op{};
  op.size = sizeof op;
  op.abi = TESSERA_OPS_ABI;
  op.domain = "tessera";
  op.name = "Constant";
  op.version = 1;
  op.flags = TESSERA_ONE_THREAD;
  op.setup = setup;
  op.compute = compute;
  return tessera_register_op(&op);
}();

}  // namespace
