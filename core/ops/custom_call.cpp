// SPDX-License-Identifier: Apache-2.0
#include "ops/custom_call.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"

namespace tessera {
namespace {

static_assert(static_cast<int>(DType::F32) == TESSERA_F32);
static_assert(static_cast<int>(DType::F16) == TESSERA_F16);
static_assert(static_cast<int>(DType::BF16) == TESSERA_BF16);
static_assert(static_cast<int>(DType::F64) == TESSERA_F64);
static_assert(static_cast<int>(DType::I64) == TESSERA_I64);
static_assert(static_cast<int>(DType::I32) == TESSERA_I32);
static_assert(static_cast<int>(DType::I16) == TESSERA_I16);
static_assert(static_cast<int>(DType::I8) == TESSERA_I8);
static_assert(static_cast<int>(DType::U8) == TESSERA_U8);
static_assert(static_cast<int>(DType::Bool) == TESSERA_BOOL);

bool is_whole(const Arg& a) {
  return a.kind == Arg::Kind::kInt || a.kind == Arg::Kind::kBool;
}

float narrowed(const std::string& key, double v) {
  user_check(!std::isfinite(v) || std::abs(v) <= std::numeric_limits<float>::max(),
             "attribute {} of a custom op: {} is beyond the range of a float", key, v);
  return static_cast<float>(v);
}

// One attribute of a call; `a` is [name, value].
void add_attribute(tessera_call* call, const Arg& a) {
  const bool pair =
      a.kind == Arg::Kind::kList && a.list.size() == 2 && a.list[0].kind == Arg::Kind::kString;
  user_check(pair, "an attribute of a custom op is a list of its name and its value");
  const std::string& key = a.list[0].s;
  const Arg& value = a.list[1];
  const bool list = value.kind == Arg::Kind::kList;
  const std::vector<Arg> items = list ? value.list : std::vector<Arg>{value};
  user_check(!items.empty(), "attribute {} of a custom op is an empty list", key);
  auto all = [&](auto is) { return std::all_of(items.begin(), items.end(), is); };
  const auto count = static_cast<int64_t>(items.size());
  if (all(is_whole)) {
    std::vector<int64_t> values;
    for (const Arg& x : items) values.push_back(x.i);
    tessera_call_add_ints(call, key.c_str(), list, values.data(), count);
  } else if (all([](const Arg& x) { return x.kind == Arg::Kind::kFloat; })) {
    std::vector<float> values;
    for (const Arg& x : items) values.push_back(narrowed(key, x.f));
    tessera_call_add_floats(call, key.c_str(), list, values.data(), count);
  } else if (all([](const Arg& x) { return x.kind == Arg::Kind::kString; })) {
    std::vector<const char*> values;
    for (const Arg& x : items) values.push_back(x.s.c_str());
    tessera_call_add_strings(call, key.c_str(), list, values.data(), count);
  } else {
    throw UserError(
        fmt::format("attribute {} of a custom op is neither integers nor floats nor strings", key));
  }
}

size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t before = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t next = std::min({row[j] + 1, row[j - 1] + 1, before + (a[i - 1] != b[j - 1])});
      before = row[j];
      row[j] = next;
    }
  }
  return row[b.size()];
}

}  // namespace

CustomCall::CustomCall(const std::string& domain, const std::string& name, int64_t version,
                       const std::vector<TensorType>& inputs, const Arg& attributes) {
  user_check(version >= 0 && version <= std::numeric_limits<int32_t>::max(),
             "version {} of custom op {}.{} is out of range", version, domain, name);
  op_ = tessera_find_op(domain.c_str(), name.c_str(), static_cast<int32_t>(version));
  user_check(op_ != nullptr, "No class for {}.{}:{}. {}", domain, name, version,
             op_ ? "" : describe_custom_ops(domain, name));
  call_.reset(tessera_call_new(op_));
  for (const TensorType& t : inputs) {
    user_check(class_of(t.dtype) != DTypeClass::kOpaque, "custom op {} takes no tensor of type {}",
               label(), name_of(t.dtype));
    tessera_call_add_input(get(), static_cast<tessera_dtype>(t.dtype), t.rank(), t.shape.data());
  }
  user_check(attributes.kind == Arg::Kind::kList, "the attributes of custom op {} are no list",
             label());
  for (const Arg& a : attributes.list) add_attribute(get(), a);
}

std::string CustomCall::label() const {
  return fmt::format("{}.{}:{}", op_->domain, op_->name, op_->version);
}

std::string CustomCall::library() const {
  return tessera_op_library(op_);
}

void CustomCall::check(int answer) const {
  user_check(answer == 0, "[{}] {} ({})", label(), tessera_call_error(get()), library());
}

std::vector<TensorType> CustomCall::setup() {
  check(tessera_call_setup(get()));
  std::vector<TensorType> out;
  for (int32_t i = 0; i < tessera_call_outputs(get()); ++i) {
    const tessera_type& t = *tessera_call_output(get(), i);
    TensorType type{static_cast<DType>(t.dtype), Dims(t.shape, t.shape + t.rank), {}};
    int64_t bytes = size_of(type.dtype);
    for (const int64_t d : type.shape) {
      const int64_t size = std::max<int64_t>(d, 1);
      user_check(size <= kMaxTensorBytes / bytes, "[{}] output {} has no room in any memory ({})",
                 label(), i, library());
      bytes *= size;
    }
    out.push_back(std::move(type));
  }
  return out;
}

std::string describe_custom_ops(const std::string& domain, const std::string& name) {
  std::vector<std::pair<size_t, std::string>> near;
  std::set<std::string> libraries;
  for (int64_t i = 0; i < tessera_op_count(); ++i) {
    const tessera_op* op = tessera_op_at(i);
    libraries.insert(tessera_op_library(op));
    const size_t d = distance(op->name, name) + (op->domain == domain ? 0 : 1);
    if (d <= std::max<size_t>(3, name.size() / 2))
      near.emplace_back(d, fmt::format("{}.{}:{}", op->domain, op->name, op->version));
  }
  std::sort(near.begin(), near.end());
  std::string text;
  for (size_t i = 0; i < near.size() && i < 5; ++i)
    text += (i ? ", " : "Near names: ") + near[i].second;
  if (!text.empty()) text += ". ";
  for (auto it = libraries.begin(); it != libraries.end(); ++it)
    text += (it == libraries.begin() ? "Loaded libraries: " : ", ") + *it;
  if (libraries.empty()) text += "No library of custom ops is loaded";
  text += ". ";
  for (int64_t i = 0; i < tessera_refused_count(); ++i)
    text += fmt::format("({}) ", tessera_refused_at(i));
  return text + "Try: ctypes.cdll.LoadLibrary(file) before the model is compiled";
}

}  // namespace tessera
