// SPDX-License-Identifier: Apache-2.0
// The compute function of compute sets: all threads share the vertices.
#include <algorithm>
#include <cstring>

#include "custom/codelets/plan.h"
#include "tessera/abi.h"

namespace tessera::codelets {
namespace {

constexpr uint64_t kLine = 64;

uint64_t round_up(uint64_t n, uint64_t to) {
  return (n + to - 1) / to * to;
}

std::byte* tensor(const Plan& plan, const tessera_run* run, uint32_t index) {
  auto inputs = static_cast<uint32_t>(plan.inputs.size());
  const void* at = index < inputs ? run->inputs[index] : run->outputs[index - inputs];
  return static_cast<std::byte*>(const_cast<void*>(at));
}

// One vertex, in the memory of one thread.
class Worker {
 public:
  Worker(const Plan& plan, const tessera_run* run)
      : plan_(plan),
        run_(run),
        image_(static_cast<std::byte*>(run->scratch)),
        buffer_(image_ + round_up(plan.largest_image, kLine)) {}

  void execute(const PlannedVertex& v) {
    std::memcpy(image_, plan_.images.data() + v.image, v.image_bytes);
    const Transfer* transfers = plan_.transfers.data() + v.first_transfer;
    for (uint32_t i = 0; i < v.transfers; ++i)
      if ((transfers[i].direction & TESSERA_FIELD_READ) != 0)
        std::memcpy(buffer_ + transfers[i].buffer, place(transfers[i]), transfers[i].bytes);
    moved_.clear();
    const Link* links = plan_.links.data() + v.first_link;
    for (uint32_t i = 0; i < v.links; ++i) {
      std::byte* at = address(links[i]);
      std::memcpy(image_ + links[i].slot, &at, sizeof at);
    }
    for (unsigned w = 0; w < v.type->workers; ++w) v.type->compute(image_, w);
    for (uint32_t i = 0; i < v.transfers; ++i)
      if ((transfers[i].direction & TESSERA_FIELD_WRITE) != 0)
        std::memcpy(place(transfers[i]), buffer_ + transfers[i].buffer, transfers[i].bytes);
    for (const Moved& m : moved_)
      if ((m.link->direction & TESSERA_FIELD_WRITE) != 0)
        std::memcpy(m.home, m.copy.get(), m.link->bytes);
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t(kLine)); }
  };
  // A field of a tensor that the caller gave us with less alignment than the vertex asks for.
  struct Moved {
    const Link* link;
    std::byte* home;
    std::unique_ptr<std::byte, Free> copy;
  };

  std::byte* place(const Transfer& t) const { return tensor(plan_, run_, t.tensor) + t.offset; }

  std::byte* address(const Link& link) {
    if (link.base == kImage) return image_ + link.offset;
    if (link.base == kBuffer) return buffer_ + link.offset;
    std::byte* at = tensor(plan_, run_, link.base - kTensor) + link.offset;
    if (reinterpret_cast<uintptr_t>(at) % link.align == 0) return at;
    auto* copy = static_cast<std::byte*>(::operator new(link.bytes, std::align_val_t(kLine)));
    std::memcpy(copy, at, link.bytes);
    moved_.push_back({&link, at, std::unique_ptr<std::byte, Free>(copy)});
    return copy;
  }

  const Plan& plan_;
  const tessera_run* run_;
  std::byte* image_;
  std::byte* buffer_;
  std::vector<Moved> moved_;
};

const Plan& plan_of(const tessera_call* call) {
  return *static_cast<const Plan*>(tessera_call_user(call));
}

// The last input of a set that draws random numbers.
bool is_seed(const tessera_type* t) {
  return t->dtype == TESSERA_I32 && t->rank == 1 && t->shape[0] == 2;
}

void setup(tessera_call* call) {
  const Plan& plan = plan_of(call);
  const bool fits =
      tessera_call_inputs(call) == static_cast<int32_t>(plan.inputs.size() + (plan.random ? 1 : 0));
  if (!fits ||
      (plan.random && !is_seed(tessera_call_input(call, static_cast<int32_t>(plan.inputs.size())))))
    return tessera_fail(call, "a compute set was given another number of tensors");
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    const tessera_type* type = tessera_call_input(call, static_cast<int32_t>(i));
    int64_t elements = 1;
    for (int32_t d = 0; d < type->rank; ++d) elements *= type->shape[d];
    int64_t wanted = 1;
    for (int64_t n : plan.inputs[i].shape) wanted *= n;
    if (type->dtype != plan.inputs[i].dtype || elements != wanted)
      return tessera_fail(call, "a compute set was given a tensor of another type");
  }
  for (size_t i = 0; i < plan.outputs.size(); ++i)
    tessera_call_set_output(
        call, static_cast<int32_t>(i), static_cast<tessera_dtype>(plan.outputs[i].dtype),
        static_cast<int32_t>(plan.outputs[i].shape.size()), plan.outputs[i].shape.data());
}

void* prepare(tessera_call* call) {
  tessera_call_set_scratch(call, static_cast<int64_t>(plan_of(call).scratch_bytes));
  return nullptr;
}

// What a variable held before goes to its new value, shared by bytes.
void copy_before(const Plan& plan, const tessera_run* run) {
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    const PlannedTensor& out = plan.outputs[i];
    if (out.before < 0) continue;
    uint64_t lines = (out.bytes + kLine - 1) / kLine, n = static_cast<uint64_t>(run->threads);
    uint64_t begin = lines * static_cast<uint64_t>(run->thread) / n * kLine;
    uint64_t end = std::min(lines * static_cast<uint64_t>(run->thread + 1) / n * kLine, out.bytes);
    if (begin < end)
      std::memcpy(static_cast<std::byte*>(run->outputs[i]) + begin,
                  static_cast<const std::byte*>(run->inputs[out.before]) + begin, end - begin);
  }
}

void compute(const tessera_run* run) {
  const Plan& plan = plan_of(run->call);
  if (plan.copies) {
    copy_before(plan, run);
    run->barrier(run);
  }
  if (plan.vertices.empty()) return;
  // Vertices so that every thread has about as many bytes.
  uint64_t total = plan.weight.back(), n = static_cast<uint64_t>(run->threads);
  auto cut = [&](uint64_t part) {
    return std::lower_bound(plan.weight.begin(), plan.weight.end(),
                            total / n * part + total % n * part / n + 1) -
           plan.weight.begin();
  };
  auto thread = static_cast<uint64_t>(run->thread);
  auto begin = static_cast<size_t>(thread == 0 ? 0 : cut(thread));
  size_t end = thread + 1 == n ? plan.vertices.size() : static_cast<size_t>(cut(thread + 1));
  uint64_t seed = 0;
  if (plan.random) std::memcpy(&seed, run->inputs[plan.inputs.size()], sizeof seed);
  Worker worker(plan, run);
  for (size_t i = begin; i < end; ++i) {
    const PlannedVertex& v = plan.vertices[i];
    if (plan.random)
      v.library->table().seed(seed * 0x9e3779b97f4a7c15u ^ (i + 1) * 0xbf58476d1ce4e5b9u);
    worker.execute(v);
  }
}

void work(tessera_call* call) {
  const Plan& plan = plan_of(call);
  uint64_t bytes = plan.weight.empty() ? 0 : plan.weight.back();
  tessera_call_set_work(call, static_cast<int64_t>(bytes / 4), static_cast<int64_t>(bytes));
}

}  // namespace

void register_plan(std::unique_ptr<Plan> plan) {
  tessera_op op{};
  op.size = sizeof op;
  op.abi = TESSERA_OPS_ABI;
  op.domain = kDomain;
  op.name = plan->op.c_str();
  op.version = 1;
  op.user = plan.get();
  op.setup = setup;
  op.prepare = prepare;
  op.compute = compute;
  op.work = work;
  // One that is known keeps its own plan.
  if (tessera_register_op(&op) == TESSERA_REGISTERED) (void)plan.release();
}

}  // namespace tessera::codelets
