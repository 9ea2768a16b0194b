// SPDX-License-Identifier: Apache-2.0
// Which ops there are. Objects of OpCreator at namespace scope say so when a library is loaded;
// each op is then one of Tessera's registry (detail/bridge.hpp).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "attributes.hpp"
#include "detail/bridge.hpp"
#include "op.hpp"
#include "opdefinition.hpp"

namespace popart {

template <typename OP>
class OpCreator {
 public:
  explicit OpCreator(const OpDefinitions& defs) {
    for (const auto& d : defs)
      detail::add_op(d.first, [](const OpCreatorInfo& info) {
        return std::unique_ptr<Op>(new OP(info.opid, info.settings));
      });
  }
  // Only for a bool: a function without captures would become one.
  template <typename B, typename = typename std::enable_if<std::is_same<B, bool>::value>::type>
  OpCreator(const OpDefinitions& defs, B) : OpCreator(defs) {}
  OpCreator(const OpDefinitions& defs, const detail::OpFunc& func, bool isPublic = true) {
    (void)isPublic;
    for (const auto& d : defs) detail::add_op(d.first, func);
  }
  OpCreator(const OpDefinitions& defs, const std::function<Op*(const OpCreatorInfo&, Graph&)>& func,
            bool isPublic = true) {
    (void)isPublic;
    for (const auto& d : defs)
      detail::add_op(d.first, [func](const OpCreatorInfo& info) {
        return std::unique_ptr<Op>(func(info, info.settings.graph.get()));
      });
  }
};

}  // namespace popart
