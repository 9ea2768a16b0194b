// SPDX-License-Identifier: Apache-2.0
// Programs with loops and branches, by the name of the op.
#include <popart/op.hpp>
#include <popart/opmanager.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <popops/Cast.hpp>
#include <popops/DynamicSlice.hpp>
#include <popops/ElementWise.hpp>
#include <popops/Fill.hpp>
#include <popops/Reduce.hpp>
#include <popops/Zero.hpp>

using namespace poplar;
using namespace poplar::program;
using namespace popops::expr;

namespace {

class FlowOp : public popart::Op {
 public:
  FlowOp(const popart::OperatorIdentifier& id, const popart::Op::Settings& s) : popart::Op(id, s) {}
  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<FlowOp>(*this); }
  void setup() override { outInfo(0) = inInfo(0); }
  float getSubgraphValue() const final { return getLowSubgraphValue(); }
};

// x * 3 in so many turns that it could not be written out: 2 in each of 5000 turns of 1000.
class LongOpx : public popart::popx::Opx {
 public:
  LongOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(Sequence& prog) const final {
    const Tensor out = cloneNcopy(prog, getInTensor(0));
    Sequence inner, outer;
    popops::addInPlace(graph(), out, 2.0f, inner);
    outer.add(Repeat(1000, inner));
    popops::subInPlace(graph(), out, 1999.0f, outer);
    prog.add(Repeat(5000, outer));
    setOutTensor(0, out);
  }
};

// x / 2 + 2.5: what is added to a program after it became a function is not part of it.
class CallsOpx : public popart::popx::Opx {
 public:
  CallsOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(Sequence& prog) const final {
    const Tensor out = cloneNcopy(prog, getInTensor(0));
    Sequence more, twice;
    popops::addInPlace(graph(), out, 1.0f, more);
    const Function one = graph().addFunction(more);
    popops::mulInPlace(graph(), out, 2.0f, more);
    prog.add(Call(one));
    prog.add(more);
    popops::mulInPlace(graph(), out, 0.5f, twice);
    twice.add(Call(one, {debugContext(), "again"}));
    const Function f = graph().addFunction(twice);
    prog.add(Repeat(2, Call(f)));
    setOutTensor(0, out);
  }
};

// Halves until every element is at most 1; the turns are the first element of the second output.
class HalvesOpx : public popart::popx::Opx {
 public:
  HalvesOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(Sequence& prog) const final {
    Graph& g = graph();
    const Tensor out = cloneNcopy(prog, getInTensor(0));
    const Tensor turns = g.addVariable(out.elementType(), {1});
    popops::zero(g, turns, prog);
    Sequence look, body;
    const Tensor most = popops::reduce(g, out.flatten(), {0}, {popops::Operation::MAX}, look);
    const bool on = getOp<FlowOp>().opid.type == "WhileTrue";
    // Of any integer type, as on the device.
    const Tensor test = on ? popops::cast(g, popops::map(g, _1 > 1.0f, {most}, look), INT, look)
                           : popops::map(g, _1 <= 1.0f, {most}, look);
    popops::mulInPlace(g, out, 0.5f, body);
    popops::addInPlace(g, turns, 1.0f, body);
    if (on)
      prog.add(RepeatWhileTrue(look, test, body));
    else
      prog.add(RepeatWhileFalse(look, test, body));
    popops::addInPlace(g, out, turns.broadcast(static_cast<unsigned>(out.numElements()), 0), prog);
    setOutTensor(0, out);
  }
};

// Rows of x: where the first element is positive it is counted down to zero into the others.
class RowsOpx : public popart::popx::Opx {
 public:
  RowsOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(Sequence& prog) const final {
    Graph& g = graph();
    const Tensor out = cloneNcopy(prog, getInTensor(0));
    const std::size_t rows = out.dim(0);
    const Tensor at = g.addVariable(UNSIGNED_INT, {1}, "at");
    const Tensor row = g.addVariable(FLOAT, {1, out.dim(1)}, "row");
    popops::zero(g, at, prog);
    Sequence turn, count, look, step, leave;
    turn.add(Copy(popops::dynamicSlice(g, out, at, {0}, {1}, turn), row));
    // A view that is written to in the innermost body.
    const Tensor first = row[0].slice(0, 1), others = row[0].slice(1, out.dim(1));
    const Tensor positive = popops::map(g, _1 > 0.0f, {first}, turn);
    const Tensor more = popops::map(g, _1 > 0.0f, {first}, look);
    popops::subInPlace(g, first, 1.0f, step);
    popops::mapInPlace(g, _1 + _2 + 1.0f,
                       {others, first.broadcast(static_cast<unsigned>(others.numElements()), 0)},
                       step);
    count.add(RepeatWhileTrue(look, more, step));
    popops::mulInPlace(g, concat(first, others), -1.0f, leave);
    turn.add(If(positive, count, leave));
    popops::dynamicUpdate(g, out, row, at, {0}, {1}, turn);
    popops::addInPlace(g, at, 1u, turn);
    prog.add(Repeat(static_cast<unsigned>(rows), turn));
    setOutTensor(0, out);
  }
};

// The way that is not taken never ends.
class OneWayOpx : public popart::popx::Opx {
 public:
  OneWayOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(Sequence& prog) const final {
    Graph& g = graph();
    const Tensor out = cloneNcopy(prog, getInTensor(0));
    const Tensor yes = popops::map(g, _1 == _1, {out.flatten()[0]}, prog);
    Sequence endless, turn, then;
    popops::addInPlace(g, out, 1.0f, turn);
    endless.add(RepeatWhileTrue(Sequence(), yes, turn));
    popops::addInPlace(g, out, 5.0f, then);
    prog.add(If(yes, then, endless));
    setOutTensor(0, out);
  }
};

class EndlessOpx : public popart::popx::Opx {
 public:
  EndlessOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(Sequence& prog) const final {
    const Tensor out = cloneNcopy(prog, getInTensor(0));
    Sequence look, turn;
    const Tensor positive = popops::map(graph(), _1 > 0.0f, {out.flatten()[0]}, look);
    popops::mapInPlace(graph(), Abs(_1), {out}, turn);
    prog.add(RepeatWhileTrue(look, positive, turn));
    setOutTensor(0, out);
  }
};

// A program that was added to another is what it was then.
class LaterOpx : public popart::popx::Opx {
 public:
  LaterOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(Sequence& prog) const final {
    Graph& g = graph();
    const Tensor out = cloneNcopy(prog, getInTensor(0));
    Sequence body;
    popops::addInPlace(g, out, 1.0f, body);
    Sequence copy = body;
    prog.add(Repeat(3, body));
    popops::addInPlace(g, out, 100.0f, body);
    popops::addInPlace(g, out, 10.0f, copy);
    prog.add(Repeat(2, copy));  // 11 each
    prog.add(body);             // 101
    setOutTensor(0, out);
  }
};

// Variables that a turn sets before it reads them, one that it only reads, lists of constants.
class LocalsOpx : public popart::popx::Opx {
 public:
  LocalsOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(Sequence& prog) const final {
    Graph& g = graph();
    const Tensor x = getInTensor(0), out = cloneNcopy(prog, x);
    const Tensor local = g.clone(x, "local"), kept = g.clone(x, "kept");
    const std::vector<float> weights{1.0f, 2.0f, 3.0f};
    const Tensor list = g.addConstant<float>(FLOAT, {3}, ArrayRef<float>(weights));
    const Tensor start = g.addVariable(FLOAT, {1}, "start");
    g.setInitialValue(start, 4.0f);
    Sequence body, rare;
    body.add(Copy(x, local));
    popops::mulInPlace(g, local, list, body);
    body.add(Copy(local, kept));
    popops::addInPlace(g, out, local, body);
    popops::mulInPlace(g, start, 0.5f, body);
    // Of what is not there in one way, the other has zeros.
    const Tensor odd = popops::map(g, _1 < 1.0f, {start}, body);
    const Tensor extra = g.addVariable(FLOAT, {1}, "extra");
    popops::fill(g, extra, rare, 1000.0f);
    body.add(If(odd[0], rare, Sequence()));
    popops::addInPlace(g, out, extra.broadcast(3, 0), body);
    prog.add(Repeat(4, body));
    popops::addInPlace(g, out, kept, prog);
    setOutTensor(0, out);
  }
};

class BadOpx : public popart::popx::Opx {
 public:
  BadOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(Sequence& prog) const final {
    const Tensor out = cloneNcopy(prog, getInTensor(0));
    const Tensor two = popops::map(graph(), _1 > 0.0f, {out}, prog);
    prog.add(RepeatWhileTrue(Sequence(), two, Sequence()));
    setOutTensor(0, out);
  }
};

popart::OperatorIdentifier id(const char* name) {
  return {"test.flow", name, 1};
}
popart::OpCreator<FlowOp> ops({{id("Long"), {}},
                               {id("Calls"), {}},
                               {id("WhileTrue"), {}},
                               {id("WhileFalse"), {}},
                               {id("Rows"), {}},
                               {id("OneWay"), {}},
                               {id("Endless"), {}},
                               {id("Later"), {}},
                               {id("Locals"), {}},
                               {id("Bad"), {}}});
popart::popx::OpxCreator<LongOpx> long_loop(id("Long"));
popart::popx::OpxCreator<CallsOpx> calls(id("Calls"));
popart::popx::OpxCreator<HalvesOpx> halves({id("WhileTrue"), id("WhileFalse")});
popart::popx::OpxCreator<RowsOpx> rows(id("Rows"));
popart::popx::OpxCreator<OneWayOpx> one_way(id("OneWay"));
popart::popx::OpxCreator<EndlessOpx> endless(id("Endless"));
popart::popx::OpxCreator<LaterOpx> later(id("Later"));
popart::popx::OpxCreator<LocalsOpx> locals(id("Locals"));
popart::popx::OpxCreator<BadOpx> bad(id("Bad"));

}  // namespace
