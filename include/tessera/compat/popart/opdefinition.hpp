// SPDX-License-Identifier: Apache-2.0
// What an op says of its inputs, outputs and attributes. Documentation: nothing is checked by it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "attributes.hpp"
#include "op.hpp"

namespace popart {

class OpDefinition {
 public:
  using DataTypes = std::vector<DataType>;

  struct Input {
    Input(const std::string& name, const DataTypes& types, bool constant = false)
        : name(name), supportedTensors(types), constant(constant) {}
    std::string name;
    DataTypes supportedTensors;
    bool constant;
  };
  struct Output {
    Output(const std::string& name, const DataTypes& types) : name(name), supportedTensors(types) {}
    std::string name;
    DataTypes supportedTensors;
  };
  struct Attribute {
    Attribute(const std::string& regex) : supportedValuesRegex(regex) {}
    std::string supportedValuesRegex;
  };
  using Inputs = std::vector<Input>;
  using Outputs = std::vector<Output>;
  using Attributes = std::map<std::string, Attribute>;

  OpDefinition() {}
  OpDefinition(const Inputs& i, const Outputs& o, const Attributes& a)
      : inputs(i), outputs(o), attributes(a) {}

  Inputs inputs;
  Outputs outputs;
  Attributes attributes;
};

using OpDefinitions = std::map<OperatorIdentifier, OpDefinition>;

// What a creator of ops is told.
class OpCreatorInfo {
 public:
  OpCreatorInfo(const OperatorIdentifier& id, const Op::Settings& s, const Attributes& a,
                const std::vector<Tensor*>& inputs)
      : opid(id), settings(s), attributes(a), inputs_(inputs) {}

  const OperatorIdentifier& opid;
  const Op::Settings& settings;
  const Attributes& attributes;

  bool hasInputTensor(int i) const { return i >= 0 && i < static_cast<int>(inputs_.size()); }
  const TensorInfo& getInputTensorInfo(int i) const { return input(i).info; }
  TensorId getInputTensorId(int i) const { return input(i).id; }
  bool hasInputIds() const { return !inputs_.empty(); }
  std::vector<TensorId> getInputIds() const {
    std::vector<TensorId> out;
    for (const Tensor* t : inputs_) out.push_back(t->id);
    return out;
  }
  // Values are known only when the program runs.
  template <typename T>
  T getInputScalarValue(int i) const {
    throw error("The value of input {} of {} is not known when the op is made", i, opid);
  }
  template <typename T>
  T getInputScalarValue(int, T otherwise) const {
    return otherwise;
  }

 private:
  const Tensor& input(int i) const {
    if (!hasInputTensor(i)) throw error("{} has no input {}", opid, i);
    return *inputs_[static_cast<std::size_t>(i)];
  }
  const std::vector<Tensor*>& inputs_;
};

}  // namespace popart
