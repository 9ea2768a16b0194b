// SPDX-License-Identifier: Apache-2.0
// The inputs or outputs of an op, by number.
#pragma once

#include <map>
#include <vector>

#include "tensor.hpp"

namespace popart {

class TensorIndexMap {
 public:
  Tensor* tensor(int i) const {
    const auto at = tensors_.find(i);
    if (at == tensors_.end()) throw error("No tensor at index {}", i);
    return at->second;
  }
  const TensorId& id(int i) const { return tensor(i)->id; }
  bool hasIndex(int i) const { return tensors_.count(i) > 0; }
  int n() const { return static_cast<int>(tensors_.size()); }
  int maxIndex() const { return tensors_.empty() ? -1 : tensors_.rbegin()->first; }
  void insert(int i, Tensor* t) { tensors_[i] = t; }
  void reset(int i, Tensor* t) { tensors_[i] = t; }
  void erase(int i) { tensors_.erase(i); }
  void clear() { tensors_.clear(); }
  const std::map<int, Tensor*>& tensorMap() const { return tensors_; }
  std::map<int, TensorId> tensorIdMap() const {
    std::map<int, TensorId> out;
    for (const auto& t : tensors_) out[t.first] = t.second->id;
    return out;
  }
  std::vector<Tensor*> tensors() const {
    std::vector<Tensor*> out;
    for (const auto& t : tensors_) out.push_back(t.second);
    return out;
  }
  bool contains(const Tensor* t) const {
    for (const auto& x : tensors_)
      if (x.second == t) return true;
    return false;
  }
  std::vector<int> indices(const Tensor* t) const {
    std::vector<int> out;
    for (const auto& x : tensors_)
      if (x.second == t) out.push_back(x.first);
    return out;
  }
  const TensorInfo& info(int i) const { return tensor(i)->info; }

 private:
  std::map<int, Tensor*> tensors_;
};

}  // namespace popart
