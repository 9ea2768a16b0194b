// SPDX-License-Identifier: Apache-2.0
// Custom ops: what capture asks the registry.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/error.h"
#include "bindings.h"
#include "session/custom_ops.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessera {
namespace {

using PyType = std::tuple<std::string, Dims>;  // dtype, shape

TensorType type_of(const PyType& t) {
  const auto dtype = parse_dtype(std::get<0>(t));
  user_check(dtype.has_value(), "custom ops take no tensor of type {}", std::get<0>(t));
  return {*dtype, std::get<1>(t), {}};
}

std::vector<PyType> types_of(const std::vector<TensorType>& types) {
  std::vector<PyType> out;
  for (const TensorType& t : types) out.emplace_back(std::string(name_of(t.dtype)), t.shape);
  return out;
}

CustomSite site_of(const std::string& domain, const std::string& name, int64_t version,
                   const std::vector<PyType>& inputs, nb::handle attributes) {
  CustomSite site{domain, name, version, {}, argument("attributes", attributes)};
  for (const PyType& t : inputs) site.inputs.push_back(type_of(t));
  return site;
}

nb::tuple tuple_of(const Composition& c) {
  nb::list nodes;
  for (const Composition::Node& n : c.nodes) {
    nb::list args, bodies;
    for (const Arg& a : n.args.list) args.append(literal(a));
    for (const Composition& body : n.bodies) bodies.append(tuple_of(body));
    nodes.append(
        nb::make_tuple(n.op, args, n.results, types_of(n.types), n.line, n.column, bodies));
  }
  return nb::make_tuple(nodes, c.outputs);
}

}  // namespace

void bind_custom(nb::module_& m) {
  nb::class_<CustomOpInfo>(m, "CustomOp", "An op of a user's library.")
      .def_ro("domain", &CustomOpInfo::domain)
      .def_ro("name", &CustomOpInfo::name)
      .def_ro("version", &CustomOpInfo::version)
      .def_ro("library", &CustomOpInfo::library, "The file.")
      .def_ro("composes", &CustomOpInfo::composes, "Whether it is a composition.")
      .def_ro("has_gradients", &CustomOpInfo::has_gradients);
  m.def("custom_ops", &custom_ops, "The ops of the libraries that are loaded.");
  m.def("custom_refused", &custom_refused, "Ops that are not used, and why.");
  m.def(
      "custom_setup",
      [](const std::string& domain, const std::string& name, int64_t version,
         const std::vector<PyType>& inputs, nb::handle attributes) {
        return types_of(custom_setup(site_of(domain, name, version, inputs, attributes)));
      },
      "domain"_a, "name"_a, "version"_a, "inputs"_a, "attributes"_a,
      "(dtype, shape) of the results of a call.");
  m.def(
      "custom_wants_seed",
      [](const std::string& domain, const std::string& name, int64_t version,
         const std::vector<PyType>& inputs, nb::handle attributes) {
        return custom_wants_seed(site_of(domain, name, version, inputs, attributes));
      },
      "domain"_a, "name"_a, "version"_a, "inputs"_a, "attributes"_a,
      "Whether the op takes a seed behind these inputs.");
  m.def(
      "custom_compose",
      [](const std::string& domain, const std::string& name, int64_t version,
         const std::vector<PyType>& inputs, nb::handle attributes) {
        const Composition c = custom_compose(site_of(domain, name, version, inputs, attributes));
        return tuple_of(c) + nb::make_tuple(c.updates);
      },
      "domain"_a, "name"_a, "version"_a, "inputs"_a, "attributes"_a,
      "The nodes (op, arguments, results, types, line, column, bodies) and the outputs of a "
      "composition, where bodies are such pairs, and (input, kind) of the inputs whose new values "
      "its last outputs are.");
  m.def("custom_facts", &set_custom_facts, "facts"_a,
        "What ops may ask of the program that is being made.");
  m.def(
      "custom_gradients",
      [](const std::string& domain, const std::string& name, int64_t version,
         const std::vector<PyType>& inputs, nb::handle attributes) {
        nb::list out;
        for (const CustomGradient& g :
             custom_gradients(site_of(domain, name, version, inputs, attributes)))
          out.append(nb::make_tuple(g.op.domain, g.op.name, g.op.version, literal(g.op.attributes),
                                    g.inputs, g.outputs));
        return out;
      },
      "domain"_a, "name"_a, "version"_a, "inputs"_a, "attributes"_a,
      "The gradient ops (domain, name, version, attributes, inputs, outputs) of a call.");
}

}  // namespace tessera
