// SPDX-License-Identifier: Apache-2.0
// A call is checked as one in text is: as a node of a graph, by its op's row.
#include "executable/check_step.h"

#include <algorithm>
#include <memory>

#include "executable/bytes.h"
#include "ir/signature.h"
#include "ops/check_types.h"
#include "ops/flow.h"
#include "ops/registry.h"

namespace tessera {
namespace {

struct Extent {
  int64_t begin = 0, end = 0;  // bytes into the region
  bool empty() const { return begin == end; }
};

Extent extent_of(const TensorRef& t) {
  if (t.count() == 0) return {t.offset, t.offset};
  __int128 low = 0, high = 1;
  for (size_t i = 0; i < t.shape.size(); ++i) {
    const __int128 last = static_cast<__int128>(t.shape[i] - 1) * t.strides[i];
    (last < 0 ? low : high) += last;
  }
  low = t.offset + low * size_of(t.dtype);
  high = t.offset + high * size_of(t.dtype);
  sound(low >= 0 && high <= kMaxTensorBytes, "a tensor is outside of its memory");
  return {static_cast<int64_t>(low), static_cast<int64_t>(high)};
}

void check_tensor(const TensorRef& t, const std::vector<Region>& regions, bool written) {
  sound(t.region >= 0 && t.region < static_cast<int64_t>(regions.size()),
        "a tensor is in region {} of {}", t.region, regions.size());
  const Region& region = regions[static_cast<size_t>(t.region)];
  const Extent e = extent_of(t);
  sound(e.end <= region.bytes || e.empty(), "a tensor ends at byte {} of {}", e.end, region.bytes);
  sound(t.offset % std::min<int64_t>(size_of(t.dtype), 8) == 0, "a tensor begins at byte {}",
        t.offset);
  sound(!written || region.writable || e.empty(), "a step writes to region {}", t.region);
}

// In some order of its dims, without gaps.
bool dense(const TensorRef& t) {
  std::vector<size_t> dims;
  for (size_t i = 0; i < t.shape.size(); ++i)
    if (t.shape[i] != 1) dims.push_back(i);
  std::sort(dims.begin(), dims.end(),
            [&](size_t a, size_t b) { return t.strides[a] < t.strides[b]; });
  int64_t step = 1;
  for (size_t i : dims) {
    if (t.strides[i] != step) return false;
    step *= t.shape[i];
  }
  return true;
}

bool overlap(const TensorRef& a, const TensorRef& b) {
  if (a.region != b.region) return false;
  const Extent x = extent_of(a), y = extent_of(b);
  return x.begin < y.end && y.begin < x.end;
}

// Results written over operands: only where both are the same elements in the same places, of ops
// that read an element before they write it.
bool in_place(const StepDesc& s, size_t input, const TensorRef& out) {
  const TensorRef& in = s.inputs[input];
  const bool elementwise = has_fact(s.op, kUpdates) ? input == 0
                           : !s.bodies.empty()      ? loop_parts(s.op, s.args).is_carry(input)
                                                    : !s.body.empty();
  return elementwise && in.offset == out.offset && in.shape == out.shape &&
         size_of(in.dtype) == size_of(out.dtype) &&
         (in.strides == out.strides || (in.contiguous() && out.contiguous()));
}

void check_overlaps(const StepDesc& s) {
  for (size_t k = 0; k < s.outputs.size(); ++k) {
    for (size_t i = 0; i < s.inputs.size(); ++i)
      sound(!overlap(s.outputs[k], s.inputs[i]) || in_place(s, i, s.outputs[k]),
            "{} writes over what it reads", op_text(s.op));
    for (size_t j = 0; j < k; ++j)
      sound(!overlap(s.outputs[k], s.outputs[j]), "{} writes twice to one place", op_text(s.op));
    sound(s.bodies.empty() || !overlap(s.outputs[k], s.workspace), "{} works in its results",
          op_text(s.op));
  }
  for (size_t i = 0; i < s.inputs.size(); ++i)
    sound(s.bodies.empty() || !overlap(s.inputs[i], s.workspace), "{} works in its operands",
          op_text(s.op));
}

// Operands that the arguments name, each once and in their order.
void check_operands(const Arg& a, size_t count) {
  sound(!a.is_operand() || (a.i >= 0 && a.i < static_cast<int64_t>(count)),
        "an argument is operand {} of {}", a.i, count);
  for (const Arg& item : a.list) check_operands(item, count);
}

// A max pool whose indices nobody reads.
bool lacks_index(const StepDesc& s) {
  return (s.op == Op::MaxPool || s.op == Op::AdaptiveMaxPool) && s.outputs.size() == 1;
}

void check_call(const StepDesc& s) {
  Graph g;
  Node n;
  n.op = s.op;
  n.target = s.target;
  n.args = s.args;
  for (const TensorRef& t : s.inputs)
    n.operands.push_back(g.add_source(SourceKind::kInput, "", {t.dtype, t.shape, {}}));
  for (const TensorRef& t : s.outputs)
    n.results.push_back(
        g.add_value({t.dtype, t.shape, {}}, static_cast<int32_t>(n.results.size())));
  if (!s.body.empty()) n.body = parse_graph(s.body);
  const bool flow = is_flow(s.op);
  if (flow || lacks_index(s)) check_signature(g, n);
  if (lacks_index(s)) n.results.push_back(g.add_value(op_row(s.op).infer(g, n).back(), 1));
  g.nodes.push_back(std::move(n));
  if (!flow) check_types(g);
}

void check_layout(const StepDesc& s) {
  for (const TensorRef& t : s.outputs)
    sound(t.count() == 0 || dense(t), "a result of {} has gaps", op_text(s.op));
  if (!s.body.empty() && s.op != Op::Fused)
    for (size_t i = 2; i < s.inputs.size(); ++i)
      sound(s.outputs[0].contiguous(), "an epilogue gives another order of dims");
  if (s.op == Op::Fused || is_flow(s.op) || s.op == Op::HostCall) return;
  const size_t operands = s.body.empty() ? s.inputs.size() : 2;
  for (size_t i = 0; i < operands; ++i)
    sound(s.inputs[i].count() == 0 || s.inputs[i].contiguous() ||
              op_row(s.op).accepts(s.op, static_cast<int>(i), s.inputs[i]),
          "operand {} of {} lies as its kernel cannot read it", i, op_text(s.op));
}

Region part(const TensorRef& t, bool writable) {
  sound(t.count() == 0 || t.contiguous(), "the body of a step gets a tensor with gaps");
  return {t.bytes(), writable};
}

// A slice of a tensor that a loop goes through; slices may stand apart.
Region slice(const TensorRef& t, int64_t count, bool writable) {
  sound(!t.shape.empty() && t.shape[0] == count,
        "a loop takes {} turns over another number of slices", count);
  TensorRef one = t;
  one.shape.erase(one.shape.begin());
  one.strides.erase(one.strides.begin());
  return part(one, writable);
}

bool same(const TensorRef& a, const TensorRef& b) {
  return a.dtype == b.dtype && a.shape == b.shape;
}

void check_loop(const StepDesc& s, std::vector<Region>& regions) {
  const LoopParts parts = loop_parts(s.op, s.args);
  sound(s.bodies.size() == 1 && (s.op == Op::Scan || parts.carries == s.outputs.size()) &&
            parts.count >= 0 && parts.carries <= s.outputs.size() &&
            parts.carries + parts.xs + parts.captures == s.inputs.size(),
        "a loop does not fit its body");
  sound(s.op == Op::Scan ||
            (parts.carries > 0 && s.inputs[0].dtype == DType::Bool && s.inputs[0].count() == 1),
        "a loop of unknown length tests no bool");
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    if (parts.is_carry(i)) {
      sound(same(s.inputs[i], s.outputs[i]), "a loop carries another type than it gives");
      part(s.inputs[i], false);
      regions.push_back(part(s.outputs[i], true));
    } else {
      regions.push_back(parts.is_x(i) ? slice(s.inputs[i], parts.count, false)
                                      : part(s.inputs[i], false));
    }
  }
  for (size_t i = parts.carries; i < s.outputs.size(); ++i)
    regions.push_back(slice(s.outputs[i], parts.count, true));
}

void check_branch(const StepDesc& s, std::vector<Region>& regions) {
  sound(s.bodies.size() == 2 && !s.inputs.empty() && s.inputs[0].count() == 1 &&
            s.inputs[0].dtype == DType::Bool,
        "a branch does not fit its bodies");
  for (size_t i = 1; i < s.inputs.size(); ++i) regions.push_back(part(s.inputs[i], false));
  for (const TensorRef& t : s.outputs) regions.push_back(part(t, true));
}

void check_bodies(const StepDesc& s, const std::vector<Region>& around) {
  check_tensor(s.workspace, around, true);
  sound(s.workspace.dtype == DType::U8 && s.workspace.region == kArenaRegion &&
            s.workspace.shape.size() == 1 && s.workspace.contiguous(),
        "the memory of a body is none of the arena");
  std::vector<Region> regions{{s.workspace.bytes(), true}, {0, false}};
  if (s.op == Op::Branch)
    check_branch(s, regions);
  else
    check_loop(s, regions);
  for (const auto& body : s.bodies) check_section(*body, regions);
}

void check_step(const StepDesc& s, const std::vector<Region>& regions) {
  sound(s.op < Op::kCount && (op_kind(s.op) == OpKind::kStructured), "{} is no step",
        op_text(s.op));
  sound(s.bodies.empty() == !is_flow(s.op), "{} {} bodies", op_text(s.op),
        s.bodies.empty() ? "has no" : "has");
  for (const TensorRef& t : s.inputs) check_tensor(t, regions, false);
  for (const TensorRef& t : s.outputs) check_tensor(t, regions, true);
  for (const Arg& a : s.args.list) check_operands(a, s.inputs.size());
  check_call(s);
  check_layout(s);
  if (!s.bodies.empty()) check_bodies(s, regions);
  check_overlaps(s);
}

}  // namespace

void check_section(const Section& section, const std::vector<Region>& regions) {
  sound(section.work.size() == section.steps.size(), "{} steps have {} notes on their work",
        section.steps.size(), section.work.size());
  for (const StepDesc& s : section.steps) {
    try {
      check_step(s, regions);
    } catch (const InternalError& error) {
      throw Damaged(error.what());
    } catch (const Damaged&) {
      throw;
    } catch (const UserError& error) {
      throw Damaged(error.what());
    }
  }
}

}  // namespace tessera
