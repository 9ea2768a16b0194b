// SPDX-License-Identifier: Apache-2.0
// Where the tensors of an op are while its Opx grows: in a recorder of its own.
#pragma once

#include <map>
#include <string>

#include "../../poplar/Graph.hpp"
#include "../error.hpp"
#include "../ir.hpp"
#include "../names.hpp"
#include "../tensorinfo.hpp"

namespace popart {
namespace popx {

inline poplar::Type popType(DataType t) {
  switch (t) {
    case DataType::FLOAT:
    case DataType::DOUBLE:
      return poplar::FLOAT;
    case DataType::FLOAT16:
      return poplar::HALF;
    case DataType::BFLOAT16:
      return poplar::BFLOAT16;
    case DataType::INT32:
      return poplar::INT;
    case DataType::UINT32:
      return poplar::UNSIGNED_INT;
    case DataType::INT64:
      return poplar::LONGLONG;
    case DataType::UINT64:
      return poplar::UNSIGNED_LONGLONG;
    case DataType::INT16:
      return poplar::SHORT;
    case DataType::UINT16:
      return poplar::UNSIGNED_SHORT;
    case DataType::INT8:
      return poplar::SIGNED_CHAR;
    case DataType::UINT8:
      return poplar::UNSIGNED_CHAR;
    case DataType::BOOL:
      return poplar::BOOL;
    default:
      throw error("there is no poplar::Type for {}", t);
  }
}
inline poplar::Type popType(const TensorInfo& info) {
  return popType(info.dataType());
}

class Devicex {
 public:
  explicit Devicex(Ir& ir) : recorder_(tessera_rec_new()), graph_(recorder_), ir_(ir) {}
  ~Devicex() { tessera_rec_delete(recorder_); }
  Devicex(const Devicex&) = delete;
  Devicex& operator=(const Devicex&) = delete;

  poplar::Graph& graph() { return graph_; }
  const Ir& ir() const { return ir_; }
  Devicex& lowering() { return *this; }
  int64_t getReplicationFactor() const { return tessera_fact("replicas", 1); }

  std::map<TensorId, poplar::Tensor> tensors;
  std::map<std::string, poplar::OptionFlags> options;
  poplar::OptionFlags lstmOptions, matmulOptions, reductionOptions, sliceOptions, gclOptions;
  const Devicex* getDeviceInfo() const { return this; }

 private:
  tessera_recorder* recorder_;
  poplar::Graph graph_;
  Ir& ir_;
};

}  // namespace popx
}  // namespace popart
