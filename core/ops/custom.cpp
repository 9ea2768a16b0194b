// SPDX-License-Identifier: Apache-2.0
// custom(domain, name, version, operands, attributes): a function of a user's library. Only ops
// that compute get here; compositions are taken apart when the model is captured.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "ops/custom_call.h"
#include "ops/custom_team.h"
#include "ops/registry.h"
#include "ops/run_error.h"

namespace tessera {
namespace {

void check_form(const Node& n) {
  const std::vector<Arg>& a = n.args.list;
  const bool fits = a.size() == 5 && a[0].kind == Arg::Kind::kString &&
                    a[1].kind == Arg::Kind::kString && a[2].kind == Arg::Kind::kInt &&
                    a[3].kind == Arg::Kind::kList && a[4].kind == Arg::Kind::kList;
  user_check(fits, "custom takes a domain, a name, a version, operands and attributes");
  user_check(a[3].list.size() == n.operands.size() &&
                 std::all_of(a[3].list.begin(), a[3].list.end(),
                             [](const Arg& x) { return x.is_operand(); }),
             "the operands of a custom op are a list of tensors");
}

CustomCall call_of(const Args& args, const std::vector<TensorType>& inputs) {
  return {args.text(0), args.text(1), args.integer(2), inputs, args.at(4)};
}

CustomCall call_of(const Graph& g, const Node& n) {
  std::vector<TensorType> inputs;
  for (const Arg& a : n.args.at(3).list) inputs.push_back(g.type(n.operands[a.i]));
  return call_of(n.args, inputs);
}

CustomCall call_of(const StepDesc& d) {
  std::vector<TensorType> inputs;
  for (const Arg& a : d.args.at(3).list)
    inputs.push_back({d.inputs[a.i].dtype, d.inputs[a.i].shape, {}});
  return call_of(d.args, inputs);
}

const tessera_op* op_of(const Args& args) {
  return tessera_find_op(args.text(0).c_str(), args.text(1).c_str(),
                         static_cast<int32_t>(args.integer(2)));
}

class CustomKernel final : public Kernel {
 public:
  explicit CustomKernel(const StepDesc& d) : call_(call_of(d)), outputs_(d.outputs) {
    for (const Arg& a : d.args.at(3).list) inputs_.push_back(d.inputs[a.i]);
    call_.setup();
    call_.check(tessera_call_prepare(call_.get(), &instance_));
    pointer_bytes_ =
        whole_lines(static_cast<int64_t>((inputs_.size() + outputs_.size()) * sizeof(void*)));
    thread_bytes_ = pointer_bytes_ + whole_lines(tessera_call_scratch(call_.get()));
  }
  ~CustomKernel() override { tessera_call_destroy(call_.get(), instance_); }

  bool single_thread() const override { return (call_.op().flags & TESSERA_ONE_THREAD) != 0; }
  bool may_fail() const override { return true; }
  int64_t scratch_bytes(int threads) const override { return threads * thread_bytes_; }

  void run(const RunCtx& c) const override {
    const bool first = !seen_.load(std::memory_order_relaxed);
    if (first) [[unlikely]] {
      c.barrier();  // all threads have asked
      if (c.thread == 0) mark(c);
      c.barrier();
    }
    compute(c);
    if (first) [[unlikely]] {
      c.barrier();
      if (c.thread == 0) {
        seen_.store(true, std::memory_order_relaxed);
        check_written(c);
      }
    }
  }

 private:
  // What compute sees, and where it reports to.
  struct Run : tessera_run {
    const RunCtx* ctx;
    const CustomKernel* kernel;
  };

  void compute(const RunCtx& c) const {
    std::byte* mine = c.scratch + c.thread * thread_bytes_;
    auto** pointers = reinterpret_cast<void**>(mine);
    size_t k = 0;
    for (const TensorRef& t : inputs_) pointers[k++] = c.ptr<std::byte>(t);
    for (const TensorRef& t : outputs_) pointers[k++] = c.ptr<std::byte>(t);
    Run run{};
    run.size = sizeof(tessera_run);
    run.thread = c.thread;
    run.threads = c.threads;
    run.call = call_.get();
    run.instance = instance_;
    run.inputs = pointers;
    run.outputs = pointers + inputs_.size();
    run.scratch = mine + pointer_bytes_;
    run.barrier = [](const tessera_run* r) {
      if (r->threads > 1)
        static_cast<const Run*>(r)->kernel->team_.wait(static_cast<uint32_t>(r->threads));
    };
    run.fail = [](const tessera_run* r, const char* text) {
      const Run* own = static_cast<const Run*>(r);
      fail_run(*own->ctx, "[{}] {} ({})", own->kernel->call_.label(), text ? text : "",
               own->kernel->call_.library());
    };
    run.ctx = &c;
    run.kernel = this;
    tessera_run_compute(&call_.op(), &run);
    if (c.threads > 1) team_.leave(static_cast<uint32_t>(c.threads));
  }

  // The first run finds out whether compute writes its outputs: memory that it leaves alone holds
  // whatever was there.
  static constexpr int kMark = 0xA5;
  void mark(const RunCtx& c) const {
    for (const TensorRef& t : outputs_)
      std::memset(c.ptr<std::byte>(t), kMark, static_cast<size_t>(t.bytes()));
  }
  void check_written(const RunCtx& c) const {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const TensorRef& t = outputs_[i];
      const auto* bytes = c.ptr<const unsigned char>(t);
      const int64_t size = size_of(t.dtype);
      auto marked = [&](int64_t k) {
        return std::all_of(bytes + k * size, bytes + (k + 1) * size,
                           [](unsigned char b) { return b == kMark; });
      };
      // Few bytes may well hold this value: then only a tensor of nothing else is suspicious.
      const int64_t count = t.count();
      int64_t at = 0, left = 0;
      for (int64_t k = 0; k < count; ++k)
        if (marked(k) && left++ == 0) at = k;
      if (left == count && count * size >= 4)
        fail_run(c, "[{}] compute wrote nothing to output {} ({})", call_.label(), i,
                 call_.library());
      else if (left > 0 && size >= 4)
        fail_run(c, "[{}] compute left element {} of output {} unwritten ({})", call_.label(), at,
                 i, call_.library());
    }
  }

  CustomCall call_;
  std::vector<TensorRef> inputs_, outputs_;
  void* instance_ = nullptr;
  int64_t pointer_bytes_ = 0, thread_bytes_ = 0;
  mutable CustomTeam team_;
  mutable std::atomic<bool> seen_{false};
};

}  // namespace

bool custom_varies(const Args& args) {
  const tessera_op* op = op_of(args);
  return op != nullptr && (op->flags & TESSERA_VARIES) != 0;
}

std::string custom_label(const Args& args) {
  const tessera_op* op = op_of(args);
  return fmt::format("{}.{}:{}", args.text(0), args.text(1), op ? op->version : args.integer(2));
}

std::string custom_library(const Args& args) {
  const tessera_op* op = op_of(args);
  return op ? tessera_op_library(op) : "";
}

std::vector<TensorType> infer_custom(const Graph& g, const Node& n) {
  check_form(n);
  return call_of(g, n).setup();
}

Work work_custom(const Graph& g, const Node& n) {
  Work w{WorkKind::kPointwise, 0, 0};
  for (ValueId v : n.operands) w.bytes += g.type(v).bytes();
  for (ValueId v : n.results) {
    w.bytes += g.type(v).bytes();
    w.flops += g.type(v).count();
  }
  CustomCall call = call_of(g, n);
  if (!call.op().work) return w;
  call.setup();
  call.check(tessera_call_work(call.get(), &w.flops, &w.bytes));
  return w;
}

KernelPtr make_custom(const StepDesc& desc) {
  return std::make_unique<CustomKernel>(desc);
}

bool accepts_custom(Op, int, const TensorRef&) {
  return false;  // row-major without gaps
}

}  // namespace tessera
