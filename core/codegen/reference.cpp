// SPDX-License-Identifier: Apache-2.0
#include "codegen/reference.h"

#include <algorithm>
#include <bit>

#include "codegen/row_eval.h"
#include "codegen/scalar_value.h"
#include "kernels/random.h"

namespace tessera::codegen {

Scalar floor_div(const Scalar& a, const Scalar& b) {
  if (floating(a)) return float_floor_div(a, b);
  Scalar q = trunc_div(a, b);
  const bool lower = b.i != 0 && (q * b != a).i && (a.i < 0) != (b.i < 0);
  return lower ? q - of_int(a.type, 1) : q;
}

// Euclid in unsigned numbers: the absolute value of the least integer is no signed number.
int64_t greatest_divisor(int64_t a, int64_t b) {
  auto u = static_cast<uint64_t>(a), v = static_cast<uint64_t>(b);
  if (a < 0) u = 0 - u;
  if (b < 0) v = 0 - v;
  while (v != 0) {
    const uint64_t rest = u % v;
    u = v;
    v = rest;
  }
  return static_cast<int64_t>(u);
}

Scalar gcd(const Scalar& a, const Scalar& b) {
  return of_int(a.type, greatest_divisor(a.i, b.i));
}
double exponent_of(double x) {
  int e = 0;
  std::frexp(x, &e);
  return std::isfinite(x) ? e : 0;
}
double mantissa_of(double x) {
  int e = 0;
  return std::frexp(x, &e);
}
Scalar frexp_exponent(const Scalar& a) {
  return of_float(a.type, exponent_of(a.f));
}
Scalar frexp_mantissa(const Scalar& a) {
  return of_float(a.type, mantissa_of(a.f));
}
Scalar nextafter(const Scalar& a, const Scalar& b, const Scalar& units) {
  if (a.type == DType::F64) return of_float(a.type, std::nextafter(a.f, b.f));
  auto x = static_cast<float>(a.f);
  for (int k = 0; k < static_cast<int>(units.f); ++k)
    x = std::nextafter(x, static_cast<float>(b.f));
  return of_float(a.type, x);
}

uint16_t bits_of_f16(float x) {
  auto u = std::bit_cast<uint32_t>(x);
  auto sign = static_cast<uint16_t>(u >> 16 & 0x8000);
  u &= 0x7fffffff;
  if (u > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (u >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to 65536 or more
  if (u < 0x38800000) {
    // Below the smallest normal f16: a multiple of 2^-24, rounded to even by the addition of 0.5.
    float shifted = std::bit_cast<float>(u) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  u += 0xc8000fff + (u >> 13 & 1);
  return static_cast<uint16_t>(sign | u >> 13);
}

float f16_of_bits(uint16_t bits) {
  uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 0) {
    float f = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -f : f;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

float round_to_f16(float x) {
  return f16_of_bits(bits_of_f16(x));
}

float round_to_bf16(float x) {
  auto u = std::bit_cast<uint32_t>(x);
  if (x != x) return std::bit_cast<float>((u | 0x400000) & 0xffff0000);
  return std::bit_cast<float>((u + 0x7fff + (u >> 16 & 1)) & 0xffff0000);
}

namespace {

template <typename T>
T read(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <typename T>
void write(std::byte* p, T v) {
  std::memcpy(p, &v, sizeof v);
}

}  // namespace

Scalar load_scalar(DType t, const std::byte* p) {
  switch (t) {
    case DType::F32:
      return of_float(t, read<float>(p));
    case DType::F64:
      return of_float(t, read<double>(p));
    case DType::F16:
      return of_float(t, f16_of_bits(read<uint16_t>(p)));
    case DType::BF16:
      return of_float(t, std::bit_cast<float>(static_cast<uint32_t>(read<uint16_t>(p)) << 16));
    case DType::I64:
      return of_int(t, read<int64_t>(p));
    case DType::I32:
      return of_int(t, read<int32_t>(p));
    case DType::I16:
      return of_int(t, read<int16_t>(p));
    case DType::I8:
      return of_int(t, read<int8_t>(p));
    case DType::U8:
      return of_int(t, read<uint8_t>(p));
    case DType::Bool:
      return of_bool(read<uint8_t>(p) != 0);
    default: {
      // Opaque numbers are only copied: up to sixteen bytes in both words.
      Scalar x{t, 0, 0};
      std::memcpy(&x.i, p, std::min<size_t>(8, size_of(t)));
      if (size_of(t) > 8) std::memcpy(&x.f, p + 8, 8);
      return x;
    }
  }
}

void store_scalar(DType t, std::byte* p, const Scalar& v) {
  Scalar x = convert(v, t);
  switch (t) {
    case DType::F32:
      return write(p, static_cast<float>(x.f));
    case DType::F64:
      return write(p, x.f);
    case DType::F16:
      return write(p, bits_of_f16(static_cast<float>(x.f)));
    case DType::BF16:
      return write(p,
                   static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(x.f)) >> 16));
    case DType::I64:
      return write(p, x.i);
    case DType::I32:
      return write(p, static_cast<int32_t>(x.i));
    case DType::I16:
      return write(p, static_cast<int16_t>(x.i));
    case DType::I8:
      return write(p, static_cast<int8_t>(x.i));
    case DType::U8:
    case DType::Bool:
      return write(p, static_cast<uint8_t>(x.i));
    default:
      std::memcpy(p, &x.i, std::min<size_t>(8, size_of(t)));
      if (size_of(t) > 8) std::memcpy(p + 8, &x.f, 8);
  }
}

namespace {

Scalar identity(Op reduce, DType acc) {
  if (reduce == Op::Sum) return is_float(acc) ? of_float(DType::F64, 0) : of_int(acc, 0);
  const bool top = reduce == Op::Amin;
  if (is_float(acc)) return of_float(DType::F64, top ? INFINITY : -INFINITY);
  return of_int(acc,
                top ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min());
}

class ReferenceRegion final : public Region {
 public:
  ReferenceRegion(TypedCode code, std::vector<TensorRef> outputs)
      : code_(std::move(code)), outputs_(std::move(outputs)) {
    inner_ = code_.shape.empty() ? 1 : code_.shape.back();
    outer_ = inner_ ? product(code_.shape) / inner_ : 0;
    cost_ = product(code_.shape) * code_.cost;
    reduces_ = code_.reduces;
    may_fail_ = code_.failure_param >= 0;
  }

  void run_box(std::byte* const* ptrs, int64_t o_begin, int64_t o_end, int64_t i_begin,
               int64_t i_end) const override {
    invariant(!reduces_, "run_box of a region that reduces");
    std::vector<Scalar> values(code_.types.size());
    for (int64_t o = o_begin; o < o_end; ++o)
      for (int64_t i = i_begin; i < i_end; ++i) element(ptrs, index_of(o, i), values, nullptr);
  }

  void run(const RunCtx& ctx, std::byte* const* ptrs) const override {
    if (!reduces_) {
      auto [b, e] = thread_range(ctx, outer_);
      return run_box(ptrs, b, e, 0, inner_);
    }
    if (ctx.thread != 0) return;
    std::vector<std::vector<Scalar>> sums(outputs_.size());
    for (size_t k = 0; k < outputs_.size(); ++k) {
      const Slot& s = code_.slots[code_.inputs + k];
      if (s.kind == SlotKind::kReduce)
        sums[k].assign(outputs_[k].count(), identity(s.reduce, s.dtype));
    }
    std::vector<Scalar> values(code_.types.size());
    for (int64_t o = 0; o < outer_; ++o)
      for (int64_t i = 0; i < inner_; ++i) element(ptrs, index_of(o, i), values, &sums);
    for (size_t k = 0; k < outputs_.size(); ++k) {
      const TensorRef& out = outputs_[k];
      for (size_t at = 0; at < sums[k].size(); ++at) {
        int64_t rest = static_cast<int64_t>(at), offset = 0;
        for (size_t d = out.shape.size(); d-- > 0;) {
          offset += rest % out.shape[d] * out.strides[d];
          rest /= out.shape[d];
        }
        store_scalar(out.dtype, ptrs[code_.inputs + k] + offset * size_of(out.dtype), sums[k][at]);
      }
    }
  }

 private:
  Dims index_of(int64_t o, int64_t i) const {
    Dims index(code_.shape.size());
    if (index.empty()) return index;
    index.back() = i;
    for (size_t d = index.size() - 1; d-- > 0;) {
      index[d] = o % code_.shape[d];
      o /= code_.shape[d];
    }
    return index;
  }

  static int64_t offset(const Slot& s, const Dims& index) {
    int64_t at = 0;
    for (size_t d = 0; d < index.size(); ++d) at += index[d] * s.strides[d];
    return at;
  }

  Scalar generate(const Instr& in, std::byte* const* ptrs, const Dims& index) const {
    int64_t at = offset(code_.slots[in.index_slot], index);
    if (in.op == Op::Uniform) {
      auto* key = reinterpret_cast<const int64_t*>(ptrs[in.args[0].value]);
      return of_float(in.result,
                      kernels::uniform(kernels::random_fold(key[0]), kernels::random_fold(key[1]),
                                       static_cast<uint32_t>(code_.params[in.param]),
                                       static_cast<uint64_t>(at)));
    }
    int64_t start = code_.params[in.param], step = code_.params[in.param + 1];
    if (is_int(in.result)) return of_int(in.result, start + step * at);
    return of_float(in.result, std::bit_cast<double>(start) +
                                   std::bit_cast<double>(step) * static_cast<double>(at));
  }

  void element(std::byte* const* ptrs, const Dims& index, std::vector<Scalar>& values,
               std::vector<std::vector<Scalar>>* sums) const {
    for (int k = 0; k < code_.inputs; ++k) {
      const Slot& s = code_.slots[k];
      if (s.kind == SlotKind::kLoad)
        values[k] = load_scalar(s.dtype, ptrs[k] + offset(s, index) * size_of(s.dtype));
    }
    for (size_t k = 0; k < code_.instrs.size(); ++k) {
      const Instr& in = code_.instrs[k];
      Scalar x[6], r;
      if (in.index_slot >= 0) {
        r = generate(in, ptrs, index);
      } else {
        for (size_t a = 0; a < in.args.size(); ++a) {
          const CodeArg& arg = in.args[a];
          const Arg& lit = arg.literal;
          Scalar v = arg.value >= 0                  ? values[arg.value]
                     : lit.kind == Arg::Kind::kFloat ? of_float(DType::F64, lit.f)
                                                     : of_int(DType::I64, lit.i);
          x[a] = convert(v, arg.as);
        }
        if (divides_integers(in) && x[1].i == 0) failed_ = 1;
        r = eval_row(in.op, x, static_cast<int>(in.args.size()));
      }
      values[code_.inputs + k] = convert(r, in.result);
    }
    for (int k = 0; k < code_.outputs; ++k) {
      const Slot& s = code_.slots[code_.inputs + k];
      if (s.kind == SlotKind::kStore) {
        store_scalar(s.dtype, ptrs[code_.inputs + k] + offset(s, index) * size_of(s.dtype),
                     values[s.value]);
        continue;
      }
      int64_t at = 0;
      for (size_t d = 0; d < index.size(); ++d)
        if (!code_.reduced[d]) at = at * code_.shape[d] + index[d];
      Scalar& sum = (*sums)[k][at];
      Scalar v = convert(values[s.value], is_float(s.dtype) ? DType::F64 : s.dtype);
      sum = s.reduce == Op::Sum ? sum + v : s.reduce == Op::Amax ? max(sum, v) : min(sum, v);
    }
  }

  TypedCode code_;
  std::vector<TensorRef> outputs_;
};

}  // namespace

std::unique_ptr<Region> make_reference_region(TypedCode code,
                                              const std::vector<TensorRef>& outputs) {
  return std::make_unique<ReferenceRegion>(std::move(code), outputs);
}

}  // namespace tessera::codegen
