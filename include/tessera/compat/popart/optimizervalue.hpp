// SPDX-License-Identifier: Apache-2.0
// A number of an optimizer, which may change while the program is used.
#pragma once

namespace popart {

class OptimizerValue {
 public:
  OptimizerValue() {}
  OptimizerValue(float v) : val_(v) {}
  OptimizerValue(float v, bool is_const) : val_(v), const_(is_const) {}
  float val() const { return val_; }
  bool isConst() const { return const_; }

 private:
  float val_ = 0.0f;
  bool const_ = true;
};

}  // namespace popart
