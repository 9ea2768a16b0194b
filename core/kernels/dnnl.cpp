// SPDX-License-Identifier: Apache-2.0
// The oneDNN primitives of DnnlConvolution: activations are described by their strides as they
// are, weights are left to the library (format any) and reordered in scratch memory if it wants
// another form.
#include "kernels/dnnl.h"

#include <dnnl.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"

namespace tessera::kernels {

namespace {

using Desc = dnnl::memory::desc;
using DnnlDims = dnnl::memory::dims;

constexpr int64_t kAlign = 64;

int64_t aligned(int64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

// One spatial dim is dropped where it is trivial: the library's fast paths are for 2-D.
int first_spatial(const ConvShape& s) {
  const bool flat = s.in[0] == 1 && s.out[0] == 1 && s.kernel[0] == 1 && s.pad[0] == 0;
  return flat ? 1 : 0;
}

DnnlDims spatial(const ConvShape& s, const std::array<int64_t, 3>& a, int64_t add = 0) {
  DnnlDims dims;
  for (int d = first_spatial(s); d < 3; ++d) dims.push_back(a[d] + add);
  return dims;
}

// Padding after the end of the image. A transposed convolution may have made it larger than the
// windows reach (output_padding beyond the stride), which the library takes as less padding.
DnnlDims high_padding(const ConvShape& s) {
  DnnlDims dims;
  for (int d = first_spatial(s); d < 3; ++d) {
    const int64_t window = s.dilation[d] * (s.kernel[d] - 1) + 1;
    const int64_t reach = (s.out[d] - 1) * s.stride[d] + window - s.in[d] - s.pad[d];
    const bool symmetric = (s.in[d] + 2 * s.pad[d] - window) / s.stride[d] + 1 == s.out[d];
    dims.push_back(symmetric ? s.pad[d] : reach);
  }
  return dims;
}

Desc activation(const ConvShape& s, int64_t channels, const std::array<int64_t, 3>& size,
                const Strides5& strides, dnnl::memory::data_type type) {
  DnnlDims dims{s.n, channels}, steps{strides[0], strides[1]};
  for (int d = first_spatial(s); d < 3; ++d) {
    dims.push_back(size[d]);
    steps.push_back(strides[2 + d]);
  }
  return {dims, type, steps};
}

// (groups,) result channels, source channels, kernel; a transposed convolution sees the two channel
// dims the other way round.
Desc weights(const ConvShape& s, const Strides5& strides, bool transposed,
             dnnl::memory::data_type type, bool any) {
  DnnlDims dims, steps;
  if (s.groups > 1) {
    dims.push_back(s.groups);
    steps.push_back(s.group_k() * strides[0]);
  }
  const int64_t sizes[] = {s.group_k(), s.group_c()};
  for (int i = 0; i < 2; ++i) {
    const int which = transposed ? 1 - i : i;
    dims.push_back(sizes[which]);
    steps.push_back(strides[which]);
  }
  for (int d = first_spatial(s); d < 3; ++d) {
    dims.push_back(s.kernel[d]);
    steps.push_back(strides[2 + d]);
  }
  if (any) return {dims, type, dnnl::memory::format_tag::any};
  return {dims, type, steps};
}

}  // namespace

struct DnnlConvolution::Parts {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::primitive primitive;
  std::optional<dnnl::reorder> reorder;
  bool reorder_first = false;  // weights in, or weight gradient out
  bool keep_weights = false, share_weights = false, kept = false;
  int64_t scratchpad_bytes = 0, packed_bytes = 0;

  dnnl::memory x, y, w, packed, bias, scratchpad;
  std::unordered_map<int, dnnl::memory> args, reorder_args;

  // Makes memories and the argument maps once all descriptors are known; `ids` are the argument
  // numbers of x, w, y.
  template <typename Pd>
  void finish(const Pd& pd, const Desc& xd, const Desc& wd, const Desc& yd, const Desc& packed_desc,
              const std::optional<Desc>& bias_desc, const int (&ids)[3], bool weights_are_result) {
    x = dnnl::memory(xd, engine, DNNL_MEMORY_NONE);
    y = dnnl::memory(yd, engine, DNNL_MEMORY_NONE);
    w = dnnl::memory(wd, engine, DNNL_MEMORY_NONE);
    scratchpad_bytes = aligned(static_cast<int64_t>(pd.scratchpad_desc().get_size()));
    scratchpad = dnnl::memory(pd.scratchpad_desc(), engine, DNNL_MEMORY_NONE);
    args = {{ids[0], x}, {ids[2], y}, {DNNL_ARG_SCRATCHPAD, scratchpad}};
    if (bias_desc) {
      bias = dnnl::memory(*bias_desc, engine, DNNL_MEMORY_NONE);
      args[DNNL_ARG_BIAS] = bias;
    }
    if (packed_desc == wd) {
      args[ids[1]] = w;
      return;
    }
    reorder_first = !weights_are_result;
    packed_bytes = aligned(static_cast<int64_t>(packed_desc.get_size()));
    // A kept packing owns its memory; otherwise it lives in scratch.
    packed = keep_weights ? dnnl::memory(packed_desc, engine)
                          : dnnl::memory(packed_desc, engine, DNNL_MEMORY_NONE);
    args[ids[1]] = packed;
    reorder = reorder_first ? dnnl::reorder(w, packed) : dnnl::reorder(packed, w);
    reorder_args = {{DNNL_ARG_FROM, reorder_first ? w : packed},
                    {DNNL_ARG_TO, reorder_first ? packed : w}};
  }

  void build(const DnnlConvDesc& d);
};

void DnnlConvolution::Parts::build(const DnnlConvDesc& d) {
  const ConvShape& s = d.shape;
  const auto type =
      d.dtype == DType::BF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const bool transposed = d.direction == ConvDirection::kTransposed;
  const Desc x_desc = activation(s, s.c, s.in, d.x, type),
             y_desc = activation(s, s.k, s.out, d.y, type);
  const Desc w_desc = weights(s, d.w, transposed, type, false);
  const Desc w_any = weights(s, d.w, transposed, type, true);
  const DnnlDims stride = spatial(s, s.stride), pad = spatial(s, s.pad), high = high_padding(s),
                 dilation = spatial(s, s.dilation, -1);
  std::optional<Desc> bias_desc;
  if (d.bias) bias_desc = Desc({transposed ? s.c : s.k}, type, dnnl::memory::format_tag::a);
  const Desc b = bias_desc.value_or(Desc());
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  keep_weights = d.keep_weights && d.direction != ConvDirection::kWeightGrad;
  share_weights = d.share_weights;

  using Forward = dnnl::convolution_forward;
  auto forward = [&] {
    return Forward::primitive_desc(
        d.bias ? Forward::desc(dnnl::prop_kind::forward_training, algorithm, x_desc, w_any, b,
                               y_desc, stride, dilation, pad, high)
               : Forward::desc(dnnl::prop_kind::forward_training, algorithm, x_desc, w_any, y_desc,
                               stride, dilation, pad, high),
        attr, engine);
  };
  switch (d.direction) {
    case ConvDirection::kForward: {
      auto pd = forward();
      primitive = Forward(pd);
      finish(pd, x_desc, w_desc, y_desc, pd.weights_desc(), bias_desc,
             {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}, false);
      return;
    }
    case ConvDirection::kInputGrad: {
      using Backward = dnnl::convolution_backward_data;
      Backward::primitive_desc pd({algorithm, x_desc, w_any, y_desc, stride, dilation, pad, high},
                                  attr, engine, forward());
      primitive = Backward(pd);
      finish(pd, x_desc, w_desc, y_desc, pd.weights_desc(), bias_desc,
             {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST}, false);
      return;
    }
    case ConvDirection::kWeightGrad: {
      using Backward = dnnl::convolution_backward_weights;
      Backward::primitive_desc pd({algorithm, x_desc, w_any, y_desc, stride, dilation, pad, high},
                                  attr, engine, forward());
      primitive = Backward(pd);
      finish(pd, x_desc, w_desc, y_desc, pd.diff_weights_desc(), bias_desc,
             {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}, true);
      return;
    }
    case ConvDirection::kTransposed: {
      using Transposed = dnnl::deconvolution_forward;
      const auto how = dnnl::algorithm::deconvolution_direct;
      const auto kind = dnnl::prop_kind::forward_training;
      Transposed::primitive_desc pd(
          d.bias
              ? Transposed::desc(kind, how, y_desc, w_any, b, x_desc, stride, dilation, pad, high)
              : Transposed::desc(kind, how, y_desc, w_any, x_desc, stride, dilation, pad, high),
          attr, engine);
      primitive = Transposed(pd);
      finish(pd, x_desc, w_desc, y_desc, pd.weights_desc(), bias_desc,
             {DNNL_ARG_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_SRC}, false);
      return;
    }
  }
}

DnnlConvolution::DnnlConvolution(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
DnnlConvolution::~DnnlConvolution() = default;

std::unique_ptr<DnnlConvolution> DnnlConvolution::make(const DnnlConvDesc& desc) {
  auto parts = std::make_unique<Parts>();
  try {
    parts->build(desc);
  } catch (const dnnl::error& e) {
    // A negative padding is an invalid argument to it.
    if (e.status == dnnl_unimplemented || e.status == dnnl_invalid_arguments) return nullptr;
    throw InternalError(std::string("internal error: oneDNN convolution: ") + e.what());
  }
  return std::unique_ptr<DnnlConvolution>(new DnnlConvolution(std::move(parts)));
}

void DnnlConvolution::forget_weights() {
  parts_->kept = false;
}

int64_t DnnlConvolution::scratch_bytes() const {
  return parts_->scratchpad_bytes + (parts_->keep_weights ? 0 : parts_->packed_bytes);
}

void DnnlConvolution::run(void* x, void* w, const void* bias, void* y, std::byte* scratch) {
  Parts& p = *parts_;
  p.x.set_data_handle(x);
  p.y.set_data_handle(y);
  p.w.set_data_handle(w);
  p.scratchpad.set_data_handle(scratch);
  if (bias) p.bias.set_data_handle(const_cast<void*>(bias));
  if (p.reorder && !p.keep_weights) p.packed.set_data_handle(scratch + p.scratchpad_bytes);
  if (p.reorder && p.reorder_first && !p.kept) {
    p.reorder->execute(p.stream, p.reorder_args);
    p.kept = p.keep_weights || p.share_weights;
  }
  p.primitive.execute(p.stream, p.args);
  if (p.reorder && !p.reorder_first) p.reorder->execute(p.stream, p.reorder_args);
}

}  // namespace tessera::kernels
