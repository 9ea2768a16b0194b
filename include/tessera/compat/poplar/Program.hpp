// SPDX-License-Identifier: Apache-2.0
// Programs: trees of statements. A program that was added to another is that program as it was
// then.
#pragma once

#include <initializer_list>
#include <memory>
#include <vector>

#include "DebugContext.hpp"
#include "GraphElements.hpp"
#include "Tensor.hpp"

namespace poplar {
namespace program {

namespace detail {
struct Node {
  Node() : c() {}
  tessera_program c;
  std::vector<std::shared_ptr<const Node>> children;
  std::vector<const tessera_program*> pointers;

  void add(const std::shared_ptr<const Node>& child) {
    children.push_back(child);
    pointers.push_back(&child->c);
    c.children = pointers.data();
    c.child_count = static_cast<int64_t>(pointers.size());
  }
  void assign(const Node& o) {
    c = o.c;
    children = o.children;
    pointers = o.pointers;
    c.children = pointers.data();
  }
};

// A statement of the recorder: filled in, then made.
struct Draft {
  explicit Draft(tessera_statement_kind kind) : kind(kind) {}
  tessera_statement_kind kind;
  std::vector<const tessera_view*> in, out;
  std::vector<int64_t> ints;
  std::vector<double> reals;
  std::vector<tessera_expr> expr;
  std::string text, attributes;

  const tessera_statement* make(tessera_recorder* r, const tessera_view** results = nullptr) const {
    tessera_statement_desc d = tessera_statement_desc();
    d.size = sizeof d;
    d.kind = kind;
    d.in = in.data();
    d.ins = static_cast<int64_t>(in.size());
    d.out = out.data();
    d.outs = static_cast<int64_t>(out.size());
    d.ints = ints.data();
    d.int_count = static_cast<int64_t>(ints.size());
    d.reals = reals.data();
    d.real_count = static_cast<int64_t>(reals.size());
    d.expr = expr.data();
    d.expr_count = static_cast<int64_t>(expr.size());
    d.text = text.c_str();
    d.attributes = attributes.c_str();
    return poplar::detail::checked(tessera_rec_statement(r, &d, results));
  }
};
}  // namespace detail

class Program {
 public:
  Program() : node_(std::make_shared<detail::Node>()) {}
  const std::shared_ptr<detail::Node>& node() const { return node_; }
  bool isEmpty() const { return node_->c.kind == TESSERA_SEQUENCE && node_->children.empty(); }

 protected:
  explicit Program(const tessera_statement* s) : Program() {
    node_->c.kind = TESSERA_STATEMENT;
    node_->c.statement = s;
  }
  std::shared_ptr<detail::Node> node_;
};

class Sequence : public Program {
 public:
  Sequence(const DebugContext& dc = {}) { (void)dc; }
  Sequence(std::initializer_list<Program> programs, const DebugContext& dc = {}) {
    (void)dc;
    for (const Program& p : programs) add(p);
  }
  template <typename... Programs>
  explicit Sequence(const Program& first, const Programs&... rest) {
    add(first);
    add_many(rest...);
  }
  Sequence(const Sequence&) = default;
  Sequence(Sequence&&) = default;
  Sequence& operator=(const Sequence&) = default;
  Sequence& operator=(Sequence&&) = default;

  void add(const Program& p) { add_node(p.node()); }
  void add_back(const Program& p) { add(p); }
  void add_front(const Program& p) {
    const Sequence rest = *this;
    node_ = std::make_shared<detail::Node>();
    add(p);
    add(rest);
  }
  // For the library's functions.
  void add(const tessera_statement* s) {
    auto n = std::make_shared<detail::Node>();
    n->c.kind = TESSERA_STATEMENT;
    n->c.statement = s;
    add_node(n);
  }

 private:
  void add_many() {}
  template <typename... Programs>
  void add_many(const Program& first, const Programs&... rest) {
    add(first);
    add_many(rest...);
  }
  void add_node(const std::shared_ptr<detail::Node>& n) {
    if (node_.use_count() > 1) {
      auto own = std::make_shared<detail::Node>();
      own->assign(*node_);
      node_ = own;
    }
    node_->add(n);
  }
};

class Copy : public Program {
 public:
  Copy(const Tensor& from, const Tensor& to, bool dontOutline = false, const DebugContext& dc = {})
      : Program(made(from, to)) {
    (void)dontOutline;
    (void)dc;
  }
  Copy(const Tensor& from, const Tensor& to, const DebugContext& dc) : Copy(from, to, false, dc) {}

 private:
  static const tessera_statement* made(const Tensor& from, const Tensor& to) {
    detail::Draft d(TESSERA_DO_COPY);
    d.in = {from.handle()};
    d.out = {to.handle()};
    return d.make(from.handle()->recorder);
  }
};

// The values do not matter any more.
class WriteUndef : public Program {
 public:
  explicit WriteUndef(const Tensor&, const DebugContext& = {}) {}
};

// Runs the vertices that the set has when the whole program is there.
class Execute : public Program {
 public:
  explicit Execute(const ComputeSet& cs, const DebugContext& = {}) {
    node_->c.kind = TESSERA_EXECUTE;
    node_->c.vertices = cs.vertices();
    node_->c.count = cs.id();
  }
};

class Repeat : public Program {
 public:
  Repeat(unsigned count, const Program& body, const DebugContext& = {}) {
    node_->c.kind = TESSERA_REPEAT;
    node_->c.count = count;
    node_->add(body.node());
  }
};

namespace detail {
class While : public Program {
 public:
  While(const Program& cond, const Tensor& predicate, const Program& body, bool wanted) {
    node_->c.kind = TESSERA_REPEAT_WHILE;
    node_->c.until = wanted ? 1 : 0;
    node_->c.predicate = predicate.handle();
    node_->add(cond.node());
    node_->add(body.node());
  }
};
}  // namespace detail

class RepeatWhileTrue : public detail::While {
 public:
  RepeatWhileTrue(const Program& cond, const Tensor& predicate, const Program& body,
                  const DebugContext& = {})
      : While(cond, predicate, body, true) {}
};

class RepeatWhileFalse : public detail::While {
 public:
  RepeatWhileFalse(const Program& cond, const Tensor& predicate, const Program& body,
                   const DebugContext& = {})
      : While(cond, predicate, body, false) {}
};

class If : public Program {
 public:
  If(const Tensor& predicate, const Program& then, const Program& otherwise,
     const DebugContext& = {}) {
    node_->c.kind = TESSERA_IF;
    node_->c.predicate = predicate.handle();
    node_->add(then.node());
    node_->add(otherwise.node());
  }
};

class Call;

}  // namespace program

// A program that may be called in several places; of Graph::addFunction.
class Function {
 public:
  Function() = default;
  explicit Function(const program::Program& p) : node_(p.node()) {}

 private:
  friend class program::Call;
  std::shared_ptr<program::detail::Node> node_ = std::make_shared<program::detail::Node>();
};

namespace program {

class Call : public Program {
 public:
  explicit Call(const Function& f, const DebugContext& = {}) { node_ = f.node_; }
};

}  // namespace program
}  // namespace poplar
