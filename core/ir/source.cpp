// SPDX-License-Identifier: Apache-2.0
#include "ir/source.h"

#include <fmt/format.h>

namespace tessera {
namespace {

struct Row {
  std::string_view text;
  Owner owner;
  bool written;
};

constexpr Row kRows[] = {
#define ROW(name, text, owner, written) {text, Owner::owner, written},
    TESSERA_SOURCE_KINDS(ROW)
#undef ROW
};

const Row& row_of(SourceKind kind) {
  return kRows[static_cast<int>(kind)];
}

}  // namespace

std::string_view text_of(SourceKind kind) {
  return row_of(kind).text;
}

std::optional<SourceKind> source_kind(std::string_view text) {
  for (size_t i = 0; i < std::size(kRows); ++i)
    if (kRows[i].text == text) return static_cast<SourceKind>(i);
  return std::nullopt;
}

Owner owner_of(SourceKind kind) {
  return row_of(kind).owner;
}

bool may_be_written(SourceKind kind) {
  return row_of(kind).written;
}

bool is_of_the_model(SourceKind kind) {
  return kind == SourceKind::kParam || kind == SourceKind::kBuffer || kind == SourceKind::kConst;
}

std::string_view missing_type(SourceKind kind, const TensorType& t) {
  const bool scalar = t.rank() == 0;
  switch (kind) {
    case SourceKind::kRandom:
      return t.dtype == DType::I64 && t.shape == Dims{2} ? "" : "i64[2]";
    case SourceKind::kHyper:
      return (t.dtype == DType::F32 || t.dtype == DType::F64) && t.shape == Dims{kHyperSlots}
                 ? ""
                 : "f32[16] or f64[16]";
    case SourceKind::kMicroCount:
    case SourceKind::kLossScale:
    case SourceKind::kLossSteps:
      return t.dtype == DType::F32 && scalar ? "" : "f32[]";
    case SourceKind::kOptimizer:
    case SourceKind::kAccumulator:
      return is_float(t.dtype) ? "" : "floats";
    default:
      return "";
  }
}

std::string state_name(const Source& s) {
  if (!s.param.empty()) return fmt::format("{}:{}", s.name, s.param);
  return s.group < 0 ? s.name : fmt::format("{}:{}", s.name, s.group);
}

std::string state_key(const Source& s) {
  return fmt::format("{} {} {} {}", text_of(s.kind), s.group, s.param.size(), state_name(s));
}

}  // namespace tessera
