// SPDX-License-Identifier: Apache-2.0
// Domain, name and version of an op.
#pragma once

#include <ostream>
#include <string>

#include "names.hpp"

namespace popart {

struct NumInputs {
  int min, max;
  NumInputs() : min(0), max(0) {}
  NumInputs(int n) : min(n), max(n) {}
  NumInputs(int low, int high) : min(low), max(high) {}
};

struct OperatorIdentifier {
  OperatorIdentifier(const OpDomain& d, const OpType& t, OpVersion v, NumInputs in = {},
                     int out = 0)
      : domain(d.empty() ? OpDomain("ai.onnx") : d),
        type(t),
        version(v),
        numInputs(in),
        numOutputs(out) {}

  friend bool operator==(const OperatorIdentifier& a, const OperatorIdentifier& b) {
    return a.domain == b.domain && a.type == b.type && a.version == b.version;
  }
  friend bool operator!=(const OperatorIdentifier& a, const OperatorIdentifier& b) {
    return !(a == b);
  }
  friend bool operator<(const OperatorIdentifier& a, const OperatorIdentifier& b) {
    if (a.domain != b.domain) return a.domain < b.domain;
    return a.type != b.type ? a.type < b.type : a.version < b.version;
  }

  OpDomain domain;
  OpType type;
  OpVersion version;
  NumInputs numInputs;
  int numOutputs;
};

inline std::ostream& operator<<(std::ostream& os, const OperatorIdentifier& id) {
  return os << id.domain << "." << id.type << ":" << id.version;
}

struct AiGraphcoreOpIdV1 : OperatorIdentifier {
  AiGraphcoreOpIdV1(const OpType& t, NumInputs in = {}, int out = 0)
      : OperatorIdentifier("ai.graphcore", t, 1, in, out) {}
};

}  // namespace popart
