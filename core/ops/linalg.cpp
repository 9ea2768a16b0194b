// SPDX-License-Identifier: Apache-2.0
// Linear algebra on the last two dims of f32 tensors; leading dims are a batch, shared out between
// threads. Matrices are copied to scratch: small ones are worked on in double, large ones in float.
#include "kernels/linalg.h"

#include <algorithm>
#include <cmath>

#include "ops/registry.h"
#include "ops/run_error.h"
#include "ops/sizes.h"
#include "ops/view.h"

namespace tessera {
namespace {

// Matrices up to this size are cheap in double, and it makes results closer to the truth.
constexpr int64_t kWideBelow = 96;

template <typename T>
const kernels::LinalgKernels<T>& fns() {
  if constexpr (sizeof(T) == 8)
    return kernels::linalg_f64_kernels();
  else
    return kernels::linalg_f32_kernels();
}

// One matrix of a batch: rows and columns of a tensor from some offset on. A vector is a column.
struct Matrix {
  float* at = nullptr;
  int64_t rows = 0, cols = 0, rs = 0, cs = 0;
  Matrix t() const { return {at, cols, rows, cs, rs}; }
  // Rows and columns in reverse order: an upper triangle becomes a lower one.
  Matrix turned() const { return {at + (rows - 1) * rs + (cols - 1) * cs, rows, cols, -rs, -cs}; }
  Matrix rows_reversed() const { return {at + (rows - 1) * rs, rows, cols, -rs, cs}; }
};

// Offset in elements of batch item b; the last `inner` dims are not of the batch.
int64_t batch_offset(const TensorRef& t, int64_t b, size_t inner) {
  if (t.shape.size() == inner + 1) return b * t.strides[0];
  int64_t at = 0;
  for (size_t d = t.shape.size() - inner; d-- > 0;) {
    at += b % t.shape[d] * t.strides[d];
    b /= t.shape[d];
  }
  return at;
}

Matrix matrix_of(const RunCtx& c, const TensorRef& t, int64_t b) {
  const size_t r = t.shape.size();
  return {c.ptr<float>(t) + batch_offset(t, b, 2), t.shape[r - 2], t.shape[r - 1], t.strides[r - 2],
          t.strides[r - 1]};
}
// Item b of a tensor of vectors; rows of `cols` elements.
template <typename T>
struct Vector {
  T* at;
  int64_t step;
  T& operator[](int64_t i) const { return at[i * step]; }
};
template <typename T>
Vector<T> vector_of(const RunCtx& c, const TensorRef& t, int64_t b) {
  return {c.ptr<T>(t) + batch_offset(t, b, 1), t.strides.back()};
}

template <typename T>
void load(const Matrix& m, T* to, int64_t ld) {
  for (int64_t i = 0; i < m.rows; ++i) {
    const float* from = m.at + i * m.rs;
    for (int64_t j = 0; j < m.cols; ++j) to[i * ld + j] = from[j * m.cs];
  }
}
template <typename T>
void save(const T* from, int64_t ld, const Matrix& m) {
  for (int64_t i = 0; i < m.rows; ++i)
    for (int64_t j = 0; j < m.cols; ++j)
      m.at[i * m.rs + j * m.cs] = static_cast<float>(from[i * ld + j]);
}

template <typename T>
int64_t matrix_bytes(int64_t rows, int64_t cols) {
  return rows * kernels::pitch<T>(cols) * static_cast<int64_t>(sizeof(T));
}

int64_t rows_of(const TensorRef& t) {
  return t.shape[t.shape.size() - 2];
}
int64_t cols_of(const TensorRef& t) {
  return t.shape.back();
}
int64_t items_of(const TensorRef& t, size_t inner) {
  int64_t n = 1;
  for (size_t d = 0; d + inner < t.shape.size(); ++d) n *= t.shape[d];
  return n;
}

// What all kernels of the family share: item by item, each thread with scratch of its own.
// `Body` has run<T>(ctx, desc, item, scratch), bytes<T>(desc) and flops(desc) of one item.
template <typename Body>
class BatchKernel final : public Kernel {
 public:
  BatchKernel(const StepDesc& d, int64_t items, int64_t size)
      : d_(d), items_(items), wide_(size <= kWideBelow) {
    bytes_ = whole_lines(wide_ ? Body::template bytes<double>(d) : Body::template bytes<float>(d));
  }
  bool single_thread() const override { return items_ == 1 || bytes_ * items_ < (1 << 15); }
  bool may_fail() const override { return Body::kMayFail; }
  int64_t scratch_bytes(int threads) const override { return threads * bytes_; }
  void run(const RunCtx& c) const override {
    std::byte* scratch = c.scratch + c.thread * bytes_;
    const auto [begin, end] = thread_range(c, items_);
    for (int64_t b = begin; b < end; ++b) {
      if (wide_)
        Body::run(c, d_, b, items_ > 1, reinterpret_cast<double*>(scratch));
      else
        Body::run(c, d_, b, items_ > 1, reinterpret_cast<float*>(scratch));
    }
  }

 private:
  StepDesc d_;
  int64_t items_, bytes_;
  bool wide_;
};

const TensorRef& in(const StepDesc& d, size_t i) {
  return d.inputs[d.args.operand(i)];
}

// "(Batch element 3): " in front of the messages of batches, as torch has it.
std::string item_text(int64_t b, bool batched) {
  return batched ? fmt::format("(Batch element {}): ", b) : std::string();
}

struct CholeskyBody {
  static constexpr bool kMayFail = true;
  template <typename T>
  static int64_t bytes(const StepDesc& d) {
    const int64_t n = rows_of(in(d, 0));
    return matrix_bytes<T>(n + kernels::kLinalgBlock, n);
  }
  template <typename T>
  static void run(const RunCtx& c, const StepDesc& d, int64_t b, bool batched, T* a) {
    const TensorRef& x = in(d, 0);
    const int64_t n = rows_of(x), ld = kernels::pitch<T>(n);
    const bool upper = d.args.boolean(1);
    const Matrix from = matrix_of(c, x, b);
    load(upper ? from.t() : from, a, ld);
    const int64_t info = fns<T>().cholesky(a, ld, n, a + n * ld);
    for (int64_t i = 0; i < n; ++i) std::fill(a + i * ld + i + 1, a + i * ld + n, T(0));
    const Matrix out = matrix_of(c, d.outputs[0], b);
    save(a, ld, upper ? out.t() : out);
    c.ptr<int32_t>(d.outputs[1])[batch_offset(d.outputs[1], b, 0)] = static_cast<int32_t>(info);
    if (info != 0 && d.args.has(2))
      fail_run(c,
               "{}: {}The factorization could not be completed because the input is not "
               "positive-definite (the leading minor of order {} is not positive-definite).",
               d.args.text(2), item_text(b, batched), info);
  }
};

struct LuBody {
  static constexpr bool kMayFail = true;
  template <typename T>
  static int64_t bytes(const StepDesc& d) {
    const int64_t m = rows_of(in(d, 0)), n = cols_of(in(d, 0));
    return matrix_bytes<T>(m, n) + 4 * std::min(m, n);
  }
  template <typename T>
  static void run(const RunCtx& c, const StepDesc& d, int64_t b, bool batched, T* a) {
    const TensorRef& x = in(d, 0);
    const int64_t m = rows_of(x), n = cols_of(x), ld = kernels::pitch<T>(n);
    load(matrix_of(c, x, b), a, ld);
    auto* pivots = reinterpret_cast<int32_t*>(a + m * ld);
    const int64_t info = fns<T>().lu(a, ld, m, n, pivots, d.args.boolean(1));
    save(a, ld, matrix_of(c, d.outputs[0], b));
    const auto out = vector_of<int32_t>(c, d.outputs[1], b);
    for (int64_t i = 0; i < std::min(m, n); ++i) out[i] = pivots[i];
    c.ptr<int32_t>(d.outputs[2])[batch_offset(d.outputs[2], b, 0)] = static_cast<int32_t>(info);
    if (info == 0 || !d.args.has(2)) return;
    const std::string name = d.args.text(2), item = item_text(b, batched);
    const auto named = [&](const char* part) { return name.find(part) != std::string::npos; };
    if (named("solve"))
      fail_run(c, "{}: {}The solver failed because the input matrix is singular.", name, item);
    else if (named("inv"))
      fail_run(c,
               "{}: {}The diagonal element {} is zero, the inversion could not be completed "
               "because the input matrix is singular.",
               name, item, info);
    else
      fail_run(c, "{}: {}U[{},{}] is zero, the input matrix is singular and cannot be solved with.",
               name, item, info, info);
  }
};

struct TriangularBody {
  static constexpr bool kMayFail = false;
  template <typename T>
  static int64_t bytes(const StepDesc& d) {
    return matrix_bytes<T>(rows_of(in(d, 1)), cols_of(in(d, 1)));
  }
  template <typename T>
  static void run(const RunCtx& c, const StepDesc& d, int64_t b, bool, T* x) {
    const bool upper = d.args.boolean(2), unit = d.args.boolean(3);
    Matrix l = matrix_of(c, in(d, 0), b), rhs = matrix_of(c, in(d, 1), b),
           out = matrix_of(c, d.outputs[0], b);
    if (upper) l = l.turned(), rhs = rhs.rows_reversed(), out = out.rows_reversed();
    const int64_t ld = kernels::pitch<T>(rhs.cols);
    load(rhs, x, ld);
    fns<T>().solve_lower(l.at, l.rs, l.cs, l.rows, x, ld, rhs.cols, unit);
    save(x, ld, out);
  }
};

// A = P L U. Plain: x = U^-1 L^-1 P^T b; adjoint: A^T = U^T L^T P^T, x = P L^-T U^-T b. Upper
// triangles are solved as lower ones with rows and columns in reverse.
struct LuSolveBody {
  static constexpr bool kMayFail = false;
  template <typename T>
  static int64_t bytes(const StepDesc& d) {
    return matrix_bytes<T>(rows_of(in(d, 2)), cols_of(in(d, 2)));
  }
  template <typename T>
  static void run(const RunCtx& c, const StepDesc& d, int64_t b, bool, T* x) {
    const bool adjoint = d.args.boolean(3);
    const Matrix lu = matrix_of(c, in(d, 0), b), rhs = matrix_of(c, in(d, 2), b),
                 first = adjoint ? lu.t() : lu, second = first.turned();
    const auto pivots = vector_of<int32_t>(c, in(d, 1), b);
    const int64_t n = lu.rows, cols = rhs.cols, ld = kernels::pitch<T>(cols);
    load(rhs, x, ld);
    auto exchange = [&](int64_t i) {
      const int64_t j = pivots[i] - 1;
      if (j != i && j >= 0 && j < n) std::swap_ranges(x + i * ld, x + i * ld + cols, x + j * ld);
    };
    if (!adjoint)
      for (int64_t i = 0; i < n; ++i) exchange(i);
    const auto solve = fns<T>().solve_lower;
    solve(first.at, first.rs, first.cs, n, x, ld, cols, !adjoint);
    solve(second.at, second.rs, second.cs, n, x + (n - 1) * ld, -ld, cols, adjoint);
    if (adjoint)
      for (int64_t i = n; i-- > 0;) exchange(i);
    save(x, ld, matrix_of(c, d.outputs[0], b));
  }
};

struct QrBody {
  static constexpr bool kMayFail = false;
  template <typename T>
  static int64_t bytes(const StepDesc& d) {
    const int64_t m = rows_of(in(d, 0)), n = cols_of(in(d, 0));
    return matrix_bytes<T>(m, n) + matrix_bytes<T>(1, std::min(m, n)) +
           kernels::qr_work<T>(m, n) * static_cast<int64_t>(sizeof(T));
  }
  template <typename T>
  static void run(const RunCtx& c, const StepDesc& d, int64_t b, bool, T* a) {
    const Matrix x = matrix_of(c, in(d, 0), b);
    const int64_t ld = kernels::pitch<T>(x.cols), k = std::min(x.rows, x.cols);
    T *tau = a + x.rows * ld, *work = tau + kernels::pitch<T>(k);
    load(x, a, ld);
    fns<T>().qr(a, ld, x.rows, x.cols, tau, work);
    save(a, ld, matrix_of(c, d.outputs[0], b));
    const auto out = vector_of<float>(c, d.outputs[1], b);
    for (int64_t i = 0; i < k; ++i) out[i] = static_cast<float>(tau[i]);
  }
};

struct HouseholderBody {
  static constexpr bool kMayFail = false;
  template <typename T>
  static int64_t bytes(const StepDesc& d) {
    const TensorRef &a = in(d, 0), &q = d.outputs[0];
    return matrix_bytes<T>(rows_of(a), cols_of(a)) + matrix_bytes<T>(rows_of(q), cols_of(q)) +
           matrix_bytes<T>(1, cols_of(a)) +
           kernels::qr_work<T>(rows_of(q), cols_of(q)) * static_cast<int64_t>(sizeof(T));
  }
  template <typename T>
  static void run(const RunCtx& c, const StepDesc& d, int64_t b, bool, T* a) {
    const Matrix x = matrix_of(c, in(d, 0), b), out = matrix_of(c, d.outputs[0], b);
    const int64_t k = cols_of(in(d, 1)), lda = kernels::pitch<T>(x.cols),
                  ldq = kernels::pitch<T>(out.cols);
    T *q = a + x.rows * lda, *tau = q + out.rows * ldq, *work = tau + lda;
    load(x, a, lda);
    const auto given = vector_of<float>(c, in(d, 1), b);
    for (int64_t i = 0; i < k; ++i) tau[i] = given[i];
    fns<T>().apply_q(a, lda, tau, k, q, ldq, out.rows, out.cols, true, work);
    save(q, ldq, out);
  }
};

bool finite(const Matrix& m) {
  for (int64_t i = 0; i < m.rows; ++i)
    for (int64_t j = 0; j < m.cols; ++j)
      if (!std::isfinite(m.at[i * m.rs + j * m.cs])) return false;
  return true;
}

void fail_not_finite(const RunCtx& c, const char* name, int64_t b, bool batched) {
  fail_run(c,
           "{}: {}The algorithm failed to converge because the input matrix contained non-finite "
           "values.",
           name, item_text(b, batched));
}

// Spectra are always worked out in double, for either T.
struct EigenBody {
  static constexpr bool kMayFail = true;
  template <typename T>
  static int64_t bytes(const StepDesc& d) {
    const int64_t n = rows_of(in(d, 0));
    return matrix_bytes<double>(2 * n + 5, n);
  }
  template <typename T>
  static void run(const RunCtx& c, const StepDesc& d, int64_t b, bool batched, T* scratch) {
    auto* a = reinterpret_cast<double*>(scratch);
    Matrix x = matrix_of(c, in(d, 0), b);
    if (!finite(x)) return fail_not_finite(c, "linalg.eigh", b, batched);
    const bool vectors = d.outputs.size() == 2;
    const int64_t n = x.rows, ld = kernels::pitch<double>(n);
    if (d.args.boolean(1)) x = x.t();
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j <= i; ++j)
        a[i * ld + j] = a[j * ld + i] = static_cast<double>(x.at[i * x.rs + j * x.cs]);
    double *values = a + n * ld, *work = values + ld, *vt = work + 4 * ld;
    kernels::spectra_kernels().eigenvalues(a, ld, n, values, vectors ? vt : nullptr, ld, work);
    const auto out = vector_of<float>(c, d.outputs[0], b);
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(values[i]);
    if (vectors) save(vt, ld, matrix_of(c, d.outputs[1], b).t());
  }
};

struct SvdBody {
  static constexpr bool kMayFail = true;
  template <typename T>
  static int64_t bytes(const StepDesc& d) {
    const TensorRef& x = in(d, 0);
    const int64_t m = std::max(rows_of(x), cols_of(x)), n = std::min(rows_of(x), cols_of(x));
    return matrix_bytes<double>(m, n) + matrix_bytes<double>(n, m) + matrix_bytes<double>(n, n) +
           matrix_bytes<double>(7, m);
  }
  template <typename T>
  static void run(const RunCtx& c, const StepDesc& d, int64_t b, bool batched, T* scratch) {
    auto* a = reinterpret_cast<double*>(scratch);
    Matrix x = matrix_of(c, in(d, 0), b);
    if (!finite(x)) return fail_not_finite(c, "linalg.svd", b, batched);
    const bool wide = x.rows < x.cols, vectors = d.outputs.size() == 3;
    if (wide) x = x.t();
    const int64_t m = x.rows, n = x.cols;
    const int64_t lda = kernels::pitch<double>(n), ldu = kernels::pitch<double>(m);
    double *ut = a + m * lda, *vt = ut + n * ldu, *values = vt + n * lda, *work = values + ldu;
    load(x, a, lda);
    kernels::spectra_kernels().singular_values(a, lda, m, n, values, vectors, ut, ldu, vt, lda,
                                               work);
    const auto s = vector_of<float>(c, d.outputs[vectors ? 1 : 0], b);
    for (int64_t i = 0; i < n; ++i) s[i] = static_cast<float>(values[i]);
    if (!vectors) return;
    const Matrix u = matrix_of(c, d.outputs[0], b), vh = matrix_of(c, d.outputs[2], b);
    // x^T = V S U^T: a wide matrix exchanges the two.
    save(ut, ldu, wide ? vh : u.t());
    save(vt, lda, wide ? u.t() : vh);
  }
};

struct ExponentialBody {
  static constexpr bool kMayFail = false;
  template <typename T>
  static int64_t bytes(const StepDesc& d) {
    const int64_t n = rows_of(in(d, 0));
    return 5 * matrix_bytes<T>(n, n);
  }
  template <typename T>
  static void run(const RunCtx& c, const StepDesc& d, int64_t b, bool, T* a) {
    const Matrix x = matrix_of(c, in(d, 0), b);
    const int64_t ld = kernels::pitch<T>(x.cols);
    load(x, a, ld);
    fns<T>().exponential(a, ld, x.rows, a + x.rows * ld);
    save(a, ld, matrix_of(c, d.outputs[0], b));
  }
};

// Which original row stands in each row after the exchanges.
KernelPtr make_permutation(const StepDesc& d) {
  const TensorRef pivots = in(d, 0), out = d.outputs[0];
  return make_kernel(
      [pivots, out](const RunCtx& c) {
        if (c.thread != 0) return;
        const int64_t n = out.shape.back();
        for (int64_t b = 0; b < items_of(out, 1); ++b) {
          const auto p = vector_of<int32_t>(c, pivots, b);
          const auto to = vector_of<int64_t>(c, out, b);
          for (int64_t i = 0; i < n; ++i) to[i] = i;
          for (int64_t i = 0; i < pivots.shape.back(); ++i) {
            const int64_t j = p[i] - 1;
            if (j >= 0 && j < n) std::swap(to[i], to[j]);
          }
        }
      },
      0, true);
}

template <typename Body>
KernelPtr make_batch(const StepDesc& d, int64_t items, int64_t size) {
  return std::make_unique<BatchKernel<Body>>(d, items, size);
}

// Rows and columns of the first operand, and how many matrices there are.
struct Sizes {
  int64_t m = 1, n = 1, items = 1;
};
Sizes sizes_of(const Dims& shape) {
  Sizes s;
  const size_t r = shape.size();
  s.n = shape[r - 1];
  if (r > 1) s.m = shape[r - 2];
  for (size_t d = 0; d + 2 < r; ++d) s.items *= shape[d];
  return s;
}

}  // namespace

std::vector<TensorType> infer_linalg(const Graph& g, const Node& n) {
  const TensorType& a = g.type(n.arg_value(0));
  if (n.op == Op::LuPermutation) {
    // As many rows as the factors have: at least one per pivot.
    const Dims& shape = g.type(n.results[0]).shape;
    user_check(a.dtype == DType::I32 && a.rank() >= 1 && a.shape.size() == shape.size() &&
                   std::equal(a.shape.begin(), a.shape.end() - 1, shape.begin()) &&
                   a.shape.back() <= shape.back(),
               "lu_permutation: {} from pivots {}", text_of(shape), to_string(a));
    return {{DType::I64, shape, {}}};
  }
  user_check(a.rank() >= 2, "{}: the input tensor must have at least 2 dimensions", op_text(n.op));
  user_check(a.dtype == DType::F32, "{}: matrices of {} have no kernel", op_text(n.op),
             name_of(a.dtype));
  const auto r = static_cast<size_t>(a.rank());
  const int64_t rows = a.shape[r - 2], cols = a.shape[r - 1], k = std::min(rows, cols);
  const bool square = n.op == Op::Cholesky || n.op == Op::LuSolve || n.op == Op::SolveTriangular ||
                      n.op == Op::Eigh || n.op == Op::MatrixExp;
  user_check(!square || rows == cols, "{}: matrices must be square, these are {} by {}",
             op_text(n.op), rows, cols);
  const Dims batch(a.shape.begin(), a.shape.end() - 2);
  auto with = [&](std::initializer_list<int64_t> inner, DType dtype = DType::F32) {
    Dims shape = batch;
    shape.insert(shape.end(), inner);
    return TensorType{dtype, shape, {}};
  };
  switch (n.op) {
    case Op::Cholesky:
      return {with({rows, cols}), with({}, DType::I32)};
    case Op::LuFactor:
      return {with({rows, cols}), with({k}, DType::I32), with({}, DType::I32)};
    case Op::LuSolve:
    case Op::SolveTriangular: {
      const TensorType& b = g.type(n.arg_value(n.op == Op::LuSolve ? 2 : 1));
      user_check(b.shape.size() == r && b.shape[r - 2] == rows &&
                     std::equal(batch.begin(), batch.end(), b.shape.begin()),
                 "{}: {} does not fit matrices {}", op_text(n.op), text_of(b.shape),
                 text_of(a.shape));
      user_check(
          n.op != Op::LuSolve || g.type(n.arg_value(1)).same_logical(with({rows}, DType::I32)),
          "{}: the pivots are not those of the factors", op_text(n.op));
      return {{DType::F32, b.shape, {}}};
    }
    case Op::Geqrf:
      return {with({rows, cols}), with({k})};
    case Op::MatrixExp:
      return {with({rows, cols})};
    case Op::Eigh:
      if (n.results.size() == 1) return {with({rows})};
      return {with({rows}), with({rows, rows})};
    case Op::SvdThin:
      if (n.results.size() == 1) return {with({k})};
      return {with({rows, k}), with({k}), with({k, cols})};
    default: {  // as many columns of Q as were asked for
      const TensorType& tau = g.type(n.arg_value(1));
      Dims shape = a.shape;
      shape[r - 1] = g.type(n.results[0]).shape.empty() ? 0 : g.type(n.results[0]).shape.back();
      user_check(tau.shape.size() + 1 == r &&
                     std::equal(batch.begin(), batch.end(), tau.shape.begin()) &&
                     tau.shape.back() <= k && shape[r - 1] <= rows,
                 "{}: {} reflections for matrices {}", op_text(n.op), text_of(tau.shape),
                 text_of(a.shape));
      return {{DType::F32, shape, {}}};
    }
  }
}

Work work_linalg(const Graph& g, const Node& n) {
  Work w;
  w.kind = WorkKind::kMatMul;
  for (ValueId v : n.operands) w.bytes += g.type(v).bytes();
  for (ValueId v : n.results) w.bytes += g.type(v).bytes();
  const Sizes s = sizes_of(g.type(n.operands[0]).shape);
  const int64_t k = std::min(s.m, s.n), outer = std::max(s.m, s.n);
  auto columns = [&](size_t operand) { return g.type(n.arg_value(operand)).shape.back(); };
  w.batch = s.items, w.m = s.m, w.n = s.n, w.k = k;
  auto flops = [&](std::initializer_list<int64_t> factors) {
    return operations({s.items, operations(factors)});
  };
  switch (n.op) {
    case Op::Cholesky:
      w.flops = flops({k, k, k}) / 3;
      break;
    case Op::LuFactor:
      w.flops = flops({k, k, outer - k / 3});
      break;
    case Op::SolveTriangular:
      w.flops = flops({k, k, columns(1)});
      break;
    case Op::LuSolve:
      w.flops = flops({2, k, k, columns(2)});
      break;
    case Op::MatrixExp:
      w.flops = flops({16, k, k, k});
      break;
    case Op::Eigh:
      w.flops = flops({n.results.size() == 1 ? 4 : 13, k, k, k}) / 3;
      break;
    case Op::SvdThin:
      w.flops = flops({n.results.size() == 1 ? 4 : 14, k, k, outer});
      break;
    case Op::LuPermutation:
      w.kind = WorkKind::kGather;
      break;
    default:
      w.flops = flops({2, k, k, outer});
  }
  return w;
}

KernelPtr make_linalg(const StepDesc& d) {
  if (d.op == Op::LuPermutation) return make_permutation(d);
  const TensorRef& out = d.outputs[0];
  const TensorRef& a = in(d, 0);
  const int64_t items = items_of(a, 2), size = std::max(rows_of(a), cols_of(a));
  switch (d.op) {
    case Op::Cholesky:
      return make_batch<CholeskyBody>(d, items, size);
    case Op::LuFactor:
      return make_batch<LuBody>(d, items, size);
    case Op::LuSolve:
      return make_batch<LuSolveBody>(d, items_of(out, 2), size);
    case Op::SolveTriangular:
      return make_batch<TriangularBody>(d, items_of(out, 2), size);
    case Op::Geqrf:
      return make_batch<QrBody>(d, items, size);
    case Op::MatrixExp:
      return make_batch<ExponentialBody>(d, items, size);
    case Op::Eigh:
      return make_batch<EigenBody>(d, items, size);
    case Op::SvdThin:
      return make_batch<SvdBody>(d, items, size);
    default:
      return make_batch<HouseholderBody>(d, items, size);
  }
}

bool accepts_linalg(Op op, int, const TensorRef& physical) {
  return op != Op::LuPermutation || physical.contiguous();
}

}  // namespace tessera
