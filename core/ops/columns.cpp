// SPDX-License-Identifier: Apache-2.0
// im2col(x, kernel, dilation, padding, stride): the windows of an image as columns, and
// col2im(x, size, kernel, dilation, padding, stride), which adds columns up into an image.
#include <algorithm>
#include <cstring>

#include "ops/registry.h"
#include "ops/sizes.h"
#include "ops/widened.h"

namespace tessera {
namespace {

// Elements below which a second thread costs more than it saves.
constexpr int64_t kSmall = 16 * 1024;

struct ColumnsShape {
  int64_t size[2], kernel[2], dilation[2], padding[2], stride[2], out[2];

  int64_t taps() const { return kernel[0] * kernel[1]; }
  int64_t windows() const { return out[0] * out[1]; }
};

ColumnsShape columns_shape(const Args& args, size_t first, const Dims& size) {
  ColumnsShape s;
  auto pair = [&](size_t i, int64_t* to) {
    const Dims v = args.ints(i);
    user_check(v.size() == 1 || v.size() == 2, "[im2col] {} values for two dims", v.size());
    to[0] = v[0], to[1] = v.back();
  };
  pair(first, s.kernel), pair(first + 1, s.dilation);
  pair(first + 2, s.padding), pair(first + 3, s.stride);
  user_check(size.size() >= 2, "[im2col] an image of {} dims", size.size());
  for (int d = 0; d < 2; ++d) {
    user_check(size[size.size() - 2 + d] >= 0, "[im2col] an image of negative size");
    s.size[d] = size[size.size() - 2 + d];
    user_check(s.kernel[d] > 0 && s.dilation[d] > 0 && s.stride[d] > 0 && s.padding[d] >= 0,
               "[im2col] kernel, dilation and stride must be positive");
    const int64_t room = s.size[d] + 2 * s.padding[d] - (s.dilation[d] * (s.kernel[d] - 1) + 1);
    user_check(room >= 0, "[im2col] the kernel does not fit into the image");
    s.out[d] = room / s.stride[d] + 1;
  }
  return s;
}

// Windows [first, last) of one axis whose tap `tap` is inside of the image; the first reads `from`.
struct Span {
  int64_t first, last, from;
  Span(const ColumnsShape& s, int d, int64_t tap) {
    const int64_t shift = tap * s.dilation[d] - s.padding[d];
    first = shift < 0 ? (-shift + s.stride[d] - 1) / s.stride[d] : 0;
    const int64_t room = s.size[d] - shift;
    last = std::min(s.out[d], room <= 0 ? 0 : (room + s.stride[d] - 1) / s.stride[d]);
    first = std::min(first, s.out[d]);
    last = std::max(first, last);
    from = first * s.stride[d] + shift;
  }
};

template <typename T>
class ToColumns final : public Kernel {
 public:
  ToColumns(const StepDesc& d, const ColumnsShape& s)
      : x_(d.inputs[0]), y_(d.outputs[0]), s_(s), planes_(x_.count() / (s.size[0] * s.size[1])) {}
  bool single_thread() const override { return y_.count() < kSmall; }
  void run(const RunCtx& c) const override {
    const int64_t taps = s_.taps(), width = s_.out[1], step = s_.stride[1];
    const auto [begin, end] = thread_range(c, planes_ * taps);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t tap = unit % taps;
      const Span rows(s_, 0, tap / s_.kernel[1]), cols(s_, 1, tap % s_.kernel[1]);
      const T* x = c.ptr<T>(x_) + unit / taps * s_.size[0] * s_.size[1];
      T* y = c.ptr<T>(y_) + unit * s_.windows();
      std::fill_n(y, rows.first * width, T{});
      std::fill_n(y + rows.last * width, (s_.out[0] - rows.last) * width, T{});
      for (int64_t r = rows.first; r < rows.last; ++r) {
        const T* from = x + (rows.from + (r - rows.first) * s_.stride[0]) * s_.size[1] + cols.from;
        T* to = y + r * width;
        std::fill_n(to, cols.first, T{});
        std::fill_n(to + cols.last, width - cols.last, T{});
        const int64_t n = cols.last - cols.first;
        if (step == 1)
          std::copy_n(from, n, to + cols.first);
        else if (step == 2)
          for (int64_t i = 0; i < n; ++i) to[cols.first + i] = from[i * 2];
        else
          for (int64_t i = 0; i < n; ++i) to[cols.first + i] = from[i * step];
      }
    }
  }

 private:
  TensorRef x_, y_;
  ColumnsShape s_;
  int64_t planes_;
};

class FromColumns final : public Kernel {
 public:
  FromColumns(const StepDesc& d, const ColumnsShape& s)
      : x_(d.inputs[0]), y_(d.outputs[0]), s_(s), planes_(y_.count() / (s.size[0] * s.size[1])) {}
  bool single_thread() const override { return x_.count() < kSmall; }
  void run(const RunCtx& c) const override {
    const int64_t taps = s_.taps(), width = s_.out[1], step = s_.stride[1];
    const auto [begin, end] = thread_range(c, planes_);
    for (int64_t p = begin; p < end; ++p) {
      float* y = c.ptr<float>(y_) + p * s_.size[0] * s_.size[1];
      std::fill_n(y, s_.size[0] * s_.size[1], 0.0f);
      for (int64_t tap = 0; tap < taps; ++tap) {
        const Span rows(s_, 0, tap / s_.kernel[1]), cols(s_, 1, tap % s_.kernel[1]);
        const float* x = c.ptr<float>(x_) + (p * taps + tap) * s_.windows() + cols.first;
        const int64_t n = cols.last - cols.first;
        for (int64_t r = rows.first; r < rows.last; ++r) {
          const float* from = x + r * width;
          float* to = y + (rows.from + (r - rows.first) * s_.stride[0]) * s_.size[1] + cols.from;
          if (step == 1)
            for (int64_t i = 0; i < n; ++i) to[i] += from[i];
          else
            for (int64_t i = 0; i < n; ++i) to[i * step] += from[i];
        }
      }
    }
  }

 private:
  TensorRef x_, y_;
  ColumnsShape s_;
  int64_t planes_;
};

KernelPtr make_from_columns(const StepDesc& d) {
  return std::make_unique<FromColumns>(d, columns_shape(d.args, 2, d.outputs[0].shape));
}

}  // namespace

std::vector<TensorType> infer_columns(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  const bool into = n.op == Op::Im2Col;
  user_check(x.rank() == (into ? 3 : 2) || x.rank() == (into ? 4 : 3), "[{}] a tensor of {} dims",
             op_text(n.op), x.rank());
  const ColumnsShape s = columns_shape(n.args, into ? 1 : 2, into ? x.shape : n.args.ints(1));
  user_check(into || n.args.ints(1).size() == 2, "[col2im] {} sizes for two dims",
             n.args.ints(1).size());
  times(times(s.kernel[0], s.kernel[1]), times(s.out[0], s.out[1]));
  Dims shape(x.shape.begin(), x.shape.end() - (into ? 3 : 2));
  if (into) {
    shape.push_back(times(x.shape[x.shape.size() - 3], s.taps()));
    shape.push_back(s.windows());
  } else {
    user_check(x.shape[x.shape.size() - 2] % s.taps() == 0 && x.shape.back() == s.windows(),
               "[col2im] {} columns of {} elements do not make this image", x.shape.back(),
               x.shape[x.shape.size() - 2]);
    shape.push_back(x.shape[x.shape.size() - 2] / s.taps());
    shape.push_back(s.size[0]);
    shape.push_back(s.size[1]);
  }
  return {{x.dtype, shape, {}}};
}

Work work_columns(const Graph& g, const Node& n) {
  const int64_t x = g.type(n.arg_value(0)).bytes(), y = g.type(n.results[0]).bytes();
  if (n.op == Op::Im2Col) return {WorkKind::kCopy, 0, 2 * y};
  return {WorkKind::kReduce, g.type(n.arg_value(0)).count(), x + y};
}

KernelPtr make_columns(const StepDesc& d) {
  if (d.outputs[0].count() == 0) return make_kernel([](const RunCtx&) {}, 0, true);
  if (d.op == Op::Col2Im) {
    const bool batch = d.outputs[0].shape.size() == 4;
    return make_widened(d, make_from_columns, batch ? Pieces::along(d, 0) : Pieces{});
  }
  const ColumnsShape s = columns_shape(d.args, 1, d.inputs[0].shape);
  switch (size_of(d.outputs[0].dtype)) {
    case 1:
      return std::make_unique<ToColumns<uint8_t>>(d, s);
    case 2:
      return std::make_unique<ToColumns<uint16_t>>(d, s);
    case 4:
      return std::make_unique<ToColumns<uint32_t>>(d, s);
    default:
      return std::make_unique<ToColumns<uint64_t>>(d, s);
  }
}

bool accepts_columns(Op, int, const TensorRef& physical) {
  return physical.contiguous();
}

}  // namespace tessera
