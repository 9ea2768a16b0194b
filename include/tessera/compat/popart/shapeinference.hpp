// SPDX-License-Identifier: Apache-2.0
// Functions that tell types to PopART's builder before setup. setup decides here, so they are kept
// only to refuse a second one for the same op.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "attributes.hpp"
#include "detail/keys.hpp"
#include "operatoridentifier.hpp"
#include "tensorinfo.hpp"

namespace popart {

class ShapeInferenceContext {
 public:
  ShapeInferenceContext(const std::map<int, TensorInfo>& inputs, const Attributes& attributes,
                        int outputs)
      : inputs_(inputs), attributes_(attributes), count_(outputs) {}

  const TensorInfo& inInfo(int i) const { return inputs_.at(i); }
  const Shape& inShape(int i) const { return inInfo(i).shape(); }
  DataType inType(int i) const { return inInfo(i).dataType(); }
  TensorInfo& outInfo(int i) { return outputs_[i]; }
  template <typename T>
  T getAttribute(const std::string& key) const {
    return attributes_.getAttribute<T>(key);
  }
  template <typename T>
  T getAttribute(const std::string& key, const T& otherwise) const {
    return attributes_.getAttribute<T>(key, otherwise);
  }
  bool hasAttribute(const std::string& key) const { return attributes_.hasAttribute(key); }
  const Attributes& getAttributes() const { return attributes_; }
  int getNumOutputs() const { return count_; }
  int getNumInputs() const { return static_cast<int>(inputs_.size()); }

 private:
  std::map<int, TensorInfo> inputs_, outputs_;
  Attributes attributes_;
  int count_;
};

using ShapeInferenceFunction = std::function<void(ShapeInferenceContext&)>;

class RegisterShapeInferenceFunction {
 public:
  RegisterShapeInferenceFunction(const OperatorIdentifier& id, const ShapeInferenceFunction&) {
    if (tessera_creator_add("shape", detail::key_of(id).c_str(), nullptr))
      throw error("A shape inference function for operator {} already exists.", id);
  }
};

}  // namespace popart
