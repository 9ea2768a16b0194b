// SPDX-License-Identifier: Apache-2.0
// A call of a custom op, as the core asks the library about it. What the library says is held
// against our limits; what it does wrong is a UserError that names the op and its file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/attrs.h"
#include "custom/host.h"
#include "ir/types.h"

namespace tessera {

class CustomCall {
 public:
  // `attributes` is a list of [name, value]. `inputs` must be types that ops know.
  CustomCall(const std::string& domain, const std::string& name, int64_t version,
             const std::vector<TensorType>& inputs, const Arg& attributes);

  const tessera_op& op() const { return *op_; }
  tessera_call* get() const { return call_.get(); }
  std::string label() const;    // domain.name:version
  std::string library() const;  // file name

  std::vector<TensorType> setup();  // types of the outputs
  // Throws the reason if an answer is not 0.
  void check(int answer) const;

 private:
  struct Delete {
    void operator()(tessera_call* c) const { tessera_call_delete(c); }
  };
  const tessera_op* op_ = nullptr;
  std::unique_ptr<tessera_call, Delete> call_;
};

// Whether equal calls of the op of a node may give other results.
bool custom_varies(const Args& args);
// Of the op of a step: domain.name:version, and the file of its library.
std::string custom_label(const Args& args);
std::string custom_library(const Args& args);

// Known ops and loaded libraries, for the message about one that is missing.
std::string describe_custom_ops(const std::string& domain, const std::string& name);

}  // namespace tessera
