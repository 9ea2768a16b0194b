// SPDX-License-Identifier: Apache-2.0
// ctc_beam_search(log probabilities [time, batch, class], lengths [batch], blank, width, top) ->
// (log probabilities [batch, top], lengths [batch, top], labels [batch, top, time]).
#include "kernels/beam.h"

#include "kernels/gather.h"
#include "ops/registry.h"
#include "ops/run_error.h"
#include "ops/sizes.h"
#include "ops/widened.h"

namespace tessera {
namespace {

class BeamKernel final : public Kernel {
 public:
  explicit BeamKernel(const StepDesc& d)
      : logp_(d.inputs[d.args.operand(0)]),
        lengths_(d.inputs[d.args.operand(1)]),
        score_(d.outputs[0]),
        sizes_(d.outputs[1]),
        labels_(d.outputs[2]),
        search_{logp_.shape[0], logp_.shape[2], d.args.integer(2), d.args.integer(3)},
        thread_bytes_(whole_lines(search_.scratch_bytes())) {}

  int64_t scratch_bytes(int threads) const override { return threads * thread_bytes_; }
  bool may_fail() const override { return true; }

  void run(const RunCtx& c) const override {
    const int64_t top = score_.shape[1];
    // Batches are often sorted by length: every thread takes some of all lengths.
    for (int64_t b = c.thread; b < logp_.shape[1]; b += c.threads) {
      int64_t length = kernels::read_index(c.ptr<const std::byte>(lengths_),
                                           b * lengths_.strides[0], lengths_.dtype);
      if (length < 0 || length > search_.steps) {
        fail_run(c, "[ctc_beam_search_decoder] an input of length {} in a batch of {} steps",
                 length, search_.steps);
        length = 0;
      }
      const bool sound = search_.run(
          c.ptr<const float>(logp_) + b * logp_.strides[1], logp_.strides[0], length, top,
          c.ptr<float>(score_) + b * top, c.ptr<int32_t>(sizes_) + b * top,
          c.ptr<int32_t>(labels_) + b * top * search_.steps, c.scratch + c.thread * thread_bytes_);
      if (!sound)
        fail_run(c, "[ctc_beam_search_decoder] sample {} has a log probability that is NaN or inf",
                 b);
    }
  }

 private:
  TensorRef logp_, lengths_, score_, sizes_, labels_;
  kernels::BeamSearch search_;
  int64_t thread_bytes_;
};

}  // namespace

std::vector<TensorType> infer_beam(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  user_check(x.rank() == 3 && is_float(x.dtype),
             "[ctc_beam_search_decoder] needs floats of [time, batch, class]");
  const TensorType& lengths = g.type(n.arg_value(1));
  user_check(is_int(lengths.dtype) && lengths.shape == Dims{x.shape[1]},
             "[ctc_beam_search_decoder] needs one length per sample, as integers");
  const int64_t blank = n.args.integer(2), width = n.args.integer(3), top = n.args.integer(4);
  user_check(blank >= 0 && blank < x.shape[2],
             "[ctc_beam_search_decoder] blank {} is none of the {} classes", blank, x.shape[2]);
  user_check(width <= 1 << 20 && times(x.shape[0], width) <= INT32_MAX,
             "[ctc_beam_search_decoder] {} paths are too many to follow", width);
  user_check(top >= 1 && top <= width,
             "[ctc_beam_search_decoder] {} paths of {} that are followed can't be returned", top,
             width);
  const Dims paths{x.shape[1], top};
  return {{x.dtype, paths, {}},
          {DType::I32, paths, {}},
          {DType::I32, {x.shape[1], top, x.shape[0]}, {}}};
}

Work work_beam(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  // A step looks at each class, and at a few labels behind each sequence that is followed.
  const int64_t steps = operations({x.shape[0], x.shape[1]});
  const int64_t width = n.args.integer(3);
  return {WorkKind::kReduce, operations({steps, 10 * x.shape[2] + 150 * width}), x.bytes()};
}

KernelPtr make_beam(const StepDesc& desc) {
  return make_widened(
      desc, [](const StepDesc& d) -> KernelPtr { return std::make_unique<BeamKernel>(d); });
}

bool accepts_beam(Op, int, const TensorRef& physical) {
  return physical.contiguous() || (physical.shape.size() == 3 && physical.strides[2] == 1);
}

}  // namespace tessera
