// SPDX-License-Identifier: Apache-2.0
// The custom op of programs/custom.tir: reads its attributes, gives two results, sums by all
// threads.
#include "tessera/custom_op.h"

using namespace tessera::custom;

namespace {

struct Scale {
  static void setup(Setup& s) {
    s.attribute("names", std::vector<std::string>{});
    s.output(0, s.input(0));
    s.output(1, DType::Float32, s.attribute("shape", std::vector<int64_t>{}));
  }
  static void compute(const Run& run) {
    const float by = run.attribute("by", 1.0f);
    const auto x = run.input<float>(0);
    const Range r = run.share(x.size());
    for (int64_t i = r.begin; i < r.end; ++i) run.output<float>(0)[i] = by * x[i];
    run.barrier();
    if (run.thread() == 0)
      for (float& y : run.output<float>(1)) y = by;
  }
};
TESSERA_REGISTER_OP(Scale, "fuzz", "Scale", 1);

}  // namespace
