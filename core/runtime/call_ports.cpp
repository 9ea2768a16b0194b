// SPDX-License-Identifier: Apache-2.0
#include "runtime/call_ports.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/half.h"

namespace tessera {
namespace {

using Widen = void (*)(const uint16_t*, float*, int64_t);
using Narrow = void (*)(const float*, uint16_t*, int64_t);

// Rounded after each addition, as a tensor of that type would be.
void add_half_in_place(void* sum, const void* x, int64_t count, Widen widen, Narrow narrow) {
  constexpr int64_t kBlock = 64;
  auto* s = static_cast<uint16_t*>(sum);
  auto* v = static_cast<const uint16_t*>(x);
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t n = std::min(kBlock, count - i);
    float a[kBlock], b[kBlock];
    widen(s + i, a, n);
    widen(v + i, b, n);
    for (int64_t k = 0; k < n; ++k) a[k] += b[k];
    narrow(a, s + i, n);
  }
}

template <typename T>
void add_in_place(void* sum, const void* x, int64_t count) {
  auto* s = static_cast<T*>(sum);
  auto* v = static_cast<const T*>(x);
  for (int64_t i = 0; i < count; ++i) s[i] = static_cast<T>(s[i] + v[i]);
}

void accumulate_output(const PortDesc& port, void* sum, const void* x) {
  int64_t n = product(port.shape);
  const kernels::HalfKernels& half = kernels::half_kernels();
  switch (port.dtype) {
    case DType::F32:
      return add_in_place<float>(sum, x, n);
    case DType::F64:
      return add_in_place<double>(sum, x, n);
    case DType::F16:
      return add_half_in_place(sum, x, n, half.widen_f16, half.narrow_f16);
    case DType::BF16:
      return add_half_in_place(sum, x, n, half.widen_bf16, half.narrow_bf16);
    case DType::Bool:
      return add_in_place<bool>(sum, x, n);
    case DType::I64:
      return add_in_place<int64_t>(sum, x, n);
    case DType::I32:
      return add_in_place<int32_t>(sum, x, n);
    case DType::I16:
      return add_in_place<int16_t>(sum, x, n);
    case DType::I8:
      return add_in_place<int8_t>(sum, x, n);
    case DType::U8:
      return add_in_place<uint8_t>(sum, x, n);
    default:
      throw UserError(
          fmt::format("[output] OutputMode.Sum cannot add {} values; return them as float32 or use "
                      "OutputMode.All",
                      name_of(port.dtype)));
  }
}

std::vector<OutputRule> rules_of(const Program& program, const RunConfig& config) {
  std::vector<OutputRule> rules = config.outputs;
  rules.resize(program.outputs.size(), config.output);
  return rules;
}

}  // namespace

CallPorts::CallPorts(const Program& program, const RunConfig& config)
    : inputs_(program.inputs),
      outputs_(program.outputs),
      groups_(config.replicas / config.input_group),
      replicas_(config.replicas),
      accumulation_(config.gradient_accumulation),
      rules_(rules_of(program, config)) {
  for (const PortDesc& p : program.inputs) input_bytes_.push_back(p.bytes());
  for (const PortDesc& p : program.outputs) output_bytes_.push_back(p.bytes());
  for (int64_t r = 0; r < replicas_; ++r)
    input_groups_.push_back(
        replica_group(r, replicas_, config.input_group, config.orthogonal_groups));
  int64_t bytes = 0;
  for (size_t i = 0; i < rules_.size(); ++i) {
    unkept_.push_back(bytes);
    if (rules_[i].mode == OutputMode::kSum || rules_[i].mode == OutputMode::kEveryN)
      bytes += whole_lines(outputs_[i].bytes());
  }
  if (bytes > 0) unkept_memory_ = Arena(bytes);
}

double CallPorts::output_bytes(const Program& program, const RunConfig& config) {
  const std::vector<OutputRule> rules = rules_of(program, config);
  double bytes = 0;
  for (size_t i = 0; i < rules.size(); ++i)
    bytes += static_cast<double>(program.outputs[i].bytes()) *
             static_cast<double>(config.replicas) *
             (rules[i].mode == OutputMode::kAll ? static_cast<double>(config.steps()) : 1.0);
  return bytes;
}

void CallPorts::bind(const std::vector<const void*>& inputs, const std::vector<void*>& outputs) {
  invariant(inputs.size() == inputs_.size() && outputs.size() == outputs_.size(),
            "run got {} inputs and {} outputs, the program has {} and {}", inputs.size(),
            outputs.size(), inputs_.size(), outputs_.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    user_check(inputs[i] || input_bytes_[i] == 0, "[memory] input {} has no memory on the CPU",
               inputs_[i].name);
  for (size_t i = 0; i < outputs.size(); ++i)
    user_check(outputs[i] || output_bytes_[i] == 0,
               "[memory] there is no memory on the CPU for output {}", i);
  given_ = &inputs;
  results_ = &outputs;
}

std::byte* CallPorts::input_at(int64_t input, int64_t step, int64_t replica) const {
  return const_cast<std::byte*>(static_cast<const std::byte*>((*given_)[input])) +
         (step * groups_ + input_groups_[replica]) * input_bytes_[input];
}

std::byte* CallPorts::kept(size_t output, int64_t at, int64_t replica) const {
  return static_cast<std::byte*>((*results_)[output]) +
         (at * replicas_ + replica) * output_bytes_[output];
}

std::byte* CallPorts::output_at(size_t output, int64_t step, int64_t replica) const {
  const auto [mode, period] = rules_[output];
  switch (mode) {
    case OutputMode::kAll:
      return kept(output, step, replica);
    case OutputMode::kSum:
      return step > 0 ? unkept_memory_.data() + unkept_[output] : kept(output, 0, replica);
    case OutputMode::kEveryN: {
      const int64_t iteration = step / accumulation_;
      if ((iteration + 1) % period != 0) return unkept_memory_.data() + unkept_[output];
      return kept(output, iteration / period * accumulation_ + step % accumulation_, replica);
    }
    default:
      return kept(output, 0, replica);
  }
}

void CallPorts::add_to_sum(size_t output, int64_t step, int64_t replica, const std::byte* from) {
  if (rules_[output].mode == OutputMode::kSum && step > 0)
    accumulate_output(outputs_[output], kept(output, 0, replica), from);
}

}  // namespace tessera
