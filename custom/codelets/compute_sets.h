// SPDX-License-Identifier: Apache-2.0
// Vertices as they are described on a graph of Poplar: compute sets, fields and what they are
// connected to. Errors are std::runtime_error in the words of the user's program.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "custom/codelets/plan.h"

namespace tessera::codelets {

struct VariableInfo {
  int32_t dtype = 0;  // tessera_dtype
  uint64_t element_bytes = 0;
  std::vector<int64_t> shape;
};
using Variables = std::function<VariableInfo(uint32_t)>;

// What one field of a vertex is set to.
struct FieldValue {
  std::vector<Pieces> rows;   // of a connected field: one, or one per element of a list
  std::vector<bool> given;    // which of them
  std::vector<double> reals;  // of a state
  std::vector<int64_t> ints;
  bool connected = false, set = false;
};

struct VertexDescription {
  const tessera_vertex* type = nullptr;
  std::shared_ptr<const Library> library;
  std::vector<FieldValue> fields;
};

struct Values {
  const double* reals = nullptr;
  const int64_t* ints = nullptr;
  int64_t count = 0;
};

class ComputeSets {
 public:
  void add(std::shared_ptr<const Library> library);
  int64_t add_set(const std::string& name);
  int64_t add_vertex(int64_t set, const std::string& name);
  // `element` -1: the whole field. More than one row for lists only; one row is cut for a list by
  // `first_dim` rows.
  void connect(int64_t vertex, const std::string& field, int64_t element, int32_t type,
               std::vector<Pieces> rows, int64_t first_dim);
  void set_size(int64_t vertex, const std::string& field, int64_t size);
  void set_value(int64_t vertex, const std::string& field, int64_t element, Values values);

  // The set in the form in which it runs.
  std::unique_ptr<Plan> plan(int64_t set, const Variables& variables) const;

 private:
  struct Set {
    std::string name;
    std::vector<int64_t> vertices;
  };
  struct FieldRef {
    const tessera_field& field;
    FieldValue& value;
  };
  FieldRef find(int64_t vertex, const std::string& field);

  std::vector<std::shared_ptr<const Library>> libraries_;
  std::vector<Set> sets_;
  std::vector<VertexDescription> vertices_;
};

// Types of elements, in the order of type_code (codelet_table.h) and of TESSERA_POPLAR_TYPES.
inline constexpr std::string_view kTypeNames[] = {
    "float",   "half",        "int",           "unsigned int", "short",     "unsigned short",
    "char",    "signed char", "unsigned char", "bool",         "long long", "unsigned long long",
    "bfloat16"};
std::string type_name(int32_t type);

}  // namespace tessera::codelets
