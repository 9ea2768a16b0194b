// SPDX-License-Identifier: Apache-2.0
// The one graph form. SSA, static shapes, pure ops, nodes in topological order. A training graph
// also lists its gradients, state updates and optimizer; a `fused` node carries its body as a graph
// of its own, and so do loops and branches.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/attrs.h"
#include "ir/source.h"
#include "ir/text_reader.h"
#include "ir/types.h"
#include "ops/op.h"

namespace tessera {

constexpr ValueId kNoValue = -1;

// Where a node comes from: the user's line, the module that ran it, and its place on the device.
struct Location {
  std::string file;
  int line = 0;
  std::string scope;
  bool backward = false;
  int ipu = 0, stage = 0, phase = -1;
  std::vector<int> checkpoints = {};  // regions of torch.utils.checkpoint, the outermost first
  // Nodes of other turns are neither merged nor fused with this one: what is made again for
  // backward (deeper regions have a higher turn), a piece of a product. 0 is everything else.
  int turn = 0;
  double memory = 0;  // share of tile memory that the op may use, 0 if the user did not say
  int pieces = 0;     // a product is to be done in so many, with what follows it; 0 in one
  bool operator==(const Location&) const = default;
};

struct Value {
  TensorType type;
  int32_t result_index = 0;  // which result of its producer
};

class Graph;

struct Node {
  Op op = Op::HostCall;
  std::string target;  // of a host call: "aten::name.overload"
  std::vector<ValueId> operands;
  Args args;
  std::vector<ValueId> results;
  int32_t loc = -1;
  TextPlace place = {};
  std::shared_ptr<Graph>
      body;  // of a fused node, or the epilogue of a matmul; never shared between two graphs
  // What a loop does each turn, or the two ways of a branch; not shared either. They have
  // tables of locations of their own.
  std::vector<std::shared_ptr<Graph>> bodies;

  // The tensor that is argument i.
  ValueId arg_value(size_t i) const {
    const ValueId v = arg_value_or_none(i);
    invariant(v != kNoValue, "{} has no tensor as argument {}", op_text(op), i);
    return v;
  }
  // The same, kNoValue if the argument is none or left out.
  ValueId arg_value_or_none(size_t i) const {
    const int k = args.operand_or_none(i);
    return k < 0 ? kNoValue : operands[k];
  }
};

// Whether the node, or one in its bodies, is a host call: it may have effects.
bool calls_host(const Node& n);

// A copy that shares no body with `n`.
Node clone_node(const Node& n);

struct StateUpdate {
  ValueId state;
  ValueId value;
  bool once = false;  // per weight update, however many micro-batches it is of
};

// One parameter group of the optimizer. A flag is a switch, or the slot of a value in the group's
// hyper state.
struct OptimizerGroup {
  std::string kind;  // a row of passes/optimizer_rules.cpp
  int group = 0;
  std::vector<ValueId> params;
  std::unordered_map<std::string, double> flags;
};

class Graph {
 public:
  std::string name;
  std::vector<Source> sources;
  std::vector<Node> nodes;
  std::deque<Value> values;  // adding one leaves references to the others valid
  std::vector<ValueId> outputs;
  std::vector<StateUpdate> grads;    // parameter, its gradient
  std::vector<StateUpdate> updates;  // state, its new value at the end of a step
  std::vector<OptimizerGroup> optimizer;
  std::vector<Location> locations;
  ValueId loss = kNoValue;

  ValueId add_value(TensorType type, int32_t result_index = 0) {
    values.push_back({std::move(type), result_index});
    return static_cast<ValueId>(values.size() - 1);
  }
  // Its value is that of the new source, whatever `s` says.
  ValueId add_source(Source s, TensorType type) {
    s.value = add_value(std::move(type));
    sources.push_back(std::move(s));
    return sources.back().value;
  }
  ValueId add_source(SourceKind kind, std::string source_name, TensorType type) {
    return add_source({kind, kNoValue, std::move(source_name)}, std::move(type));
  }
  // The first of a kind, nullptr if there is none.
  const Source* find_source(SourceKind kind) const;
  const TensorType& type(ValueId v) const { return values[v].type; }
  TensorType& type(ValueId v) { return values[v].type; }

  std::unique_ptr<Graph> clone() const;
  // Applies `f` to every value id the graph refers to outside node results (operands, outputs,
  // grads, ...).
  void for_each_use(const std::function<void(ValueId&)>& f);
};

// Appends nodes to a node list; used by passes that sweep the old list once and build the new one.
class Builder {
 public:
  explicit Builder(Graph& g) : g_(g) {}

  Graph& graph() { return g_; }
  std::vector<Node> out;
  int32_t loc = -1;

  // One-result node whose first arguments are the operands, followed by literals.
  ValueId add(Op op, const std::vector<ValueId>& operands, TensorType type,
              std::vector<Arg> literals = {});
  // Node with arguments in full; kOperand entries index `operands`.
  std::vector<ValueId> add_node(Op op, std::vector<ValueId> operands, Args args,
                                std::vector<TensorType> types);
  void append(Node n) { out.push_back(std::move(n)); }

  // A copy of `v` in memory of its own, dense in the order of `type`.
  ValueId copy(ValueId v, TensorType type);
  // Pointwise node; a literal operand is an Arg.
  ValueId pointwise(Op op, const std::vector<Arg>& args, const std::vector<ValueId>& operands,
                    TensorType type);

 private:
  Graph& g_;
};

// One forward sweep: `visit(node, builder)` either appends replacement nodes and returns the values
// standing for the node's results, or returns nothing to keep the node. Uses of replaced values are
// redirected as the sweep goes.
bool rewrite(Graph& g, const std::function<std::vector<ValueId>(Node&, Builder&)>& visit);

// Whether two bodies compute the same: equal but for the names and places of things.
bool same_body(const Graph& a, const Graph& b);

// Index of the node producing each value, -1 for sources.
std::vector<int32_t> producers(const Graph& g);
// Number of uses of each value, outputs and updates counted.
std::vector<int32_t> use_counts(const Graph& g);

std::string describe_location(const Graph& g, int32_t loc);  // "model.py:88 (encoder.7.attn)" or ""

// Text form (ir/parser.cpp, ir/printer.cpp): parse(print(g)) prints the same text.
std::unique_ptr<Graph> parse_graph(std::string_view text);
std::string print_graph(const Graph& g);
void verify_graph(const Graph& g);  // throws InternalError naming the node

}  // namespace tessera
