// SPDX-License-Identifier: Apache-2.0
// Types, conversions and plain arithmetic of the compiler's vector.
#ifdef TESSERA_HAVE_LLVM

#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsX86.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "codegen/row_formulas.h"
#include "codegen/vector_math.h"

namespace tessera::codegen {
namespace {

using llvm::Intrinsic::ID;

Vector make(const Vector& x, llvm::Value* v) {
  return {x.e, v, x.type};
}
Vector mask(const Vector& x, llvm::Value* v) {
  return {x.e, v, DType::Bool};
}
bool floating(const Vector& x) {
  return is_float(x.type);
}
bool is_signed(DType t) {
  return t != DType::U8 && t != DType::Bool;
}

Vector unary(ID id, const Vector& a) {
  return make(a, a.e->ir.CreateUnaryIntrinsic(id, a.v));
}
Vector binary(ID id, const Vector& a, const Vector& b) {
  return make(a, a.e->ir.CreateBinaryIntrinsic(id, a.v, b.v));
}

llvm::Value* bits_of(const Vector& x) {
  llvm::Type* ints = llvm::FixedVectorType::get(x.e->ir.getInt32Ty(), kLanes);
  return x.e->ir.CreateBitCast(x.v, ints);
}

llvm::Constant* splat(Emitter& e, uint32_t v) {
  return llvm::ConstantVector::getSplat(llvm::ElementCount::getFixed(kLanes), e.ir.getInt32(v));
}

// f32 lanes rounded to nearest even as bf16, as 16-bit integers; NaN stays NaN.
llvm::Value* bf16_bits(const Vector& x) {
  auto& ir = x.e->ir;
  auto* shorts = llvm::FixedVectorType::get(ir.getInt16Ty(), kLanes);
  if (x.e->bf16) {
    llvm::Value* half =
        ir.CreateIntrinsic(llvm::Intrinsic::x86_avx512bf16_cvtneps2bf16_512, {}, {x.v});
    return ir.CreateBitCast(half, shorts);
  }
  llvm::Value* u = bits_of(x);
  llvm::Value* odd = ir.CreateAnd(ir.CreateLShr(u, splat(*x.e, 16)), splat(*x.e, 1));
  llvm::Value* rounded = ir.CreateAdd(ir.CreateAdd(u, splat(*x.e, 0x7fff)), odd);
  llvm::Value* nan = ir.CreateOr(u, splat(*x.e, 0x400000));
  llvm::Value* bits = ir.CreateSelect(ir.CreateFCmpUNO(x.v, x.v), nan, rounded);
  return ir.CreateTrunc(ir.CreateLShr(bits, splat(*x.e, 16)), shorts);
}

}  // namespace

llvm::Type* Emitter::lane_type(DType t) const {
  switch (t) {
    case DType::F32:
      return ir.getFloatTy();
    case DType::F64:
      return ir.getDoubleTy();
    case DType::I64:
      return ir.getInt64Ty();
    case DType::I32:
      return ir.getInt32Ty();
    case DType::I16:
      return ir.getInt16Ty();
    case DType::I8:
    case DType::U8:
      return ir.getInt8Ty();
    case DType::Bool:
      return ir.getInt1Ty();
    default:
      return ir.getIntNTy(static_cast<unsigned>(size_of(t)) * 8);  // opaque: copied, no more
  }
}

llvm::FixedVectorType* Emitter::vector_type(DType t) const {
  return llvm::FixedVectorType::get(lane_type(t), kLanes);
}

llvm::Type* Emitter::memory_type(DType t) const {
  if (t == DType::F16 || t == DType::BF16) return ir.getInt16Ty();
  if (t == DType::Bool) return ir.getInt8Ty();
  return lane_type(t);
}

Vector constant(Emitter& e, DType type, double value) {
  if (!is_float(type)) return constant_int(e, type, static_cast<int64_t>(value));
  llvm::Constant* lane = llvm::ConstantFP::get(e.lane_type(type), value);
  return {&e, llvm::ConstantVector::getSplat(llvm::ElementCount::getFixed(kLanes), lane), type};
}

Vector constant_int(Emitter& e, DType type, int64_t value) {
  if (is_float(type)) return constant(e, type, static_cast<double>(value));
  if (type == DType::Bool) value = value != 0;
  llvm::Constant* lane =
      llvm::ConstantInt::get(e.lane_type(type), static_cast<uint64_t>(value), true);
  return {&e, llvm::ConstantVector::getSplat(llvm::ElementCount::getFixed(kLanes), lane), type};
}

Vector from_memory(Emitter& e, llvm::Value* raw, DType t) {
  auto& ir = e.ir;
  auto with = [&](llvm::Type* lane) { return llvm::FixedVectorType::get(lane, kLanes); };
  switch (t) {
    case DType::F16: {
      llvm::Value* half = ir.CreateBitCast(raw, with(ir.getHalfTy()));
      return {&e, ir.CreateFPExt(half, with(ir.getFloatTy())), DType::F32};
    }
    case DType::BF16: {
      llvm::Value* wide = ir.CreateShl(ir.CreateZExt(raw, with(ir.getInt32Ty())), splat(e, 16));
      return {&e, ir.CreateBitCast(wide, with(ir.getFloatTy())), DType::F32};
    }
    case DType::Bool:
      return {&e, ir.CreateICmpNE(raw, llvm::Constant::getNullValue(raw->getType())), DType::Bool};
    default:
      return {&e, raw, t};
  }
}

llvm::Value* to_memory(const Vector& x, DType t) {
  auto& ir = x.e->ir;
  auto with = [&](llvm::Type* lane) { return llvm::FixedVectorType::get(lane, kLanes); };
  switch (t) {
    case DType::F16:
      return ir.CreateBitCast(ir.CreateFPTrunc(x.v, with(ir.getHalfTy())), with(ir.getInt16Ty()));
    case DType::BF16:
      return bf16_bits(x);
    case DType::Bool:
      return ir.CreateZExt(x.v, with(ir.getInt8Ty()));
    default:
      return x.v;
  }
}

Vector convert(const Vector& x, DType t) {
  auto& ir = x.e->ir;
  if (t == DType::F16 || t == DType::BF16) {
    Vector wide = convert(x, DType::F32);
    return from_memory(*x.e, to_memory(wide, t), t);
  }
  if (x.type == t) return x;
  llvm::Type* to = x.e->vector_type(t);
  if (t == DType::Bool) return truth(x);
  if (floating(x) && is_float(t)) return {x.e, ir.CreateFPCast(x.v, to), t};
  if (is_float(t))
    return {x.e, is_signed(x.type) ? ir.CreateSIToFP(x.v, to) : ir.CreateUIToFP(x.v, to), t};
  if (floating(x)) {
    // Through a wide integer, so that small types wrap as they do in C on this processor.
    DType wide = t == DType::I64 ? DType::I64 : DType::I32;
    return convert({x.e, ir.CreateFPToSI(x.v, x.e->vector_type(wide)), wide}, t);
  }
  return {x.e, ir.CreateIntCast(x.v, to, is_signed(x.type)), t};
}

Vector operator+(const Vector& a, const Vector& b) {
  auto& ir = a.e->ir;
  if (a.type == DType::Bool) return make(a, ir.CreateOr(a.v, b.v));
  return make(a, floating(a) ? ir.CreateFAdd(a.v, b.v) : ir.CreateAdd(a.v, b.v));
}
Vector operator-(const Vector& a, const Vector& b) {
  auto& ir = a.e->ir;
  if (a.type == DType::Bool) return make(a, ir.CreateXor(a.v, b.v));
  return make(a, floating(a) ? ir.CreateFSub(a.v, b.v) : ir.CreateSub(a.v, b.v));
}
Vector operator*(const Vector& a, const Vector& b) {
  auto& ir = a.e->ir;
  if (a.type == DType::Bool) return make(a, ir.CreateAnd(a.v, b.v));
  return make(a, floating(a) ? ir.CreateFMul(a.v, b.v) : ir.CreateMul(a.v, b.v));
}
Vector operator/(const Vector& a, const Vector& b) {
  return floating(a) ? make(a, a.e->ir.CreateFDiv(a.v, b.v)) : trunc_div(a, b);
}
Vector operator-(const Vector& a) {
  auto& ir = a.e->ir;
  if (a.type == DType::Bool) return a;
  return make(a, floating(a) ? ir.CreateFNeg(a.v) : ir.CreateNeg(a.v));
}

namespace {

Vector compare(const Vector& a, const Vector& b, llvm::CmpInst::Predicate f,
               llvm::CmpInst::Predicate s, llvm::CmpInst::Predicate u) {
  auto& ir = a.e->ir;
  if (floating(a)) return mask(a, ir.CreateFCmp(f, a.v, b.v));
  return mask(a, ir.CreateICmp(is_signed(a.type) ? s : u, a.v, b.v));
}

}  // namespace

using P = llvm::CmpInst;
Vector operator==(const Vector& a, const Vector& b) {
  return compare(a, b, P::FCMP_OEQ, P::ICMP_EQ, P::ICMP_EQ);
}
Vector operator!=(const Vector& a, const Vector& b) {
  return compare(a, b, P::FCMP_UNE, P::ICMP_NE, P::ICMP_NE);
}
Vector operator<(const Vector& a, const Vector& b) {
  return compare(a, b, P::FCMP_OLT, P::ICMP_SLT, P::ICMP_ULT);
}
Vector operator<=(const Vector& a, const Vector& b) {
  return compare(a, b, P::FCMP_OLE, P::ICMP_SLE, P::ICMP_ULE);
}
Vector operator>(const Vector& a, const Vector& b) {
  return compare(a, b, P::FCMP_OGT, P::ICMP_SGT, P::ICMP_UGT);
}
Vector operator>=(const Vector& a, const Vector& b) {
  return compare(a, b, P::FCMP_OGE, P::ICMP_SGE, P::ICMP_UGE);
}

// Rows use these on masks and integers only; a float operand would be a wrong graph.
Vector operator&(const Vector& a, const Vector& b) {
  return make(a, a.e->ir.CreateAnd(a.v, b.v));
}
Vector operator|(const Vector& a, const Vector& b) {
  return make(a, a.e->ir.CreateOr(a.v, b.v));
}
Vector operator^(const Vector& a, const Vector& b) {
  return make(a, a.e->ir.CreateXor(a.v, b.v));
}
Vector operator~(const Vector& a) {
  return make(a, a.e->ir.CreateNot(a.v));
}

Vector truth(const Vector& a) {
  return a.type == DType::Bool ? a : a != like(a, 0);
}

Vector select(const Vector& cond, const Vector& a, const Vector& b) {
  return make(a, a.e->ir.CreateSelect(cond.v, a.v, b.v));
}

Vector abs(const Vector& a) {
  if (floating(a)) return unary(llvm::Intrinsic::fabs, a);
  return is_signed(a.type) ? select(a < like(a, 0), -a, a) : a;
}

Vector isinf(const Vector& a) {
  if (!floating(a)) return constant_int(*a.e, DType::Bool, 0);
  return abs(a) == like(a, std::numeric_limits<double>::infinity());
}
Vector isfinite(const Vector& a) {
  if (!floating(a)) return constant_int(*a.e, DType::Bool, 1);
  return abs(a) < like(a, std::numeric_limits<double>::infinity());
}

Vector sign(const Vector& a) {
  if (a.type == DType::Bool) return a;
  Vector zero = like(a, 0);
  Vector negative = is_signed(a.type) ? select(a < zero, like(a, -1), zero) : zero;
  return select(a > zero, like(a, 1), negative);
}

namespace {

bool is_number(const Vector& x) {
  auto* c = llvm::dyn_cast<llvm::Constant>(x.v);
  auto* lane = c ? llvm::dyn_cast_or_null<llvm::ConstantFP>(c->getSplatValue()) : nullptr;
  return lane && !lane->isNaN();
}

// x86 takes the second operand where one is NaN, so NaN in `b` passes by itself; that in `a` is
// picked afterwards, unless `a` is a constant.
Vector extreme(const Vector& a, const Vector& b, Vector (*before)(const Vector&, const Vector&)) {
  if (!floating(a)) return select(before(a, b), a, b);
  if (is_number(b)) return select(before(b, a), b, a);
  Vector r = select(before(a, b), a, b);
  return is_number(a) ? r : select(mask(a, a.e->ir.CreateFCmpUNO(a.v, a.v)), a, r);
}

}  // namespace

Vector max(const Vector& a, const Vector& b) {
  return extreme(a, b, [](const Vector& x, const Vector& y) { return x > y; });
}
Vector min(const Vector& a, const Vector& b) {
  return extreme(a, b, [](const Vector& x, const Vector& y) { return x < y; });
}

Vector fma(const Vector& a, const Vector& b, const Vector& c) {
  return make(a, a.e->ir.CreateIntrinsic(llvm::Intrinsic::fma, {a.v->getType()}, {a.v, b.v, c.v}));
}

Vector trunc_div(const Vector& a, const Vector& b) {
  if (floating(a)) return trunc(a / b);
  auto& ir = a.e->ir;
  if (a.type == DType::Bool) return a & b;
  // Division must not trap: by zero gives zero, by -1 negates (the one overflow).
  Vector zero = like(a, 0), one = like(a, 1);
  Vector unsafe = b == zero;
  if (is_signed(a.type)) unsafe = unsafe | (b == like(a, -1));
  Vector by = select(unsafe, one, b);
  Vector q = make(a, is_signed(a.type) ? ir.CreateSDiv(a.v, by.v) : ir.CreateUDiv(a.v, by.v));
  q = select(b == zero, zero, q);
  return is_signed(a.type) ? select(b == like(a, -1), -a, q) : q;
}

Vector floor_div(const Vector& a, const Vector& b) {
  if (floating(a)) return float_floor_div(a, b);
  Vector q = trunc_div(a, b);
  if (!is_signed(a.type)) return q;
  Vector zero = like(a, 0);
  Vector lower = (b != zero) & (q * b != a) & ((a < zero) ^ (b < zero));
  return select(lower, q - like(a, 1), q);
}

Vector remainder(const Vector& a, const Vector& b) {
  Vector r = fmod(a, b);
  if (!is_signed(a.type)) return r;
  Vector zero = like(a, 0);
  return select((r != zero) & ((r < zero) ^ (b < zero)), r + b, r);
}

Vector copysign(const Vector& a, const Vector& b) {
  return binary(llvm::Intrinsic::copysign, a, b);
}
Vector ceil(const Vector& a) {
  return floating(a) ? unary(llvm::Intrinsic::ceil, a) : a;
}
Vector floor(const Vector& a) {
  return floating(a) ? unary(llvm::Intrinsic::floor, a) : a;
}
Vector rint(const Vector& a) {
  return floating(a) ? unary(llvm::Intrinsic::nearbyint, a) : a;
}
Vector trunc(const Vector& a) {
  return floating(a) ? unary(llvm::Intrinsic::trunc, a) : a;
}
Vector sqrt(const Vector& a) {
  return unary(llvm::Intrinsic::sqrt, a);
}

Vector combine(Combine how, const Vector& a, const Vector& b) {
  return how == Combine::kSum ? a + b : how == Combine::kMax ? max(a, b) : min(a, b);
}

llvm::Value* across_lanes(Combine how, const Vector& a) {
  Vector x = a;
  for (int half = kLanes / 2; half > 0; half /= 2) {
    llvm::SmallVector<int, kLanes> from(kLanes, -1);
    for (int k = 0; k < half; ++k) from[k] = k + half;
    x = combine(how, x, make(x, x.e->ir.CreateShuffleVector(x.v, from)));
  }
  return x.e->ir.CreateExtractElement(x.v, uint64_t{0});
}

}  // namespace tessera::codegen

#endif  // TESSERA_HAVE_LLVM
