// SPDX-License-Identifier: Apache-2.0
#ifdef TESSERA_HAVE_LLVM

#include "codegen/vector_internal.h"

#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Module.h>

#include "codegen/jit.h"

namespace tessera::codegen {

Vector polynomial(const Vector& x, std::initializer_list<double> c) {
  auto it = c.end();
  Vector r = like(x, *--it);
  while (it != c.begin()) r = fma(r, x, like(x, *--it));
  return r;
}

Vector as_bits(const Vector& x) {
  DType t = x.type == DType::F64 ? DType::I64 : DType::I32;
  return {x.e, x.e->ir.CreateBitCast(x.v, x.e->vector_type(t)), t};
}
Vector as_float(const Vector& x) {
  DType t = x.type == DType::I64 ? DType::F64 : DType::F32;
  return {x.e, x.e->ir.CreateBitCast(x.v, x.e->vector_type(t)), t};
}
Vector shift_left(const Vector& x, int n) {
  return {x.e, x.e->ir.CreateShl(x.v, like(x, n).v), x.type};
}
Vector shift_right(const Vector& x, int n) {
  return {x.e, x.e->ir.CreateLShr(x.v, like(x, n).v), x.type};
}
Vector shift_right_signed(const Vector& x, int n) {
  return {x.e, x.e->ir.CreateAShr(x.v, like(x, n).v), x.type};
}

Vector clamp(const Vector& x, double low, double high) {
  // Both comparisons are false for NaN.
  Vector y = select(x < like(x, low), like(x, low), x);
  return select(y > like(y, high), like(y, high), y);
}

Vector scale(const Vector& x, const Vector& n) {
  auto& ir = x.e->ir;
  if (x.e->avx512) {
    llvm::Value* r = ir.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_scalef_ps_512, {},
                                        {x.v, n.v, x.v, ir.getInt16(0xffff), ir.getInt32(4)});
    return {x.e, r, DType::F32};
  }
  Vector whole = convert(select(n == n, n, like(n, 0)), DType::I32);
  Vector half = shift_right_signed(whole, 1);
  Vector rest = whole - half;
  Vector p = as_float(shift_left(half + like(half, 127), 23));
  Vector q = as_float(shift_left(rest + like(rest, 127), 23));
  return x * p * q;
}

Vector through_memory(const Vector& a, const Vector* b, LaneCall f) {
  auto& ir = a.e->ir;
  llvm::Type* type = a.v->getType();
  llvm::Function* fn = ir.GetInsertBlock()->getParent();
  llvm::IRBuilder<> top(&fn->getEntryBlock(), fn->getEntryBlock().begin());
  auto slot = [&](const Vector& x) {
    auto* p = top.CreateAlloca(type);
    p->setAlignment(llvm::Align(64));
    ir.CreateAlignedStore(x.v, p, llvm::Align(64));
    return p;
  };
  llvm::Value* pa = slot(a);
  llvm::Value* pb = b ? slot(*b) : pa;
  llvm::PointerType* ptr = ir.getPtrTy();
  auto* signature = llvm::FunctionType::get(ir.getVoidTy(), {ptr, ptr}, false);
  const std::string callee = symbol_of(reinterpret_cast<const void*>(f));
  ir.CreateCall(fn->getParent()->getOrInsertFunction(callee, signature), {pa, pb});
  return {a.e, ir.CreateAlignedLoad(type, pa, llvm::Align(64)), a.type};
}

static llvm::Value* any_lane(const Vector& mask) {
  auto& ir = mask.e->ir;
  llvm::Value* bits = ir.CreateBitCast(mask.v, ir.getIntNTy(kLanes));
  return ir.CreateICmpNE(bits, llvm::ConstantInt::get(bits->getType(), 0));
}

void when_any(const Vector& mask, const std::function<void()>& body) {
  auto& ir = mask.e->ir;
  llvm::Function* fn = ir.GetInsertBlock()->getParent();
  auto* then = llvm::BasicBlock::Create(ir.getContext(), "rare", fn);
  auto* after = llvm::BasicBlock::Create(ir.getContext(), "usual", fn);
  ir.CreateCondBr(any_lane(mask), then, after,
                  llvm::MDBuilder(ir.getContext()).createBranchWeights(1, 2000));
  ir.SetInsertPoint(then);
  body();
  ir.CreateBr(after);
  ir.SetInsertPoint(after);
}

Vector unless(const Vector& rare, const Vector& fast, const Vector& a, const Vector* b,
              LaneCall slow) {
  auto& ir = rare.e->ir;
  llvm::BasicBlock* from = ir.GetInsertBlock();
  llvm::BasicBlock* rare_end = nullptr;
  llvm::Value* mended = nullptr;
  when_any(rare, [&] {
    mended = select(rare, through_memory(a, b, slow), fast).v;
    rare_end = ir.GetInsertBlock();
  });
  auto* result = ir.CreatePHI(fast.v->getType(), 2);
  result->addIncoming(fast.v, from);
  result->addIncoming(mended, rare_end);
  return {fast.e, result, fast.type};
}

}  // namespace tessera::codegen

#endif  // TESSERA_HAVE_LLVM
