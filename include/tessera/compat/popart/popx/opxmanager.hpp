// SPDX-License-Identifier: Apache-2.0
// Which Opx belongs to which op. Objects of OpxCreator at namespace scope say so when a library is
// loaded.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../detail/keys.hpp"
#include "opx.hpp"

namespace popart {
namespace popx {

using OpxFactoryFunc = std::function<std::unique_ptr<Opx>(Op*, Devicex*)>;

template <typename OPX>
class OpxCreator {
 public:
  OpxCreator(const OperatorIdentifier& id) { add(id, plain()); }
  OpxCreator(const std::vector<OperatorIdentifier>& ids) {
    for (const OperatorIdentifier& id : ids) add(id, plain());
  }
  OpxCreator(const OperatorIdentifier& id, const OpxFactoryFunc& func) { add(id, func); }
  // An op that must be gone before it is computed, and what to say if it is not.
  OpxCreator(const OperatorIdentifier& id, const std::string& errMsg) {
    add(id, [errMsg](Op*, Devicex*) -> std::unique_ptr<Opx> { throw error(errMsg); });
  }

 private:
  static OpxFactoryFunc plain() {
    return [](Op* op, Devicex* d) { return std::unique_ptr<Opx>(new OPX(op, d)); };
  }
  // The first one stays: the library may be unloaded never, so the function lives on.
  static void add(const OperatorIdentifier& id, const OpxFactoryFunc& func) {
    std::unique_ptr<OpxFactoryFunc> kept(new OpxFactoryFunc(func));
    if (!tessera_creator_add("opx", detail::key_of(id).c_str(), kept.get())) kept.release();
  }
};

class OpxManager {
 public:
  static std::unique_ptr<Opx> createOpx(Op* op, Devicex* device) {
    void* found = tessera_creator_find("opx", detail::key_of(op->opid).c_str());
    if (!found) return nullptr;
    return (*static_cast<OpxFactoryFunc*>(found))(op, device);
  }
};

}  // namespace popx
}  // namespace popart
