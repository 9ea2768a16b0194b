// SPDX-License-Identifier: Apache-2.0
// Two ops with tessera/custom_op.h. LeakyRelu computes in C++ and names the op that computes its
// gradient. NormalizedSwish is a composition: it is fused and differentiated like native ops.
#include <tessera/custom_op.h>

using namespace tessera::custom;

namespace {

struct LeakyRelu {
  static void setup(Setup& s) { s.output(0, s.input(0)); }

  static void compute(const Run& run) {
    const float alpha = run.attribute("alpha", 0.01f);
    with_float_type(run.input_type(0).dtype, [&](auto zero) {  // float, half, ...
      using T = decltype(zero);
      const auto x = run.input<T>(0);
      const auto y = run.output<T>(0);
      const Range mine = run.share(x.size());  // all threads are here
      for (int64_t i = mine.begin; i < mine.end; ++i) {
        const float v = static_cast<float>(x[i]);
        y[i] = static_cast<T>(v > 0 ? v : alpha * v);
      }
    });
  }

  // LeakyReluGrad(gradient of y, x) gives the gradient of x.
  static void gradients(Gradients& g) {
    g.op("com.example", "LeakyReluGrad").grad_out(0).in(0).gives(0).same_attributes();
  }
};

struct LeakyReluGrad {
  static void setup(Setup& s) { s.output(0, s.input(1)); }

  static void compute(const Run& run) {
    const float alpha = run.attribute("alpha", 0.01f);
    with_float_type(run.input_type(0).dtype, [&](auto zero) {
      using T = decltype(zero);
      const auto grad = run.input<T>(0), x = run.input<T>(1);
      const auto y = run.output<T>(0);
      const Range mine = run.share(x.size());
      for (int64_t i = mine.begin; i < mine.end; ++i) {
        const float g = static_cast<float>(grad[i]);
        y[i] = static_cast<T>(static_cast<float>(x[i]) > 0 ? g : alpha * g);
      }
    });
  }
};

// x * sigmoid(beta * x), divided by the root of the mean of its squares over the last dim.
struct NormalizedSwish {
  static void setup(Setup& s) { s.output(0, s.input(0)); }

  static void compose(Compose& c) {
    Builder b(c);
    const Value x = b.input(0);
    const Value y = x * sigmoid(x * c.attribute("beta", 1.0));
    b.output(y * rsqrt(square(y).mean({-1}, true) + 1e-6));
  }
};

}  // namespace

TESSERA_REGISTER_OP(LeakyRelu, "com.example", "LeakyRelu", 1);
TESSERA_REGISTER_OP(LeakyReluGrad, "com.example", "LeakyReluGrad", 1);
TESSERA_REGISTER_OP(NormalizedSwish, "com.example", "NormalizedSwish", 1);
