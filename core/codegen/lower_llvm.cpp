// SPDX-License-Identifier: Apache-2.0
// Emits the two loops of a region around its body. Values that do not change along the inner (or
// any) loop are computed outside it; the rest is sixteen lanes at a time, with a masked tail.
#ifdef TESSERA_HAVE_LLVM

#include "codegen/lower_llvm.h"

#include <llvm/IR/Module.h>

#include <bit>
#include <cmath>
#include <unordered_map>

#include "codegen/row_eval.h"
#include "codegen/vector_internal.h"
#include "kernels/transpose.h"

namespace tessera::codegen {

std::string loop_key(const LoopSpec& spec) {
  const TypedCode& c = *spec.code;
  std::string key = fmt::format("{}{}{}{}{}/{};", spec.inner_reduced, spec.outer_reduced,
                                spec.tiled, spec.streams, c.inputs, c.failure_param);
  for (size_t k = 0; k < c.slots.size(); ++k) {
    const Slot& s = c.slots[k];
    const Walk& w = spec.walks[k];
    key += fmt::format("{},{},{},{},{}{}{};", static_cast<int>(s.kind), name_of(s.dtype), s.value,
                       static_cast<int>(s.reduce), static_cast<int>(w.inner), w.outer_moves,
                       w.transposed);
  }
  for (const Instr& in : c.instrs) {
    key += fmt::format("{}:{}:{}:{}(", op_text(in.op), name_of(in.result), in.index_slot, in.param);
    for (const CodeArg& a : in.args)
      key += fmt::format("{}/{}/{}/{:x}/{},", a.value, static_cast<int>(a.literal.kind),
                         a.literal.i, std::bit_cast<uint64_t>(a.literal.f), name_of(a.as));
    key += ")";
  }
  return key;
}

namespace {

using llvm::Value;

Combine combine_of(Op op) {
  return op == Op::Sum ? Combine::kSum : op == Op::Amax ? Combine::kMax : Combine::kMin;
}

class Lowering {
 public:
  Lowering(const LoopSpec& spec, llvm::Module& module, const std::string& name,
           const JitTarget& target)
      : spec_(spec),
        code_(*spec.code),
        module_(module),
        ir_(module.getContext()),
        e_{ir_, target.avx512, target.bf16} {
    llvm::Type* ptr = ir_.getPtrTy();
    llvm::Type* i64 = ir_.getInt64Ty();
    auto* type = llvm::FunctionType::get(ir_.getVoidTy(), {ptr, ptr, ptr, ptr, i64, i64}, false);
    fn_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, name, module);
  }

  void emit() {
    ir_.SetInsertPoint(llvm::BasicBlock::Create(module_.getContext(), "entry", fn_));
    find_levels();
    rows_ = fn_->getArg(4);
    columns_ = fn_->getArg(5);
    const size_t slots = code_.slots.size();
    for (size_t k = 0; k < slots; ++k) {
      base_.push_back(element(0, ir_.getPtrTy(), k));
      row_step_.push_back(spec_.walks[k].outer_moves ? element(1, ir_.getInt64Ty(), k) : nullptr);
      column_step_.push_back(spec_.walks[k].inner >= Step::kOther ? element(2, ir_.getInt64Ty(), k)
                                                                  : nullptr);
    }
    Env top;
    top.values.resize(code_.types.size());
    top.row = base_;
    prepare_generators();
    fill_level(top, 0);
    if (spec_.tiled)
      tiled_loops(top);
    else if (code_.reduces && !spec_.inner_reduced)
      column_sums(top);
    else
      plain_loops(top);
    ir_.CreateRetVoid();
  }

 private:
  // What is known at one point of the loop nest: values computed so far, where each slot's current
  // row begins.
  struct Env {
    std::vector<Vector> values;
    std::vector<Value*> row;
    Value* column = nullptr;    // index of the first lane
    Value* mask = nullptr;      // null: all lanes
    std::vector<Value*> tiles;  // per slot: this row of the transposed tile
  };

  Value* element(int argument, llvm::Type* type, int64_t index) {
    Value* p = ir_.CreateConstInBoundsGEP1_64(type, fn_->getArg(argument), index);
    return ir_.CreateLoad(type, p);
  }

  static int level_of(const Walk& w) {
    return w.inner != Step::kZero || w.transposed ? 2 : w.outer_moves ? 1 : 0;
  }

  void find_levels() {
    level_.assign(code_.types.size(), 0);
    used_.assign(code_.types.size(), false);
    for (int k = 0; k < code_.inputs; ++k) level_[k] = level_of(spec_.walks[k]);
    for (size_t k = 0; k < code_.instrs.size(); ++k) {
      const Instr& in = code_.instrs[k];
      int level = in.index_slot >= 0 ? level_of(spec_.walks[in.index_slot]) : 0;
      for (const CodeArg& a : in.args)
        if (a.value >= 0) level = std::max(level, level_[a.value]);
      level_[code_.inputs + k] = level;
    }
    for (int k = code_.inputs; k < code_.inputs + code_.outputs; ++k)
      used_[code_.slots[k].value] = true;
    for (size_t k = code_.instrs.size(); k-- > 0;) {
      if (!used_[code_.inputs + k]) continue;
      for (const CodeArg& a : code_.instrs[k].args)
        if (a.value >= 0) used_[a.value] = true;
    }
  }

  // Runs `body` for i = begin, begin + step, ... below `limit`; `carried` values go round the loop.
  template <typename F>
  void loop(Value* begin, Value* limit, int64_t step, std::vector<Value*>& carried, F body) {
    auto& context = module_.getContext();
    auto* from = ir_.GetInsertBlock();
    auto* block = llvm::BasicBlock::Create(context, "loop", fn_);
    auto* after = llvm::BasicBlock::Create(context, "after", fn_);
    ir_.CreateCondBr(ir_.CreateICmpSLT(begin, limit), block, after);
    ir_.SetInsertPoint(block);
    auto* i = ir_.CreatePHI(ir_.getInt64Ty(), 2);
    i->addIncoming(begin, from);
    std::vector<llvm::PHINode*> phis;
    std::vector<Value*> start = carried;
    for (Value*& v : carried) {
      phis.push_back(ir_.CreatePHI(v->getType(), 2));
      phis.back()->addIncoming(v, from);
      v = phis.back();
    }
    body(i, carried);
    Value* next = ir_.CreateAdd(i, ir_.getInt64(step));
    auto* latch = ir_.GetInsertBlock();
    ir_.CreateCondBr(ir_.CreateICmpSLT(next, limit), block, after);
    i->addIncoming(next, latch);
    for (size_t k = 0; k < phis.size(); ++k) phis[k]->addIncoming(carried[k], latch);
    ir_.SetInsertPoint(after);
    for (size_t k = 0; k < phis.size(); ++k) {
      auto* out = ir_.CreatePHI(carried[k]->getType(), 2);
      out->addIncoming(start[k], from);
      out->addIncoming(carried[k], latch);
      carried[k] = out;
    }
  }
  template <typename F>
  void loop(Value* begin, Value* limit, int64_t step, F body) {
    std::vector<Value*> none;
    loop(begin, limit, step, none, [&](Value* i, std::vector<Value*>&) { body(i); });
  }

  Value* zero() { return ir_.getInt64(0); }

  Env enter_row(const Env& top, Value* o) {
    Env env = top;
    for (size_t k = 0; k < base_.size(); ++k) {
      if (!row_step_[k]) continue;
      Value* by = ir_.CreateMul(o, row_step_[k]);
      env.row[k] = ir_.CreateGEP(ir_.getInt8Ty(), base_[k], by);
    }
    fill_level(env, 1);
    return env;
  }

  void fill_level(Env& env, int level) {
    for (size_t v = 0; v < code_.types.size(); ++v)
      if (used_[v] && level_[v] == level && !is_key(v)) get(env, static_cast<int>(v));
  }

  bool is_key(size_t v) const {
    return v < static_cast<size_t>(code_.inputs) && code_.slots[v].kind == SlotKind::kKey;
  }

  Vector get(Env& env, int v) {
    if (!env.values[v].v)
      env.values[v] =
          v < code_.inputs ? load(env, v) : compute(env, code_.instrs[v - code_.inputs]);
    return env.values[v];
  }

  Value* splat(Value* lane) { return ir_.CreateVectorSplat(kLanes, lane); }

  Value* lane_numbers(llvm::Type* type) {
    std::vector<llvm::Constant*> lanes;
    for (int k = 0; k < kLanes; ++k) lanes.push_back(llvm::ConstantInt::get(type, k));
    return llvm::ConstantVector::get(lanes);
  }

  Value* full_mask() { return llvm::Constant::getAllOnesValue(e_.vector_type(DType::Bool)); }

  // Lanes below `count`, which may be 16 or more.
  Value* tail_mask(Value* count) {
    Value* n = ir_.CreateTrunc(count, ir_.getInt32Ty());
    return ir_.CreateICmpUGT(splat(n), lane_numbers(ir_.getInt32Ty()));
  }

  llvm::Align align_of(DType t) const { return llvm::Align(size_of(t)); }

  Value* unit_address(const Env& env, int slot, DType t) {
    return ir_.CreateInBoundsGEP(e_.memory_type(t), env.row[slot], env.column);
  }
  Value* lane_addresses(const Env& env, int slot) {
    Value* lanes = ir_.CreateAdd(splat(env.column), lane_numbers(ir_.getInt64Ty()));
    return ir_.CreateGEP(ir_.getInt8Ty(), env.row[slot],
                         ir_.CreateMul(lanes, splat(column_step_[slot])));
  }

  Vector load(Env& env, int slot) {
    const Slot& s = code_.slots[slot];
    const Walk& w = spec_.walks[slot];
    llvm::Type* lane = e_.memory_type(s.dtype);
    auto* type = llvm::FixedVectorType::get(lane, kLanes);
    Value* raw = nullptr;
    if (w.transposed) {
      raw = ir_.CreateAlignedLoad(type, env.tiles[slot], llvm::Align(16));
    } else if (w.inner == Step::kZero) {
      raw = splat(ir_.CreateAlignedLoad(lane, env.row[slot], align_of(s.dtype)));
    } else if (w.inner == Step::kUnit) {
      Value* p = unit_address(env, slot, s.dtype);
      raw = env.mask
                ? static_cast<Value*>(ir_.CreateMaskedLoad(type, p, align_of(s.dtype), env.mask,
                                                           llvm::Constant::getNullValue(type)))
                : ir_.CreateAlignedLoad(type, p, align_of(s.dtype));
    } else if (w.inner == Step::kTwo && !env.mask) {
      raw = every_second(env, slot, type);
    } else {
      raw = ir_.CreateMaskedGather(type, lane_addresses(env, slot), align_of(s.dtype),
                                   env.mask ? env.mask : full_mask(),
                                   llvm::Constant::getNullValue(type));
    }
    return from_memory(e_, raw, s.dtype);
  }

  // Two loads that overlap in one element, so that nothing past the last one is read.
  Value* every_second(const Env& env, int slot, llvm::FixedVectorType* type) {
    const DType t = code_.slots[slot].dtype;
    llvm::Type* lane = e_.memory_type(t);
    Value* first =
        ir_.CreateInBoundsGEP(lane, env.row[slot], ir_.CreateMul(env.column, ir_.getInt64(2)));
    Value* second = ir_.CreateConstInBoundsGEP1_64(lane, first, kLanes - 1);
    llvm::SmallVector<int, kLanes> from;
    for (int k = 0; k < kLanes; ++k) from.push_back(k < kLanes / 2 ? 2 * k : 2 * k + 1);
    return ir_.CreateShuffleVector(ir_.CreateAlignedLoad(type, first, align_of(t)),
                                   ir_.CreateAlignedLoad(type, second, align_of(t)), from);
  }

  void store(Env& env, int slot) {
    const Slot& s = code_.slots[slot];
    Value* raw = to_memory(convert(get(env, s.value), compute_type(s.dtype)), s.dtype);
    if (spec_.walks[slot].inner >= Step::kOther) {
      ir_.CreateMaskedScatter(raw, lane_addresses(env, slot), align_of(s.dtype),
                              env.mask ? env.mask : full_mask());
      return;
    }
    // A walk of stride zero only exists for a single column, which the mask then selects.
    Value* p = unit_address(env, slot, s.dtype);
    if (env.mask) {
      ir_.CreateMaskedStore(raw, p, align_of(s.dtype), env.mask);
    } else if (spec_.streams) {
      auto* one = llvm::ConstantAsMetadata::get(ir_.getInt32(1));
      ir_.CreateAlignedStore(raw, p, llvm::Align(std::min<int64_t>(64, kLanes * size_of(s.dtype))))
          ->setMetadata(llvm::LLVMContext::MD_nontemporal,
                        llvm::MDNode::get(module_.getContext(), one));
    } else {
      ir_.CreateAlignedStore(raw, p, align_of(s.dtype));
    }
  }

  // A result may take the memory of any operand that dies here, so all operands are read before the
  // first store.
  void store_all(Env& env, const std::vector<int>& stores) {
    for (int v = 0; v < code_.inputs; ++v)
      if (used_[v] && !is_key(static_cast<size_t>(v))) get(env, v);
    for (int s : stores) store(env, s);
  }

  // The index of every lane in a slot, as `type`.
  Vector index_lanes(const Env& env, int slot, DType type) {
    llvm::Type* lane = e_.lane_type(type);
    auto narrow = [&](Value* v) { return ir_.CreateIntCast(v, lane, true); };
    Value* first = ir_.CreatePtrToInt(env.row[slot], ir_.getInt64Ty());
    const Walk& w = spec_.walks[slot];
    if (w.inner == Step::kZero) return {&e_, splat(narrow(first)), type};
    Value* step = w.inner == Step::kUnit ? ir_.getInt64(1) : column_step_[slot];
    first = ir_.CreateAdd(first, ir_.CreateMul(env.column, step));
    Value* lanes = lane_numbers(lane);
    if (w.inner >= Step::kOther) lanes = ir_.CreateMul(lanes, splat(narrow(step)));
    return {&e_, ir_.CreateAdd(splat(narrow(first)), lanes), type};
  }

  Vector param(int index, DType type) {
    return {&e_, splat(element(3, e_.lane_type(type), index)), type};
  }

  Vector compute(Env& env, const Instr& in) {
    if (in.op == Op::Uniform) {
      VectorKey key{params_.at(in.param), params_.at(-in.param - 1)};
      return convert(random_uniform(key, index_lanes(env, in.index_slot, DType::I32)), in.result);
    }
    if (in.op == Op::Iota) {
      Vector start = params_.at(in.param), step = params_.at(in.param + 1);
      Vector at = convert(index_lanes(env, in.index_slot, DType::I64), start.type);
      return convert(start + step * at, in.result);
    }
    Vector x[6];
    for (size_t k = 0; k < in.args.size(); ++k) {
      const CodeArg& a = in.args[k];
      DType as = compute_type(a.as);
      if (a.value >= 0)
        x[k] = convert(get(env, a.value), as);
      else if (a.literal.kind == Arg::Kind::kFloat)
        x[k] = as == DType::Bool ? constant_int(e_, as, a.literal.f != 0)
                                 : constant(e_, as, a.literal.f);
      else
        x[k] = constant_int(e_, as, a.literal.i);
    }
    if (divides_integers(in)) report_zeros(env, x[1]);
    Vector r = eval_row(in.op, x, static_cast<int>(in.args.size()));
    return keeps_precision(in) ? convert(r, compute_type(in.result)) : convert(r, in.result);
  }

  // Whether the result needs no rounding to a half type: the op only picks among its operands, or
  // changes a sign, and all of them have that type.
  bool keeps_precision(const Instr& in) const {
    if (in.result != DType::F16 && in.result != DType::BF16) return false;
    if (!has_fact(in.op, kPicks)) return false;
    for (const CodeArg& a : in.args) {
      if (a.as == DType::Bool) continue;
      if (a.value >= 0 ? code_.types[a.value] != in.result : a.literal.number() != 0) return false;
    }
    return true;
  }

  // Sets the region's flag where an element is divided by zero; lanes beyond the tail hold zeros.
  void report_zeros(const Env& env, const Vector& divisor) {
    Vector zeros = divisor == like(divisor, 0);
    if (env.mask) zeros = zeros & Vector{&e_, env.mask, DType::Bool};
    when_any(zeros, [&] {
      Value* flag = element(3, ir_.getPtrTy(), code_.failure_param);
      auto* store = ir_.CreateAlignedStore(ir_.getInt32(1), flag, llvm::Align(4));
      store->setAtomic(llvm::AtomicOrdering::Monotonic);
    });
  }

  // What generators need besides the index, before any loop.
  void prepare_generators() {
    for (const Instr& in : code_.instrs) {
      if (in.op == Op::Uniform) {
        VectorKey key = make_key(in);
        params_[in.param] = key.a;
        params_[-in.param - 1] = key.b;  // negative names are free
      } else if (in.op == Op::Iota) {
        DType type = is_int(in.result) ? DType::I64 : DType::F64;
        for (int k = 0; k < 2; ++k) params_[in.param + k] = param(in.param + k, type);
      }
    }
  }

  VectorKey make_key(const Instr& in) {
    Value* p = base_[in.args[0].value];
    auto at = [&](int64_t k) {
      Value* q = ir_.CreateConstInBoundsGEP1_64(ir_.getInt64Ty(), p, k);
      return Vector{&e_, splat(ir_.CreateAlignedLoad(ir_.getInt64Ty(), q, llvm::Align(8))),
                    DType::I64};
    };
    return random_key(at(0), at(1), param(in.param, DType::I64));
  }

  std::vector<int> slots_of(SlotKind kind) const {
    std::vector<int> out;
    for (int k = code_.inputs; k < code_.inputs + code_.outputs; ++k)
      if (code_.slots[k].kind == kind) out.push_back(k);
    return out;
  }

  Vector identity(int slot) {
    const Slot& s = code_.slots[slot];
    if (s.reduce == Op::Sum) return constant(e_, s.dtype, 0);
    const bool top = s.reduce == Op::Amin;
    if (is_float(s.dtype)) return constant(e_, s.dtype, top ? INFINITY : -INFINITY);
    return constant_int(e_, s.dtype, top ? INT64_MAX : INT64_MIN);
  }

  // The value a reduction takes from these elements, with lanes outside the tail made harmless.
  Vector reduced_value(Env& env, int slot) {
    Vector x = convert(get(env, code_.slots[slot].value), code_.slots[slot].dtype);
    return env.mask ? select({&e_, env.mask, DType::Bool}, x, identity(slot)) : x;
  }

  int unroll() const { return code_.cost <= 6 ? 4 : code_.cost <= 20 ? 2 : 1; }

  Env at_column(const Env& row, Value* column, Value* mask) {
    Env env = row;
    env.column = column;
    env.mask = mask;
    return env;
  }

  // A row at a time; sums along the row stay in registers.
  void plain_loops(const Env& top) {
    const std::vector<int> stores = slots_of(SlotKind::kStore), sums = slots_of(SlotKind::kReduce);
    const int times = unroll();
    loop(zero(), rows_, 1, [&](Value* o) {
      Env row = enter_row(top, o);
      std::vector<Value*> acc;
      for (int u = 0; u < times; ++u)
        for (int s : sums) acc.push_back(identity(s).v);
      auto body = [&](Value* i, std::vector<Value*>& carried, int copies, bool tail) {
        for (int u = 0; u < copies; ++u) {
          Value* column = u ? ir_.CreateAdd(i, ir_.getInt64(u * kLanes)) : i;
          Env env = at_column(row, column, tail ? tail_mask(ir_.CreateSub(columns_, i)) : nullptr);
          store_all(env, stores);
          for (size_t k = 0; k < sums.size(); ++k) {
            Value*& a = carried[u * sums.size() + k];
            a = combine(combine_of(code_.slots[sums[k]].reduce),
                        {&e_, a, code_.slots[sums[k]].dtype}, reduced_value(env, sums[k]))
                    .v;
          }
        }
      };
      Value* whole = ir_.CreateAnd(columns_, ir_.getInt64(-int64_t{kLanes} * times));
      loop(zero(), whole, kLanes * times, acc,
           [&](Value* i, std::vector<Value*>& c) { body(i, c, times, false); });
      fold_copies(acc, sums, times);
      loop(whole, columns_, kLanes, acc,
           [&](Value* i, std::vector<Value*>& c) { body(i, c, 1, true); });
      for (size_t k = 0; k < sums.size(); ++k) add_to_total(row, sums[k], acc[k]);
    });
  }

  // Pairwise over the copies of the unrolled loop; leaves one accumulator per reduction.
  void fold_copies(std::vector<Value*>& acc, const std::vector<int>& sums, int times) {
    for (int width = times / 2; width > 0; width /= 2)
      for (int u = 0; u < width; ++u)
        for (size_t k = 0; k < sums.size(); ++k) {
          const Slot& s = code_.slots[sums[k]];
          Value*& a = acc[u * sums.size() + k];
          a = combine(combine_of(s.reduce), {&e_, a, s.dtype},
                      {&e_, acc[(u + width) * sums.size() + k], s.dtype})
                  .v;
        }
    acc.resize(sums.size());
  }

  void add_to_total(const Env& row, int slot, Value* lanes) {
    const Slot& s = code_.slots[slot];
    const Combine how = combine_of(s.reduce);
    llvm::Type* type = e_.lane_type(s.dtype);
    Value* sum = across_lanes(how, {&e_, lanes, s.dtype});
    Value* old = ir_.CreateAlignedLoad(type, row.row[slot], align_of(s.dtype));
    Vector total = combine(how, {&e_, splat(old), s.dtype}, {&e_, splat(sum), s.dtype});
    ir_.CreateAlignedStore(ir_.CreateExtractElement(total.v, uint64_t{0}), row.row[slot],
                           align_of(s.dtype));
  }

  // Sums down the columns: accumulators lie in memory, several rows at a time share one load and
  // store of them.
  void column_sums(const Env& top) {
    const int times = spec_.outer_reduced ? unroll() : 1;
    Value* whole = ir_.CreateAnd(rows_, ir_.getInt64(-int64_t{times}));
    loop(zero(), whole, times, [&](Value* o) { column_sum_rows(top, o, times); });
    if (times > 1) loop(whole, rows_, 1, [&](Value* o) { column_sum_rows(top, o, 1); });
  }

  void column_sum_rows(const Env& top, Value* o, int count) {
    const std::vector<int> stores = slots_of(SlotKind::kStore), sums = slots_of(SlotKind::kReduce);
    std::vector<Env> rows;
    for (int r = 0; r < count; ++r)
      rows.push_back(enter_row(top, r ? ir_.CreateAdd(o, ir_.getInt64(r)) : o));
    auto body = [&](Value* i, bool tail) {
      Value* mask = tail ? tail_mask(ir_.CreateSub(columns_, i)) : nullptr;
      std::vector<std::vector<Vector>> parts(sums.size());
      for (const Env& row : rows) {
        Env env = at_column(row, i, mask);
        store_all(env, stores);
        for (size_t k = 0; k < sums.size(); ++k) parts[k].push_back(reduced_value(env, sums[k]));
      }
      for (size_t k = 0; k < sums.size(); ++k) {
        const Slot& s = code_.slots[sums[k]];
        const Combine how = combine_of(s.reduce);
        for (size_t width = parts[k].size() / 2; width > 0; width /= 2)
          for (size_t r = 0; r < width; ++r)
            parts[k][r] = combine(how, parts[k][r], parts[k][r + width]);
        Env env = at_column(rows[0], i, mask);
        Value* p = unit_address(env, sums[k], s.dtype);
        llvm::Type* type = e_.vector_type(s.dtype);
        Value* old =
            mask ? static_cast<Value*>(ir_.CreateMaskedLoad(type, p, align_of(s.dtype), mask,
                                                            llvm::Constant::getNullValue(type)))
                 : ir_.CreateAlignedLoad(type, p, align_of(s.dtype));
        Value* sum = combine(how, {&e_, old, s.dtype}, parts[k][0]).v;
        if (mask)
          ir_.CreateMaskedStore(sum, p, align_of(s.dtype), mask);
        else
          ir_.CreateAlignedStore(sum, p, align_of(s.dtype));
      }
    };
    Value* whole = ir_.CreateAnd(columns_, ir_.getInt64(-kLanes));
    loop(zero(), whole, kLanes, [&](Value* i) { body(i, false); });
    loop(whole, columns_, kLanes, [&](Value* i) { body(i, true); });
  }

  // Tiles of 16 x 16: slots that run along the rows are transposed into a small buffer first.
  void tiled_loops(const Env& top) {
    const std::vector<int> stores = slots_of(SlotKind::kStore);
    std::vector<Value*> buffers(code_.slots.size(), nullptr);
    for (size_t k = 0; k < code_.slots.size(); ++k) {
      if (!spec_.walks[k].transposed) continue;
      auto* tile = llvm::ArrayType::get(
          llvm::FixedVectorType::get(e_.memory_type(code_.slots[k].dtype), kLanes), kLanes);
      auto* p = ir_.CreateAlloca(tile);
      p->setAlignment(llvm::Align(64));
      buffers[k] = p;
    }
    auto sixteen_or = [&](Value* n) {
      return ir_.CreateSelect(ir_.CreateICmpSLT(n, ir_.getInt64(kLanes)), n, ir_.getInt64(kLanes));
    };
    loop(zero(), rows_, kLanes, [&](Value* ob) {
      Value* rows = sixteen_or(ir_.CreateSub(rows_, ob));
      loop(zero(), columns_, kLanes, [&](Value* ib) {
        Value* columns = sixteen_or(ir_.CreateSub(columns_, ib));
        Value* mask = tail_mask(columns);
        for (size_t k = 0; k < buffers.size(); ++k) {
          if (!buffers[k]) continue;
          Value* corner =
              ir_.CreateAdd(ir_.CreateMul(ob, row_step_[k]), ir_.CreateMul(ib, column_step_[k]));
          Value* from = ir_.CreateGEP(ir_.getInt8Ty(), base_[k], corner);
          call_transpose(code_.slots[k].dtype, {from, column_step_[k], columns, rows, buffers[k]});
        }
        loop(zero(), rows, 1, [&](Value* r) {
          Env row = enter_row(top, ir_.CreateAdd(ob, r));
          row.tiles.assign(buffers.size(), nullptr);
          for (size_t k = 0; k < buffers.size(); ++k) {
            if (!buffers[k]) continue;
            auto* line = llvm::FixedVectorType::get(e_.memory_type(code_.slots[k].dtype), kLanes);
            row.tiles[k] = ir_.CreateInBoundsGEP(line, buffers[k], r);
          }
          Env env = at_column(row, ib, mask);
          store_all(env, stores);
        });
      });
    });
  }

  // kernels/transpose.h does it, so that no kernel has to compile the shuffles again.
  void call_transpose(DType t, llvm::ArrayRef<Value*> arguments) {
    llvm::Type* ptr = ir_.getPtrTy();
    llvm::Type* i64 = ir_.getInt64Ty();
    auto* type = llvm::FunctionType::get(ir_.getVoidTy(), {ptr, i64, i64, i64, ptr}, false);
    const auto callee = reinterpret_cast<const void*>(kernels::transpose_tile(size_of(t)));
    ir_.CreateCall(module_.getOrInsertFunction(symbol_of(callee), type), arguments);
  }

  const LoopSpec& spec_;
  const TypedCode& code_;
  llvm::Module& module_;
  llvm::IRBuilder<> ir_;
  Emitter e_;
  llvm::Function* fn_ = nullptr;
  Value *rows_ = nullptr, *columns_ = nullptr;
  std::vector<Value*> base_, row_step_, column_step_;
  std::vector<int> level_;
  std::vector<bool> used_;
  std::unordered_map<int, Vector> params_;
};

}  // namespace

void emit_loop(const LoopSpec& spec, llvm::Module& module, const std::string& name,
               const JitTarget& target) {
  Lowering(spec, module, name, target).emit();
}

}  // namespace tessera::codegen

#endif  // TESSERA_HAVE_LLVM
