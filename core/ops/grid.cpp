// SPDX-License-Identifier: Apache-2.0
// grid_sampler(x, grid, mode, padding, align_corners) over two or three spatial dims, and
// grid_sampler_backward(gy, x, grid, mode, padding, align_corners) -> gx, ggrid.
#include "kernels/grid.h"

#include <algorithm>

#include "ops/registry.h"
#include "ops/widened.h"

namespace tessera {
namespace {

using kernels::GridShape;

// Taps below which a second thread costs more than it saves.
constexpr int64_t kSmall = 4 * 1024;

GridShape grid_shape(const Args& args, size_t first, const Dims& x, const Dims& grid) {
  GridShape s;
  s.axes = static_cast<int>(x.size()) - 2;
  for (int a = 0; a < s.axes; ++a) s.in[3 - s.axes + a] = x[2 + a];
  s.points = product(grid) / std::max<int64_t>(1, grid[0] * s.axes);
  s.mode = static_cast<kernels::GridMode>(args.integer(first));
  s.padding = static_cast<kernels::GridPadding>(args.integer(first + 1));
  s.align_corners = args.boolean(first + 2);
  return s;
}

class GridKernel final : public Kernel {
 public:
  explicit GridKernel(const StepDesc& d)
      : back_(d.op == Op::GridSamplerGrad),
        gy_(d.inputs[0]),
        x_(d.inputs[d.args.operand(back_ ? 1 : 0)]),
        grid_(d.inputs[d.args.operand(back_ ? 2 : 1)]),
        y_(d.outputs[0]),
        shape_(grid_shape(d.args, back_ ? 3 : 2, x_.shape, grid_.shape)),
        images_(x_.shape[0]),
        channels_(x_.shape[1]) {
    if (back_) gy_ = d.inputs[d.args.operand(0)], ggrid_ = d.outputs[1];
  }
  bool single_thread() const override { return images_ * channels_ * shape_.points < kSmall; }
  void run(const RunCtx& c) const override {
    const kernels::GridKernels& k = kernels::grid_kernels();
    const int64_t area = shape_.area(), points = shape_.points;
    const float *x = c.ptr<float>(x_), *grid = c.ptr<float>(grid_);
    constexpr int64_t kPoints = 16;
    const auto [begin, end] = thread_range(c, images_ * points, kPoints);
    for (int64_t at = begin; at < end;) {
      const int64_t n = at / points, first = at % points;
      const int64_t last = std::min(points, first + end - at);
      const float* image = x + n * channels_ * area;
      const float* coordinates = grid + n * points * shape_.axes;
      if (back_)
        k.grid_grad(shape_, c.ptr<float>(gy_) + n * channels_ * points, image, coordinates,
                    channels_, first, last, c.ptr<float>(ggrid_) + n * points * shape_.axes);
      else
        k.forward(shape_, image, coordinates, channels_, first, last,
                  c.ptr<float>(y_) + n * channels_ * points);
      at += last - first;
    }
    if (back_) input_grad(k, c);
  }

 private:
  // Shared by planes: each is added to by one thread, in the order of the points.
  void input_grad(const kernels::GridKernels& k, const RunCtx& c) const {
    const int64_t area = shape_.area(), points = shape_.points;
    const auto [begin, end] = thread_range(c, images_ * channels_);
    float* gx = c.ptr<float>(y_);
    std::fill(gx + begin * area, gx + end * area, 0.0f);
    for (int64_t at = begin; at < end;) {
      const int64_t n = at / channels_;
      const int64_t count = std::min(end, (n + 1) * channels_) - at;
      k.input_grad(shape_, c.ptr<float>(gy_) + at * points,
                   c.ptr<float>(grid_) + n * points * shape_.axes, count, 0, points,
                   gx + at * area);
      at += count;
    }
  }

  bool back_;
  TensorRef gy_, x_, grid_, y_, ggrid_;
  GridShape shape_;
  int64_t images_, channels_;
};

KernelPtr make_plain(const StepDesc& d) {
  return std::make_unique<GridKernel>(d);
}

}  // namespace

std::vector<TensorType> infer_grid(const Graph& g, const Node& n) {
  const bool back = n.op == Op::GridSamplerGrad;
  const TensorType& x = g.type(n.arg_value(back ? 1 : 0));
  const TensorType& grid = g.type(n.arg_value(back ? 2 : 1));
  user_check((x.rank() == 4 || x.rank() == 5) && grid.rank() == x.rank() &&
                 grid.shape[0] == x.shape[0] && grid.shape.back() == x.rank() - 2,
             "[grid_sampler] image and grid do not fit together");
  const int64_t mode = n.args.integer(back ? 3 : 2), padding = n.args.integer(back ? 4 : 3);
  user_check(mode >= 0 && mode <= 2 && (mode < 2 || x.rank() == 4) && padding >= 0 && padding <= 2,
             "[grid_sampler] no mode {} with padding {} for {} spatial dims", mode, padding,
             x.rank() - 2);
  Dims shape{x.shape[0], x.shape[1]};
  shape.insert(shape.end(), grid.shape.begin() + 1, grid.shape.end() - 1);
  user_check(!back || g.type(n.arg_value(0)).shape == shape,
             "[grid_sampler] the gradient does not have the shape of the result");
  if (back) return {{x.dtype, x.shape, {}}, {grid.dtype, grid.shape, {}}};
  return {{x.dtype, shape, {}}};
}

Work work_grid(const Graph& g, const Node& n) {
  const bool back = n.op == Op::GridSamplerGrad;
  const TensorType& x = g.type(n.arg_value(back ? 1 : 0));
  const TensorType& grid = g.type(n.arg_value(back ? 2 : 1));
  const int64_t axes = x.rank() - 2, mode = n.args.integer(back ? 3 : 2);
  const int64_t taps = mode == 1 ? 1 : mode == 2 ? 16 : int64_t{1} << axes;
  const int64_t points = grid.count() / axes;
  Work work{.kind = WorkKind::kGather, .flops = 2 * points * x.shape[1] * taps};
  if (back) work.flops *= 1 + axes;
  for (ValueId v : n.operands) work.bytes += g.type(v).bytes();
  for (ValueId v : n.results) work.bytes += g.type(v).bytes();
  return work;
}

KernelPtr make_grid(const StepDesc& d) {
  if (d.outputs[0].count() == 0 && d.outputs.size() == 1)
    return make_kernel([](const RunCtx&) {}, 0, true);
  return make_widened(d, make_plain, Pieces::along(d, 0));
}

bool accepts_grid(Op, int, const TensorRef& physical) {
  return physical.contiguous();
}

}  // namespace tessera
