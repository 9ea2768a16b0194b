// SPDX-License-Identifier: Apache-2.0
// Names under which creators are kept, and the types of the border in PopART's words.
#pragma once

#include <string>

#include "../../../abi.h"
#include "../../detail/recorder.h"
#include "../datatype.hpp"
#include "../error.hpp"
#include "../operatoridentifier.hpp"

namespace popart {
namespace detail {

inline std::string key_of(const OperatorIdentifier& id) {
  return id.domain + ' ' + id.type + ' ' + std::to_string(id.version);
}

inline DataType data_type(int32_t t) {
  switch (t) {
    case TESSERA_F32:
      return DataType::FLOAT;
    case TESSERA_F16:
      return DataType::FLOAT16;
    case TESSERA_BF16:
      return DataType::BFLOAT16;
    case TESSERA_F64:
      return DataType::DOUBLE;
    case TESSERA_I64:
      return DataType::INT64;
    case TESSERA_I32:
      return DataType::INT32;
    case TESSERA_I16:
      return DataType::INT16;
    case TESSERA_I8:
      return DataType::INT8;
    case TESSERA_U8:
      return DataType::UINT8;
    case TESSERA_BOOL:
      return DataType::BOOL;
    default:
      return DataType::UNDEFINED;
  }
}

inline tessera_dtype border_type(DataType t) {
  switch (t) {
    case DataType::FLOAT:
    case DataType::DOUBLE:
      return TESSERA_F32;
    case DataType::FLOAT16:
      return TESSERA_F16;
    case DataType::BFLOAT16:
      return TESSERA_BF16;
    case DataType::INT64:
    case DataType::UINT64:
      return TESSERA_I64;
    case DataType::INT32:
    case DataType::UINT32:
      return TESSERA_I32;
    case DataType::INT16:
    case DataType::UINT16:
      return TESSERA_I16;
    case DataType::INT8:
      return TESSERA_I8;
    case DataType::UINT8:
      return TESSERA_U8;
    case DataType::BOOL:
      return TESSERA_BOOL;
    default:
      throw error("tensors of type {} are not supported", t);
  }
}

}  // namespace detail
}  // namespace popart
