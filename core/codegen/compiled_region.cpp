// SPDX-License-Identifier: Apache-2.0
#ifdef TESSERA_HAVE_LLVM

#include "codegen/compiled_region.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "codegen/jit.h"
#include "codegen/loop_nest.h"
#include "codegen/lower_llvm.h"
#include "codegen/scalar_value.h"

namespace tessera::codegen {
namespace {

constexpr int kMaxSlots = 96;
constexpr int64_t kColumnGrain =
    256;  // cuts along columns: whole cache lines of every type, whole unrolled steps
constexpr int64_t kTile = 16;

// Results that are larger than this are not in the cache when somebody reads them; storing past it
// saves reading their memory first (measured: 1.3 times as fast on 40 MB).
constexpr int64_t kStreamBytes = int64_t{24} << 20;

constexpr int kMaxDims = 16;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Where each slot is; only as many as the region has are copied.
class Pointers {
 public:
  explicit Pointers(size_t count) : count_(count) {}
  Pointers(const Pointers& o) : count_(o.count_) { std::copy_n(o.at_, count_, at_); }
  Pointers& operator=(const Pointers&) = delete;
  std::byte*& operator[](size_t slot) { return at_[slot]; }
  std::byte* operator[](size_t slot) const { return at_[slot]; }
  std::byte* const* data() const { return at_; }

 private:
  size_t count_;
  std::byte* at_[kMaxSlots];
};

// Half-open ranges of the dims of a nest.
struct Box {
  int64_t begin[kMaxDims], end[kMaxDims];
};

class CompiledRegion final : public Region {
 public:
  CompiledRegion(TypedCode code, std::vector<TensorRef> outputs, const RegionOptions& options)
      : code_(std::move(code)),
        outputs_(std::move(outputs)),
        nest_(make_loop_nest(code_, options.keep_inner)) {
    user_check(code_.slots.size() <= kMaxSlots, "fused region: {} operands and results, at most {}",
               code_.slots.size(), kMaxSlots);
    user_check(nest_.sizes.size() <= kMaxDims,
               "[shape] {} dims that are not contiguous with each other, more than {}",
               nest_.sizes.size(), kMaxDims);
    inner_ = nest_.columns();
    outer_ = 1;
    for (size_t d = 0; d + 1 < nest_.sizes.size(); ++d) outer_ *= nest_.sizes[d];
    // Moving an element in or out counts as much as eight operations on it.
    cost_ = outer_ * inner_ * (code_.inputs + code_.outputs + code_.cost / 8);
    reduces_ = code_.reduces;
    may_fail_ = code_.failure_param >= 0;
    if (may_fail_) code_.params[code_.failure_param] = reinterpret_cast<int64_t>(&failed_);
    for (const Dims& s : nest_.strides) {
      row_strides_.push_back(s[s.size() - 2]);
      column_strides_.push_back(s.back());
    }
    compile();
    if (nest_.tiled) choose_direction();
    if (reduces_) plan_partials();
  }

  int64_t scratch_bytes() const override { return scratch_; }
  std::vector<std::string> code_keys() const override { return keys_; }

  void run_box(std::byte* const* ptrs, int64_t o_begin, int64_t o_end, int64_t i_begin,
               int64_t i_end) const override {
    invariant(!reduces_, "run_box of a region that reduces");
    const Pointers at = pointers_of(ptrs);
    const int64_t rows = nest_.rows();
    // The outer index counts rows fastest; a run ends with the box or with the row dim.
    for (int64_t o = o_begin; o < o_end;) {
      const int64_t first = o % rows, count = std::min(rows - first, o_end - o);
      Pointers p = at;
      int64_t rest = o / rows;
      for (size_t d = nest_.sizes.size() - 2; d-- > 0;) {
        advance(p, d, rest % nest_.sizes[d]);
        rest /= nest_.sizes[d];
      }
      const int64_t step = down_first_ ? kTile : i_end - i_begin;
      for (int64_t c = i_begin; c < i_end; c += step)
        call(p, first, count, c, std::min(step, i_end - c));
      o += count;
    }
  }

  void run(const RunCtx& ctx, std::byte* const* ptrs) const override {
    if (reduces_) return run_reductions(ctx, ptrs);
    if (outer_ >= 2 * ctx.threads && outer_ >= inner_ / kColumnGrain) {
      auto [b, e] =
          thread_range(ctx, outer_, nest_.tiled && outer_ >= 2 * kTile * ctx.threads ? kTile : 1);
      if (b < e) run_box(ptrs, b, e, 0, inner_);
    } else {
      auto [b, e] = thread_range(ctx, inner_, kColumnGrain);
      if (b < e) run_box(ptrs, 0, outer_, b, e);
    }
  }

 private:
  void compile() {
    LoopSpec spec;
    spec.code = &code_;
    spec.inner_reduced = nest_.reduced.back();
    spec.outer_reduced = nest_.reduced[nest_.reduced.size() - 2];
    spec.tiled = nest_.tiled;
    for (size_t s = 0; s < code_.slots.size(); ++s) {
      const Slot& slot = code_.slots[s];
      const int64_t unit = slot.kind == SlotKind::kIndex ? 1 : size_of(slot.dtype),
                    in = column_strides_[s];
      Walk w;
      w.inner = in == 0 ? Step::kZero : in == unit ? Step::kUnit : Step::kOther;
      if (in == 2 * unit && slot.kind == SlotKind::kLoad) w.inner = Step::kTwo;
      w.outer_moves = row_strides_[s] != 0;
      w.transposed = nest_.transposed[s];
      spec.walks.push_back(w);
    }
    auto compiled = [&] {
      keys_.push_back(loop_key(spec));
      return jit_function(keys_.back(),
                          [&](llvm::Module& m, const std::string& name, const JitTarget& target) {
                            emit_loop(spec, m, name, target);
                          });
    };
    fn_ = compiled();
    if (!may_stream()) return;
    spec.streams = true;
    stream_fn_ = compiled();
  }

  // Large dense results that are not also operands.
  bool may_stream() const {
    int64_t bytes = 0;
    for (int k = 0; k < code_.outputs; ++k)
      bytes += outputs_[k].count() * size_of(outputs_[k].dtype);
    if (reduces_ || nest_.tiled || bytes < kStreamBytes) return false;
    for (int s = code_.inputs; s < code_.inputs + code_.outputs; ++s) {
      const int64_t unit = size_of(code_.slots[s].dtype);
      if (column_strides_[s] != unit || nest_.columns() < 256) return false;
      for (size_t d = 0; d + 1 < nest_.sizes.size(); ++d)
        if (nest_.strides[s][d] % 64 != 0) return false;
    }
    return true;
  }

  bool streams(const Pointers& p) const {
    for (int s = code_.inputs; s < code_.inputs + code_.outputs; ++s) {
      if (reinterpret_cast<uintptr_t>(p[s]) % 64 != 0) return false;
      // In place the memory is in the cache already.
      for (int k = 0; k < code_.inputs; ++k)
        if (p[s] == p[k]) return false;
    }
    return true;
  }

  // A transposing copy has sixteen streams with large steps between them, either read or written.
  // It is fast when the inner loop runs along those streams, so that the hardware fetches ahead
  // (measured: 1.1 to 1.6 times).
  void choose_direction() {
    int64_t read = 0, written = 0;
    for (size_t s = 0; s < code_.slots.size(); ++s) {
      if (nest_.transposed[s]) read = std::max(read, std::abs(column_strides_[s]));
      if (code_.slots[s].kind == SlotKind::kStore)
        written = std::max(written, std::abs(row_strides_[s]));
    }
    down_first_ = read > written;
  }

  Pointers pointers_of(std::byte* const* ptrs) const {
    const size_t given = static_cast<size_t>(code_.inputs + code_.outputs);
    Pointers p(code_.slots.size());
    for (size_t s = 0; s < code_.slots.size(); ++s)
      p[s] = s < given ? ptrs[s] : nullptr;  // indices start at 0
    return p;
  }

  void advance(Pointers& p, size_t dim, int64_t by) const {
    if (by == 0) return;
    for (size_t s = 0; s < code_.slots.size(); ++s) move(p[s], by * nest_.strides[s][dim]);
  }
  // Index slots carry numbers in place of addresses.
  static void move(std::byte*& p, int64_t by) {
    p = reinterpret_cast<std::byte*>(reinterpret_cast<intptr_t>(p) + by);
  }

  void call(Pointers p, int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    advance(p, nest_.sizes.size() - 2, row);
    advance(p, nest_.sizes.size() - 1, column);
    const bool streaming = stream_fn_ && streams(p);
    (streaming ? stream_fn_ : fn_)(p.data(), row_strides_.data(), column_strides_.data(),
                                   code_.params.data(), rows, columns);
    if (streaming) std::atomic_thread_fence(std::memory_order_seq_cst);
  }

  // Reductions. The space is cut, by its shape alone, into groups along one summed dim and strips
  // along one kept dim. A thread takes whole (group, strip) items; each adds into its group's
  // partial results, and the groups are added in order at the end. So the sums do not depend on the
  // number of threads.
  void plan_partials() {
    const size_t n = nest_.sizes.size();
    const bool down = !nest_.reduced.back();
    sum_dim_ = keep_dim_ = n;
    for (size_t d = 0; d < n; ++d) {
      size_t& pick = nest_.reduced[d] ? sum_dim_ : keep_dim_;
      if (pick == n || nest_.sizes[d] > nest_.sizes[pick]) pick = d;
    }
    if (down) {
      // Strips are of columns, so that a strip's sums stay in the first-level cache.
      keep_dim_ = n - 1;
      strip_ = std::min<int64_t>(nest_.columns(), 4096);
      if (nest_.reduced[n - 2]) sum_dim_ = n - 2;
    } else if (keep_dim_ < n) {
      strip_ = ceil_div(nest_.sizes[keep_dim_], 16);
    }
    strips_ = keep_dim_ < n ? std::max<int64_t>(1, ceil_div(nest_.sizes[keep_dim_], strip_)) : 1;
    if (sum_dim_ < n && nest_.sizes[sum_dim_] > 0) plan_groups(down);

    int64_t at = 0;
    for (int s = code_.inputs; s < code_.inputs + code_.outputs; ++s) {
      partial_.push_back(at);
      if (code_.slots[s].kind != SlotKind::kReduce) continue;
      at += ceil_div(groups_ * nest_.kept * size_of(code_.slots[s].dtype), 64) * 64;
    }
    scratch_ = at;
  }

  void plan_groups(bool down) {
    const int64_t size = nest_.sizes[sum_dim_];
    const int64_t total = outer_ * inner_, per_index = std::max<int64_t>(1, total / size);
    // Enough items for the threads where there is work for them ...
    int64_t groups = strips_ >= 8 ? 1 : ceil_div(16, strips_);
    groups = std::min(groups, std::max<int64_t>(1, total * code_.cost / 32768));
    // ... and short enough sums: 512 additions one after another down a column, 64 Ki elements
    // along a row.
    groups = std::max(groups, down ? ceil_div(size, 512)
                                   : ceil_div(total / std::max<int64_t>(1, nest_.kept), 65536));
    groups = std::min(groups,
                      std::max<int64_t>(1, (int64_t{4} << 20) / nest_.kept));  // 16 MB of partials
    int64_t grain = sum_dim_ + 1 == nest_.sizes.size() ? kColumnGrain : 1;
    group_ = ceil_div(ceil_div(size, groups), grain) * grain;
    if (group_ * per_index < 1024) group_ = std::min(size, ceil_div(1024, per_index));
    groups_ = ceil_div(size, group_);
  }

  void run_reductions(const RunCtx& ctx, std::byte* const* ptrs) const {
    Pointers p = pointers_of(ptrs);
    for (int k = 0; k < code_.outputs; ++k) {
      const int s = code_.inputs + k;
      if (code_.slots[s].kind != SlotKind::kReduce) continue;
      p[s] = ctx.scratch + partial_[k];
      auto [b, e] = thread_range(ctx, groups_ * nest_.kept, 16);
      fill(code_.slots[s], p[s], b, e);
    }
    ctx.barrier();
    const int64_t items = groups_ * strips_;
    auto [first, last] = thread_range(ctx, items);
    for (int64_t item = first; item < last; ++item) run_item(p, item / strips_, item % strips_);
    ctx.barrier();
    for (int k = 0; k < code_.outputs; ++k)
      if (code_.slots[code_.inputs + k].kind == SlotKind::kReduce)
        finish(ctx, code_.inputs + k, outputs_[k], p[code_.inputs + k], ptrs[code_.inputs + k]);
  }

  void run_item(Pointers p, int64_t group, int64_t strip) const {
    const size_t n = nest_.sizes.size();
    Box box{};
    std::copy(nest_.sizes.begin(), nest_.sizes.end(), box.end);
    auto cut = [&](size_t d, int64_t width, int64_t index) {
      if (d == n) return;
      box.begin[d] = index * width;
      box.end[d] = std::min(nest_.sizes[d], box.begin[d] + width);
    };
    cut(sum_dim_, group_, group);
    cut(keep_dim_, strip_, strip);
    for (int s = code_.inputs; s < code_.inputs + code_.outputs; ++s)
      if (code_.slots[s].kind == SlotKind::kReduce)
        p[s] += group * nest_.kept * size_of(code_.slots[s].dtype);
    walk(p, box, 0);
  }

  void walk(const Pointers& p, const Box& box, size_t dim) const {
    const size_t n = nest_.sizes.size();
    if (dim + 2 == n) {
      // Along a row, sums are folded every so often: short chains of additions are accurate ones.
      const int64_t step = nest_.reduced.back() ? 4096 : box.end[n - 1] - box.begin[n - 1];
      for (int64_t c = box.begin[n - 1]; c < box.end[n - 1]; c += step)
        call(p, box.begin[n - 2], box.end[n - 2] - box.begin[n - 2], c,
             std::min(step, box.end[n - 1] - c));
      return;
    }
    for (int64_t k = box.begin[dim]; k < box.end[dim]; ++k) {
      Pointers q = p;
      advance(q, dim, k);
      walk(q, box, dim + 1);
    }
  }

  template <typename T>
  static void fill_typed(std::byte* p, int64_t b, int64_t e, T value) {
    std::fill(reinterpret_cast<T*>(p) + b, reinterpret_cast<T*>(p) + e, value);
  }

  template <typename T>
  static T identity(Op reduce) {
    using Limits = std::numeric_limits<T>;
    if (reduce == Op::Sum) return 0;
    if (reduce == Op::Amax) return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    return Limits::has_infinity ? Limits::infinity() : Limits::max();
  }

  static void fill(const Slot& s, std::byte* p, int64_t b, int64_t e) {
    if (s.dtype == DType::F32) return fill_typed(p, b, e, identity<float>(s.reduce));
    if (s.dtype == DType::F64) return fill_typed(p, b, e, identity<double>(s.reduce));
    fill_typed(p, b, e, identity<int64_t>(s.reduce));
  }

  // Adds the groups of results [b, e) into the first group.
  template <typename T>
  void add_groups(const Slot& s, std::byte* partials, int64_t b, int64_t e) const {
    T* into = reinterpret_cast<T*>(partials);
    for (int64_t g = 1; g < groups_; ++g) {
      const T* from = into + g * nest_.kept;
      if (s.reduce == Op::Sum)
        for (int64_t k = b; k < e; ++k) into[k] += from[k];
      else if (s.reduce == Op::Amax)
        for (int64_t k = b; k < e; ++k)
          into[k] = from[k] > into[k] || from[k] != from[k] ? from[k] : into[k];
      else
        for (int64_t k = b; k < e; ++k)
          into[k] = from[k] < into[k] || from[k] != from[k] ? from[k] : into[k];
    }
  }

  void finish(const RunCtx& ctx, int slot, const TensorRef& out, std::byte* partials,
              std::byte* to) const {
    const Slot& s = code_.slots[slot];
    auto [b, e] = thread_range(ctx, nest_.kept, 256);
    if (b >= e) return;
    if (s.dtype == DType::F32)
      add_groups<float>(s, partials, b, e);
    else if (s.dtype == DType::F64)
      add_groups<double>(s, partials, b, e);
    else
      add_groups<int64_t>(s, partials, b, e);
    // Results lie in loop order; the output may lie otherwise.
    const int64_t unit = size_of(s.dtype);
    const Dims& steps = nest_.kept_strides[slot];
    const Dims& sizes = nest_.kept_sizes;
    if ((steps.empty() || (steps.size() == 1 && steps[0] == 1)) && out.dtype == s.dtype) {
      std::copy(partials + b * unit, partials + e * unit, to + b * unit);
      return;
    }
    for (int64_t k = b; k < e; ++k) {
      int64_t rest = k, offset = 0;
      for (size_t d = sizes.size(); d-- > 0;) {
        offset += rest % sizes[d] * steps[d];
        rest /= sizes[d];
      }
      store_scalar(out.dtype, to + offset * size_of(out.dtype),
                   load_scalar(s.dtype, partials + k * unit));
    }
  }

  TypedCode code_;
  std::vector<TensorRef> outputs_;
  LoopNest nest_;
  std::vector<int64_t> row_strides_, column_strides_;
  LoopFn fn_ = nullptr, stream_fn_ = nullptr;
  std::vector<std::string> keys_;  // of both
  bool down_first_ = false;        // tiled loops: rows before columns

  size_t sum_dim_ = 0, keep_dim_ = 0;
  int64_t group_ = 1, groups_ = 1, strip_ = 1, strips_ = 1;
  std::vector<int64_t> partial_;  // per output: where its partials begin in the scratch memory
  int64_t scratch_ = 0;
};

}  // namespace

std::unique_ptr<Region> make_compiled_region(TypedCode code, const std::vector<TensorRef>& outputs,
                                             const RegionOptions& options) {
  return std::make_unique<CompiledRegion>(std::move(code), outputs, options);
}

}  // namespace tessera::codegen

#endif  // TESSERA_HAVE_LLVM
