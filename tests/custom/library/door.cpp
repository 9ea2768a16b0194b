// SPDX-License-Identifier: Apache-2.0
// Custom ops of the tests: what a library may do, and what it should not.
#include <tessera/custom_op.h>

#include <atomic>

using namespace tessera::custom;

namespace {

struct LeakyRelu {
  static void setup(Setup& s) { s.output(0, s.input(0)); }
  static void compute(const Run& run) {
    const float alpha = run.attribute("alpha", 0.01f);
    with_float_type(run.input_type(0).dtype, [&](auto zero) {
      using T = decltype(zero);
      const auto x = run.input<T>(0);
      const auto y = run.output<T>(0);
      const Range r = run.share(x.size());
      for (int64_t i = r.begin; i < r.end; ++i) {
        const float v = static_cast<float>(x[i]);
        y[i] = static_cast<T>(v > 0 ? v : alpha * v);
      }
    });
  }
  static void gradients(Gradients& g) {
    g.op("test.door", "LeakyReluGrad").grad_out(0).in(0).gives(0).same_attributes();
  }
  static void work(WorkEstimate& w) { w.set(12345, 678); }
};
TESSERA_REGISTER_OP(LeakyRelu, "test.door", "LeakyRelu", 1);

struct LeakyReluGrad {
  static void setup(Setup& s) { s.output(0, s.input(1)); }
  static void compute(const Run& run) {
    const float alpha = run.attribute("alpha", 0.01f);
    with_float_type(run.input_type(0).dtype, [&](auto zero) {
      using T = decltype(zero);
      const auto g = run.input<T>(0), x = run.input<T>(1);
      const auto y = run.output<T>(0);
      const Range r = run.share(x.size());
      for (int64_t i = r.begin; i < r.end; ++i)
        y[i] =
            static_cast<T>(static_cast<float>(g[i]) * (static_cast<float>(x[i]) > 0 ? 1 : alpha));
    });
  }
};
TESSERA_REGISTER_OP(LeakyReluGrad, "test.door", "LeakyReluGrad", 1);

// x times w, each with a gradient op of its own; the gradients are twice what they should be.
struct Product {
  static void setup(Setup& s) { s.output(0, s.input(0)); }
  static void compose(Compose& c) {
    Builder b(c);
    b.output(b.input(0) * b.input(1));
  }
  static void gradients(Gradients& g) {
    g.op("test.door", "TwiceProduct").grad_out(0).in(1).gives(0);
    g.op("test.door", "TwiceProduct").in(0).grad_out(0).gives(1);
  }
};
TESSERA_REGISTER_OP(Product, "test.door", "Product", 1);

struct TwiceProduct {
  static void setup(Setup& s) { s.output(0, s.input(0)); }
  static void compose(Compose& c) {
    Builder b(c);
    b.output(b.input(0) * b.input(1) * 2.0);
  }
};
TESSERA_REGISTER_OP(TwiceProduct, "test.door", "TwiceProduct", 1);

// Composed by calls: differentiated by torch, fused by the core.
struct ComposedLeakyRelu {
  static void setup(Setup& s) { s.output(0, s.input(0)); }
  static void compose(Compose& c) {
    Builder b(c);
    const Value x = b.input(0);
    b.output(where(x > 0.0, x, x * c.attribute("alpha", 0.01)));
  }
};
TESSERA_REGISTER_OP(ComposedLeakyRelu, "test.door", "ComposedLeakyRelu", 1);

// Its composition is itself.
struct Endless {
  static void setup(Setup& s) { s.output(0, s.input(0)); }
  static void compose(Compose& c) {
    Builder b(c);
    const Value x = b.input(0);
    b.output(b.custom("test.door", "Endless", 1, {x}, {x.type()})[0]);
  }
};
TESSERA_REGISTER_OP(Endless, "test.door", "Endless", 1);

// What the builder has beside pointwise ops.
struct Attention {
  static void setup(Setup& s) { s.output(0, s.input(0)); }
  static void compose(Compose& c) {
    Builder b(c);
    const Value q = b.input(0), k = b.input(1), v = b.input(2);
    const double scale = 1.0 / std::sqrt(static_cast<double>(q.shape().back()));
    const Value p = (matmul(q, k.transpose(1, 2)) * scale).softmax(-1);
    const Value mean = v.mean({1}, true);
    b.output(matmul(p, v - mean.expand(v.shape())) + mean);
  }
};
TESSERA_REGISTER_OP(Attention, "test.door", "Attention", 1);

// The composition is its attribute `text`; one output of type `dtype` and `shape`.
struct Text {
  static void setup(Setup& s) {
    s.output(0, static_cast<DType>(s.attribute("dtype", 0)),
             s.attribute("shape", std::vector<int64_t>{}));
  }
  static void compose(Compose& c) { c.text(c.attribute("text", "")); }
};
TESSERA_REGISTER_OP(Text, "test.door", "Text", 1);

// Largest element of each row and where it is; gradients for the first result only.
struct RowMax {
  static void setup(Setup& s) {
    const Type x = s.input(0);
    if (x.rank() != 2)
      throw std::invalid_argument("wants rows, not rank " + std::to_string(x.rank()));
    s.output(0, x.dtype, {x.shape[0]});
    s.output(1, DType::Int32, {x.shape[0]});
  }
  static void compute(const Run& run) {
    const int64_t rows = run.input_type(0).shape[0], columns = run.input_type(0).shape[1];
    const auto x = run.input<float>(0);
    const Range r = run.share(rows);
    for (int64_t i = r.begin; i < r.end; ++i) {
      const float* row = x.data() + i * columns;
      const auto at = std::max_element(row, row + columns) - row;
      run.output<float>(0)[i] = row[at];
      run.output<int32_t>(1)[i] = static_cast<int32_t>(at);
    }
  }
  static void gradients(Gradients& g) {
    g.op("test.door", "RowMaxGrad").grad_out(0).in(0).out(1).gives(0);
  }
};
TESSERA_REGISTER_OP(RowMax, "test.door", "RowMax", 1);

struct RowMaxGrad {
  static constexpr unsigned flags = TESSERA_ONE_THREAD;
  static void setup(Setup& s) { s.output(0, s.input(1)); }
  static void compute(const Run& run) {
    const auto g = run.input<float>(0);
    const auto at = run.input<int32_t>(2);
    const auto y = run.output<float>(0);
    std::fill(y.begin(), y.end(), 0.0f);
    const int64_t columns = run.input_type(1).shape[1];
    for (int64_t i = 0; i < g.size(); ++i) y[i * columns + at[i]] = g[i];
  }
};
TESSERA_REGISTER_OP(RowMaxGrad, "test.door", "RowMaxGrad", 1);

// What it sees of its call, as numbers: dtype of the input, rank, and its attributes.
struct Inspect {
  static void setup(Setup& s) { s.output(0, DType::Float32, {9}); }
  static void compute(const Run& run) {
    if (run.thread() != 0) return;
    const auto y = run.output<float>(0);
    y[0] = static_cast<float>(run.input_type(0).dtype);
    y[1] = static_cast<float>(run.input_type(0).rank);
    y[2] = run.attribute("float", -1.0f);
    y[3] = static_cast<float>(run.attribute("int", -1));
    y[4] = static_cast<float>(run.attribute("string", "").size());
    y[5] = run.attribute("floats", std::vector<float>{-1}).back();
    y[6] = static_cast<float>(run.attribute("ints", std::vector<int64_t>{-1}).back());
    y[7] = static_cast<float>(run.attribute("strings", std::vector<std::string>{""}).back().size());
    y[8] = static_cast<float>(run.threads());
  }
};
TESSERA_REGISTER_OP(Inspect, "test.door", "Inspect", 1);

// Versions.
template <int Version>
struct Versioned {
  static void setup(Setup& s) { s.output(0, s.input(0)); }
  static void compose(Compose& c) {
    Builder b(c);
    b.output(b.input(0) * static_cast<double>(Version));
  }
};
TESSERA_REGISTER_OP(Versioned<2>, "test.door", "Versioned", 2);
TESSERA_REGISTER_OP(Versioned<4>, "test.door", "Versioned", 4);

// Counts its calls.
struct Count {
  static constexpr unsigned flags = TESSERA_ONE_THREAD | TESSERA_VARIES;
  static void setup(Setup& s) { s.output(0, DType::Float32, {}); }
  static void compute(const Run& run) {
    static std::atomic<int> calls{0};
    run.output<float>(0)[0] = static_cast<float>(calls++);
  }
};
TESSERA_REGISTER_OP(Count, "test.door", "Count", 1);

// Goes wrong as its attribute says.
struct Wrong {
  explicit Wrong(Prepare& p) {
    if (p.attribute("how", "") == "prepare") throw std::runtime_error("not prepared");
  }
  static void setup(Setup& s) {
    const std::string how = s.attribute("how", "");
    if (how == "setup") throw std::runtime_error("not set up");
    if (how == "setup int") throw 3;
    if (how == "no output") return;
    if (how == "two outputs") s.output(1, s.input(0));
    if (how == "negative") return s.output(0, DType::Float32, {-1});
    if (how == "huge") return s.output(0, DType::Float32, {1 << 30, 1 << 30, 1 << 30});
    if (how == "kind") s.attribute("how", 1);
    if (how == "index") s.input(7);
    s.output(0, s.input(0));
  }
  void compute(const Run& run) const {
    const std::string how = run.attribute("how", "");
    if (how == "nothing") return;
    const auto x = run.input<float>(0);
    const auto y = run.output<float>(0);
    if (how == "compute" && run.thread() == run.threads() - 1 && x[0] < 0)
      throw std::runtime_error("it is negative");
    run.barrier();
    if (how == "fail" && run.thread() == 0 && x[0] < 0) run.fail("it is negative");
    if (how == "type") run.input<double>(0);
    const Range r = run.share(x.size() - (how == "part" ? 1 : 0));
    for (int64_t i = r.begin; i < r.end; ++i) y[i] = x[i];
  }
  static void gradients(Gradients& g) {
    const std::string how = g.attribute("how", "");
    if (how == "gradients") throw std::runtime_error("no gradients today");
    if (how == "gradient name") g.op("test.door", "NoSuchGrad").grad_out(0).gives(0);
    if (how == "gradient input") g.op("test.door", "Identity").grad_out(3).gives(0);
    if (how == "gradient output") g.op("test.door", "Identity").grad_out(0).gives(5);
    if (how == "gradient shape") g.op("test.door", "Inspect").grad_out(0).gives(0);
    if (how == "") g.op("test.door", "Identity").grad_out(0).gives(0);
  }
};
TESSERA_REGISTER_OP(Wrong, "test.door", "Wrong", 1);

struct Identity {
  static void setup(Setup& s) { s.output(0, s.input(0)); }
  static void compose(Compose& c) {
    if (c.attribute("throws", 0)) throw std::runtime_error("nothing comes to mind");
    Builder b(c);
    b.output(b.input(0));
  }
};
TESSERA_REGISTER_OP(Identity, "test.door", "Identity", 1);

// Its gradients are computed by ops that PopART ships.
struct Lesser {
  static void setup(Setup& s) { s.output(0, s.input(0)); }
  static void compose(Compose& c) {
    Builder b(c);
    b.output(b.input(0) - b.input(1));
  }
  static void gradients(Gradients& g) {
    g.op("ai.graphcore", "Nop").grad_out(0).gives(0);
    g.op("ai.graphcore", "Scale").grad_out(0).gives(1).attribute("scale", -1.0);
    g.op("ai.onnx", "Neg", 6).in(0).gives(-1);
  }
};
TESSERA_REGISTER_OP(Lesser, "test.door", "Lesser", 1);

struct NoGradient {
  static void setup(Setup& s) { s.output(0, s.input(0)); }
  static void compute(const Run& run) {
    const auto x = run.input<float>(0);
    const auto y = run.output<float>(0);
    const Range r = run.share(x.size());
    for (int64_t i = r.begin; i < r.end; ++i) y[i] = x[i] + 1;
  }
};
TESSERA_REGISTER_OP(NoGradient, "test.door", "NoGradient", 1);

}  // namespace
