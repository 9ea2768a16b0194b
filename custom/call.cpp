// SPDX-License-Identifier: Apache-2.0
// Calls of custom ops: what a callback may ask and say.
#include "custom/call.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace {

// Bounds of what a library may say; beyond them it is an error, not a size.
constexpr int32_t kMaxOutputs = 1024, kMaxRank = 64;

std::string text_or_empty(const char* text) {
  return text == nullptr ? std::string() : std::string(text);
}

// Runs a callback; what it throws is the call's error.
template <typename F>
int guarded(tessera_call* c, const char* callback, F f) {
  try {
    f();
  } catch (const std::exception& e) {
    c->fail(std::string("exception in ") + callback + ": " + e.what());
  } catch (...) {
    c->fail(std::string("unknown exception in ") + callback);
  }
  return c->failed ? 1 : 0;
}

tessera_attribute& new_attribute(tessera_call& c, const char* name, tessera_attribute_kind kind) {
  const std::string key = text_or_empty(name);
  for (tessera_attribute& a : c.attributes)
    if (a.name == key) {
      a = {};
      a.name = key;
      a.kind = kind;
      return a;
    }
  tessera_attribute& a = c.attributes.emplace_back();
  a.name = key;
  a.kind = kind;
  return a;
}

void set_strings(tessera_attribute& a, const char* const* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) a.texts.push_back(text_or_empty(values[i]));
  for (const std::string& s : a.texts) a.strings.push_back(s.c_str());
}

const tessera_type* type_at(const std::deque<tessera_tensor>& list, int32_t index) {
  if (index < 0 || static_cast<size_t>(index) >= list.size()) return nullptr;
  return &list[static_cast<size_t>(index)].type;
}

void set_type(tessera_tensor& t, tessera_dtype dtype, int32_t rank, const int64_t* shape) {
  t.shape.assign(shape, shape + rank);
  t.type = {dtype, rank, t.shape.data()};
}

int32_t count_of(size_t n) {
  return static_cast<int32_t>(n);
}

}  // namespace

const tessera_attribute* tessera_call::find(const char* attribute) const {
  if (attribute == nullptr) return nullptr;
  for (const tessera_attribute& a : attributes)
    if (a.name == attribute) return &a;
  return nullptr;
}

void tessera_call::fail(const std::string& text) {
  if (failed) return;
  failed = true;
  error = text.empty() ? "no reason given" : text;
}

extern "C" {

void* tessera_call_user(const tessera_call* c) {
  return c->op ? c->op->user : nullptr;
}
const char* tessera_call_domain(const tessera_call* c) {
  return c->domain.c_str();
}
const char* tessera_call_name(const tessera_call* c) {
  return c->name.c_str();
}
int32_t tessera_call_version(const tessera_call* c) {
  return c->version;
}
int32_t tessera_call_inputs(const tessera_call* c) {
  return count_of(c->inputs.size());
}
int32_t tessera_call_outputs(const tessera_call* c) {
  return count_of(c->outputs.size());
}
const tessera_type* tessera_call_input(const tessera_call* c, int32_t index) {
  return type_at(c->inputs, index);
}
const tessera_type* tessera_call_output(const tessera_call* c, int32_t index) {
  return type_at(c->outputs, index);
}

int32_t tessera_call_attributes(const tessera_call* c) {
  return count_of(c->attributes.size());
}
const char* tessera_call_attribute_name(const tessera_call* c, int32_t index) {
  if (index < 0 || static_cast<size_t>(index) >= c->attributes.size()) return nullptr;
  return c->attributes[static_cast<size_t>(index)].name.c_str();
}
tessera_attribute_kind tessera_call_attribute_kind(const tessera_call* c, const char* name) {
  const tessera_attribute* a = c->find(name);
  return a ? a->kind : TESSERA_NO_ATTRIBUTE;
}
const float* tessera_call_floats(const tessera_call* c, const char* name, int64_t* count) {
  const tessera_attribute* a = c->find(name);
  if (!a || (a->kind != TESSERA_FLOAT && a->kind != TESSERA_FLOATS)) return nullptr;
  if (count) *count = static_cast<int64_t>(a->floats.size());
  return a->floats.data();
}
const int64_t* tessera_call_ints(const tessera_call* c, const char* name, int64_t* count) {
  const tessera_attribute* a = c->find(name);
  if (!a || (a->kind != TESSERA_INT && a->kind != TESSERA_INTS)) return nullptr;
  if (count) *count = static_cast<int64_t>(a->ints.size());
  return a->ints.data();
}
const char* const* tessera_call_strings(const tessera_call* c, const char* name, int64_t* count) {
  const tessera_attribute* a = c->find(name);
  if (!a || (a->kind != TESSERA_STRING && a->kind != TESSERA_STRINGS)) return nullptr;
  if (count) *count = static_cast<int64_t>(a->strings.size());
  return a->strings.data();
}

void tessera_fail(tessera_call* c, const char* text) {
  c->fail(text_or_empty(text));
}

void tessera_call_set_output(tessera_call* c, int32_t index, tessera_dtype dtype, int32_t rank,
                             const int64_t* shape) {
  if (index < 0 || index >= kMaxOutputs)
    return c->fail("setup: output " + std::to_string(index) + " is out of range");
  if (rank < 0 || rank > kMaxRank || (rank > 0 && shape == nullptr))
    return c->fail("setup: output " + std::to_string(index) + " has rank " + std::to_string(rank));
  if (dtype < TESSERA_F32 || dtype > TESSERA_BOOL)
    return c->fail("setup: output " + std::to_string(index) + " has no dtype");
  for (int32_t d = 0; d < rank; ++d)
    if (shape[d] < 0)
      return c->fail("setup: output " + std::to_string(index) + " has a negative dimension");
  if (static_cast<size_t>(index) >= c->outputs.size())
    c->outputs.resize(static_cast<size_t>(index) + 1);
  set_type(c->outputs[static_cast<size_t>(index)], dtype, rank, shape);
}
void tessera_call_want_seed(tessera_call* c) {
  c->wants_seed = true;
}
void tessera_call_set_scratch(tessera_call* c, int64_t bytes) {
  if (bytes < 0 || bytes > int64_t{1} << 40)
    return c->fail("prepare: scratch of " + std::to_string(bytes) + " bytes");
  c->scratch = bytes;
}
void tessera_call_set_composition(tessera_call* c, const char* text) {
  c->composition = text_or_empty(text);
}
void tessera_call_add_update(tessera_call* c, int32_t input, tessera_update_kind kind) {
  if (input < 0 || static_cast<size_t>(input) >= c->inputs.size())
    return c->fail("compose: an update of input " + std::to_string(input) + ", which is not there");
  if (kind < TESSERA_EVERY_MICRO_BATCH || kind > TESSERA_FOR_GRADIENTS)
    return c->fail("compose: an update of unknown kind");
  c->updates.push_back({input, kind});
}
void tessera_call_set_work(tessera_call* c, int64_t flops, int64_t bytes) {
  c->flops = std::max<int64_t>(flops, 0);
  c->bytes = std::max<int64_t>(bytes, 0);
}

tessera_gradient* tessera_call_add_gradient(tessera_call* c, const char* domain, const char* name,
                                            int32_t version) {
  tessera_gradient& g = c->gradients.emplace_back();
  g.call.domain = text_or_empty(domain);
  g.call.name = text_or_empty(name);
  g.call.version = version;
  return &g;
}
void tessera_gradient_set_floats(tessera_gradient* g, const char* name, int32_t is_list,
                                 const float* values, int64_t count) {
  tessera_call_add_floats(&g->call, name, is_list, values, count);
}
void tessera_gradient_set_ints(tessera_gradient* g, const char* name, int32_t is_list,
                               const int64_t* values, int64_t count) {
  tessera_call_add_ints(&g->call, name, is_list, values, count);
}
void tessera_gradient_set_strings(tessera_gradient* g, const char* name, int32_t is_list,
                                  const char* const* values, int64_t count) {
  tessera_call_add_strings(&g->call, name, is_list, values, count);
}
void tessera_gradient_copy_attributes(tessera_gradient* g, const tessera_call* c) {
  for (const tessera_attribute& a : c->attributes) {
    tessera_attribute& copy = new_attribute(g->call, a.name.c_str(), a.kind);
    copy.floats = a.floats;
    copy.ints = a.ints;
    set_strings(copy, a.strings.data(), static_cast<int64_t>(a.strings.size()));
  }
}
void tessera_gradient_set_input(tessera_gradient* g, int32_t index, tessera_gradient_source from,
                                int32_t from_index) {
  if (index < 0 || index >= kMaxOutputs) return g->call.fail("a gradient input is out of range");
  if (static_cast<size_t>(index) >= g->inputs.size())
    g->inputs.resize(static_cast<size_t>(index) + 1);
  g->inputs[static_cast<size_t>(index)] = {from, from_index};
}
void tessera_gradient_set_output(tessera_gradient* g, int32_t index, int32_t forward_input) {
  if (index < 0 || index >= kMaxOutputs) return g->call.fail("a gradient output is out of range");
  if (static_cast<size_t>(index) >= g->outputs.size())
    g->outputs.resize(static_cast<size_t>(index) + 1, -1);
  g->outputs[static_cast<size_t>(index)] = forward_input;
}

// The side of the core.

tessera_call* tessera_call_new(const tessera_op* op) {
  auto* c = new tessera_call();
  c->op = op;
  c->domain = op->domain;
  c->name = op->name;
  c->version = op->version;
  return c;
}
void tessera_call_delete(tessera_call* c) {
  delete c;
}
void tessera_call_add_input(tessera_call* c, tessera_dtype dtype, int32_t rank,
                            const int64_t* shape) {
  set_type(c->inputs.emplace_back(), dtype, rank, shape);
}
void tessera_call_add_floats(tessera_call* c, const char* name, int32_t is_list,
                             const float* values, int64_t count) {
  new_attribute(*c, name, is_list ? TESSERA_FLOATS : TESSERA_FLOAT)
      .floats.assign(values, values + count);
}
void tessera_call_add_ints(tessera_call* c, const char* name, int32_t is_list,
                           const int64_t* values, int64_t count) {
  new_attribute(*c, name, is_list ? TESSERA_INTS : TESSERA_INT).ints.assign(values, values + count);
}
void tessera_call_add_strings(tessera_call* c, const char* name, int32_t is_list,
                              const char* const* values, int64_t count) {
  set_strings(new_attribute(*c, name, is_list ? TESSERA_STRINGS : TESSERA_STRING), values, count);
}

int tessera_call_setup(tessera_call* c) {
  c->outputs.clear();
  c->wants_seed = false;
  if (guarded(c, "setup", [&] { c->op->setup(c); }) != 0) return 1;
  if (c->outputs.empty()) c->fail("setup gave no outputs");
  for (size_t i = 0; i < c->outputs.size(); ++i)
    if (c->outputs[i].type.dtype < 0) c->fail("setup did not set output " + std::to_string(i));
  return c->failed ? 1 : 0;
}
int tessera_call_prepare(tessera_call* c, void** instance) {
  *instance = nullptr;
  if (!c->op->prepare) return 0;
  return guarded(c, "prepare", [&] { *instance = c->op->prepare(c); });
}
void tessera_call_destroy(tessera_call* c, void* instance) {
  if (c->op->destroy && instance) guarded(c, "destroy", [&] { c->op->destroy(instance); });
}
int tessera_call_compose(tessera_call* c) {
  c->composition.clear();
  c->updates.clear();
  if (guarded(c, "compose", [&] { c->op->compose(c); }) != 0) return 1;
  if (c->composition.empty()) c->fail("compose gave no composition");
  return c->failed ? 1 : 0;
}
int tessera_call_gradients(tessera_call* c) {
  c->gradients.clear();
  if (!c->op->gradients) return 0;
  if (guarded(c, "gradients", [&] { c->op->gradients(c); }) != 0) return 1;
  for (const tessera_gradient& g : c->gradients)
    if (g.call.failed) c->fail(g.call.error);
  return c->failed ? 1 : 0;
}
int tessera_call_work(tessera_call* c, int64_t* flops, int64_t* bytes) {
  if (guarded(c, "work", [&] { c->op->work(c); }) != 0) return 1;
  *flops = c->flops;
  *bytes = c->bytes;
  return 0;
}
void tessera_run_compute(const tessera_op* op, const tessera_run* run) {
  try {
    op->compute(run);
  } catch (const std::exception& e) {
    run->fail(run, (std::string("exception in compute: ") + e.what()).c_str());
  } catch (...) {
    run->fail(run, "unknown exception in compute");
  }
}

const char* tessera_call_error(const tessera_call* c) {
  return c->error.c_str();
}
int32_t tessera_call_wants_seed(const tessera_call* c) {
  return c->wants_seed ? 1 : 0;
}
int64_t tessera_call_scratch(const tessera_call* c) {
  return c->scratch;
}
const char* tessera_call_composition(const tessera_call* c) {
  return c->composition.c_str();
}
int32_t tessera_call_update_count(const tessera_call* c) {
  return count_of(c->updates.size());
}
int32_t tessera_call_update_at(const tessera_call* c, int32_t index, int32_t* kind) {
  if (index < 0 || static_cast<size_t>(index) >= c->updates.size()) return -1;
  const tessera_call::Update& u = c->updates[static_cast<size_t>(index)];
  *kind = u.kind;
  return u.input;
}
int32_t tessera_call_gradient_count(const tessera_call* c) {
  return count_of(c->gradients.size());
}
const tessera_gradient* tessera_call_gradient_at(const tessera_call* c, int32_t index) {
  if (index < 0 || static_cast<size_t>(index) >= c->gradients.size()) return nullptr;
  return &c->gradients[static_cast<size_t>(index)];
}
const tessera_call* tessera_gradient_call(const tessera_gradient* g) {
  return &g->call;
}
int32_t tessera_gradient_inputs(const tessera_gradient* g) {
  return count_of(g->inputs.size());
}
int32_t tessera_gradient_outputs(const tessera_gradient* g) {
  return count_of(g->outputs.size());
}
int32_t tessera_gradient_input(const tessera_gradient* g, int32_t index, int32_t* from_index) {
  if (index < 0 || static_cast<size_t>(index) >= g->inputs.size()) return -1;
  const tessera_gradient::From& from = g->inputs[static_cast<size_t>(index)];
  *from_index = from.index;
  return from.source;
}
int32_t tessera_gradient_output(const tessera_gradient* g, int32_t index) {
  if (index < 0 || static_cast<size_t>(index) >= g->outputs.size()) return -1;
  return g->outputs[static_cast<size_t>(index)];
}

}  // extern "C"
