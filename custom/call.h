// SPDX-License-Identifier: Apache-2.0
// What the handles of tessera/abi.h are.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "custom/host.h"

struct tessera_attribute {
  std::string name;
  tessera_attribute_kind kind = TESSERA_NO_ATTRIBUTE;
  std::vector<float> floats;
  std::vector<int64_t> ints;
  std::deque<std::string> texts;
  std::vector<const char*> strings;  // into texts
};

struct tessera_tensor {
  std::vector<int64_t> shape;
  tessera_type type{-1, 0, nullptr};  // dtype -1: not set
};

struct tessera_call {
  const tessera_op* op = nullptr;
  std::string domain, name;
  int32_t version = 0;
  std::deque<tessera_tensor> inputs, outputs;
  std::deque<tessera_attribute> attributes;
  std::string error, composition;
  bool failed = false, wants_seed = false;
  int64_t scratch = 0, flops = 0, bytes = 0;
  std::deque<tessera_gradient> gradients;
  struct Update {
    int32_t input;
    tessera_update_kind kind;
  };
  std::vector<Update> updates;

  const tessera_attribute* find(const char* attribute) const;
  void fail(const std::string& text);
};

struct tessera_gradient {
  struct From {
    int32_t source = -1, index = 0;
  };
  tessera_call call;  // the op's name and attributes
  std::vector<From> inputs;
  std::vector<int32_t> outputs;
};
