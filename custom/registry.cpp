// SPDX-License-Identifier: Apache-2.0
// The registry of custom ops: one per process, whoever loads the libraries and in which order. The
// first op of a name and version counts.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>

#include "custom/host.h"

namespace {

struct Entry {
  tessera_op op{};
  std::string domain, name, library;
};

struct Registry {
  std::mutex lock;
  std::deque<Entry> ops;  // adding one leaves the others where they are
  std::deque<std::string> refused;
};

// Never destroyed: libraries may ask while the process ends.
Registry& registry() {
  static auto* r = new Registry();
  return *r;
}

// The file that `address` is of. It stays loaded from now on, whatever happens to its handles:
// programs hold pointers into it.
std::string pin_library(const void* address) {
  Dl_info info;
  if (address == nullptr || dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
  dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  return info.dli_fname;
}

// Why an op can't be used; "" if it can.
std::string problem_of(const tessera_op& op) {
  if (op.abi != TESSERA_OPS_ABI)
    return "it is built for version " + std::to_string(op.abi) +
           " of the interface of custom ops, and this is version " +
           std::to_string(TESSERA_OPS_ABI) + ". Try: building it again";
  if (op.size < sizeof(tessera_op)) return "its description is too short";
  if (op.domain == nullptr || op.name == nullptr || *op.name == '\0') return "it has no name";
  if (op.version < 0) return "its version is negative";
  if (op.setup == nullptr) return "it has no setup";
  if ((op.compute == nullptr) == (op.compose == nullptr))
    return op.compute == nullptr ? "it has neither compute nor compose"
                                 : "it has both compute and compose";
  return {};
}

}  // namespace

extern "C" {

int tessera_register_op(const tessera_op* op) {
  if (op == nullptr) return TESSERA_REFUSED;
  Registry& r = registry();
  const std::lock_guard guard(r.lock);
  // Of another version of the interface only what stands before the names is known to be there.
  const std::string problem = problem_of(*op);
  if (!problem.empty()) {
    const bool named = op->abi == TESSERA_OPS_ABI && op->domain && op->name;
    const std::string what =
        named ? std::string("op ") + op->domain + "." + op->name : std::string("an op");
    r.refused.push_back(what + " of " + pin_library(op) + " is not used: " + problem);
    return TESSERA_REFUSED;
  }
  const void* address = op->origin ? op->origin : reinterpret_cast<const void*>(op->setup);
  const std::string library = pin_library(address);
  for (const Entry& e : r.ops)
    if (e.domain == op->domain && e.name == op->name && e.op.version == op->version) {
      if (e.library != library)
        r.refused.push_back("op " + e.domain + "." + e.name + ":" + std::to_string(op->version) +
                            " of " + library + " is not used: " + e.library + " has it already");
      return TESSERA_KNOWN;
    }
  Entry& e = r.ops.emplace_back();
  e.op = *op;
  e.domain = op->domain;
  e.name = op->name;
  e.library = library;
  e.op.domain = e.domain.c_str();
  e.op.name = e.name.c_str();
  return TESSERA_REGISTERED;
}

const tessera_op* tessera_find_op(const char* domain, const char* name, int32_t version) {
  Registry& r = registry();
  const std::lock_guard guard(r.lock);
  const tessera_op* best = nullptr;
  for (const Entry& e : r.ops)
    if (e.domain == domain && e.name == name && e.op.version <= version &&
        (best == nullptr || e.op.version > best->version))
      best = &e.op;
  return best;
}

int64_t tessera_op_count(void) {
  Registry& r = registry();
  const std::lock_guard guard(r.lock);
  return static_cast<int64_t>(r.ops.size());
}

const tessera_op* tessera_op_at(int64_t index) {
  Registry& r = registry();
  const std::lock_guard guard(r.lock);
  if (index < 0 || index >= static_cast<int64_t>(r.ops.size())) return nullptr;
  return &r.ops[static_cast<size_t>(index)].op;
}

const char* tessera_op_library(const tessera_op* op) {
  Registry& r = registry();
  const std::lock_guard guard(r.lock);
  for (const Entry& e : r.ops)
    if (&e.op == op) return e.library.c_str();
  return "";
}

int64_t tessera_refused_count(void) {
  Registry& r = registry();
  const std::lock_guard guard(r.lock);
  return static_cast<int64_t>(r.refused.size());
}

const char* tessera_refused_at(int64_t index) {
  Registry& r = registry();
  const std::lock_guard guard(r.lock);
  if (index < 0 || index >= static_cast<int64_t>(r.refused.size())) return nullptr;
  return r.refused[static_cast<size_t>(index)].c_str();
}

}  // extern "C"
