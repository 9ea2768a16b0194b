// SPDX-License-Identifier: Apache-2.0
// Ops that are all attributes: a number or a list that is added, sums and means by name, and one
// that has an attribute of every kind.
#include <iostream>
#include <popart/op.hpp>
#include <popart/opmanager.hpp>
#include <popart/opserialiser.hpp>
#include <popart/popx/devicex.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <popart/tensornames.hpp>
#include <popops/ElementWise.hpp>
#include <popops/Reduce.hpp>

using namespace popart;
using namespace popart::popx;

namespace {

const OperatorIdentifier AddScalarFloatId = {"test.poptorch", "AddScalarFloat", 1, 1, 1};
const OperatorIdentifier AddScalarIntId = {"test.poptorch", "AddScalarInt", 1, 1, 1};
const OperatorIdentifier AddScalarVecFloatId = {"test.poptorch", "AddScalarVecFloat", 1, {1, 1}, 1};
const OperatorIdentifier AddScalarVecIntId = {"test.poptorch", "AddScalarVecInt", 1, {1, 1}, 1};
const OperatorIdentifier AddVecScalarMulId = {"test.poptorch", "AddVecScalarMulFloat", 1, 1, 1};
const OperatorIdentifier ManyId = {"test.poptorch", "ManyAttributeOp", 1, 1, 1};
const OperatorIdentifier ReduceId = {"test.poptorch", "ReduceOp", 1, 1, 1};
const OperatorIdentifier ThreeReduceId = {"test.poptorch", "ThreeReduceOp", 1, 3, 3};

// Of the element type and shape of its input.
class SameOp : public Op {
 public:
  SameOp(const OperatorIdentifier& id, const Op::Settings& s) : Op(id, s) {}
  void setup() override { outInfo(0) = inInfo(0); }
  float getSubgraphValue() const final { return getLowSubgraphValue(); }
};

template <typename T>
class AddScalarOp : public SameOp {
 public:
  AddScalarOp(const OperatorIdentifier& id, const T& value, const Op::Settings& s)
      : SameOp(id, s), value_(value) {}
  std::unique_ptr<Op> clone() const final { return std::make_unique<AddScalarOp>(*this); }
  void appendAttributes(OpSerialiserBase& os) const override {
    Op::appendAttributes(os);
    os.appendAttribute("value", value_);
  }
  const T& value() const { return value_; }

 private:
  T value_;
};

template <typename T>
class AddScalarOpx : public Opx {
 public:
  AddScalarOpx(Op* op, Devicex* d) : Opx(op, d) { verifyOp<AddScalarOp<T>>(op); }
  void grow(poplar::program::Sequence& prog) const final {
    const auto& op = getOp<AddScalarOp<T>>();
    const poplar::Tensor in = getInTensor(0);
    poplar::Tensor value = graph().addConstant(in.elementType(), {1}, op.value());
    graph().setTileMapping(value, graph().getTileMapping(in)[0].size());
    setOutTensor(0, popops::add(graph(), in, value, prog, debugContext("AddScalar")));
  }
};

template <typename T>
class AddVecOpx : public Opx {
 public:
  AddVecOpx(Op* op, Devicex* d) : Opx(op, d) { verifyOp<AddScalarOp<std::vector<T>>>(op); }
  void grow(poplar::program::Sequence& prog) const final {
    const auto& op = getOp<AddScalarOp<std::vector<T>>>();
    const poplar::Tensor in = getInTensor(0);
    poplar::Tensor value =
        graph().addConstant(in.elementType(), {op.value().size()}, poplar::ArrayRef<T>(op.value()));
    graph().setTileMapping(value, 0);
    setOutTensor(0, popops::add(graph(), in, value, prog, debugContext("AddVec")));
  }
};

class AddVecScalarMulOp : public SameOp {
 public:
  AddVecScalarMulOp(const OperatorIdentifier& id, const std::vector<float>& vec, float scalar,
                    const Op::Settings& s)
      : SameOp(id, s), vec(vec), scalar(scalar) {}
  std::unique_ptr<Op> clone() const final { return std::make_unique<AddVecScalarMulOp>(*this); }
  std::vector<float> vec;
  float scalar;
};

class AddVecScalarMulOpx : public Opx {
 public:
  AddVecScalarMulOpx(Op* op, Devicex* d) : Opx(op, d) {
    verifyOp<AddVecScalarMulOp>(op, AddVecScalarMulId);
  }
  void grow(poplar::program::Sequence& prog) const final {
    auto op = getOp<AddVecScalarMulOp>();
    const poplar::Tensor in = getInTensor(0);
    auto vec = graph().addConstant(in.elementType(), {op.vec.size()}, op.vec.data());
    auto scalar = graph().addConstant<float>(in.elementType(), {1}, op.scalar, "scalar");
    auto sum = popops::add(graph(), in, vec, prog, debugContext("sum"));
    setOutTensor(0, popops::mul(graph(), sum, scalar, prog, debugContext("scaled")));
  }
};

// Adds 1 if all attributes are what the test passes.
class ManyOp : public SameOp {
 public:
  ManyOp(const OperatorIdentifier& id, bool right, const Op::Settings& s)
      : SameOp(id, s), right(right) {}
  std::unique_ptr<Op> clone() const final { return std::make_unique<ManyOp>(*this); }
  bool right;
};

class ManyOpx : public Opx {
 public:
  ManyOpx(Op* op, Devicex* d) : Opx(op, d) { verifyOp<ManyOp>(op, ManyId); }
  void grow(poplar::program::Sequence& prog) const final {
    const poplar::Tensor in = getInTensor(0);
    if (!getOp<ManyOp>().right) return setOutTensor(0, in);
    poplar::Tensor one = graph().addConstant(in.elementType(), {1}, 1.0f);
    graph().setTileMapping(one, 0);
    setOutTensor(0, popops::add(graph(), in, one, prog));
  }
};

class ReduceOp : public Op {
 public:
  ReduceOp(const OperatorIdentifier& id, const std::vector<std::string>& how, const Op::Settings& s)
      : Op(id, s), how(how) {}
  std::unique_ptr<Op> clone() const final { return std::make_unique<ReduceOp>(*this); }
  void setup() final {
    for (int i = 0; i < static_cast<int>(how.size()); ++i)
      outInfo(i) = {inInfo(i).dataType(), Shape{}};
  }
  float getSubgraphValue() const final { return getLowSubgraphValue(); }
  std::vector<std::string> how;
};

class ReduceOpx : public Opx {
 public:
  ReduceOpx(Op* op, Devicex* d) : Opx(op, d) { verifyOp<ReduceOp>(op, {ReduceId, ThreeReduceId}); }
  void grow(poplar::program::Sequence& prog) const final {
    const auto& op = getOp<ReduceOp>();
    for (int i = 0; i < static_cast<int>(op.how.size()); ++i) {
      const auto flat = getInTensor(i).flatten();
      float factor = 1.0f;
      if (op.how[i] == "mean")
        factor /= static_cast<float>(flat.numElements());
      else if (op.how[i] != "sum")
        throw popart::error("ReduceOp: {} is neither sum nor mean", op.how[i]);
      auto scale = graph().addConstant(poplar::FLOAT, {}, factor);
      graph().setTileMapping(scale, 0);
      setOutTensor(i, popops::reduce(graph(), flat, {0}, {popops::Operation::ADD, false, scale},
                                     prog, debugContext("reduce")));
    }
  }
};

OpDefinition none({});

OpCreator<AddScalarOp<float>> c0(OpDefinitions({{AddScalarFloatId, none}}),
                                 [](const OpCreatorInfo& info) {
                                   return std::make_unique<AddScalarOp<float>>(
                                       info.opid,
                                       info.attributes.getAttribute<Attributes::Float>("scalar"),
                                       info.settings);
                                 });
OpCreator<AddScalarOp<int64_t>> c1(
    OpDefinitions({{AddScalarIntId, none}}),
    [](const OpCreatorInfo& info) -> std::unique_ptr<Op> {
      auto x = info.attributes.getAttribute<Attributes::Int>("scalar");
      return std::unique_ptr<Op>(new AddScalarOp<int64_t>(info.opid, x, info.settings));
    },
    true);
OpCreator<AddScalarOp<std::vector<float>>> c2(
    OpDefinitions({{AddScalarVecFloatId, none}}), [](const OpCreatorInfo& info) {
      return std::make_unique<AddScalarOp<std::vector<float>>>(
          info.opid, info.attributes.getAttribute<Attributes::Floats>("vec"), info.settings);
    });
OpCreator<AddScalarOp<std::vector<int64_t>>> c3(
    OpDefinitions({{AddScalarVecIntId, none}}), [](const OpCreatorInfo& info) {
      return std::make_unique<AddScalarOp<std::vector<int64_t>>>(
          info.opid, info.attributes.getAttribute<Attributes::Ints>("vec"), info.settings);
    });
OpCreator<AddVecScalarMulOp> c4(OpDefinitions({{AddVecScalarMulId, none}}),
                                [](const OpCreatorInfo& info) {
                                  const Attributes& a = info.attributes;
                                  return std::make_unique<AddVecScalarMulOp>(
                                      info.opid, a.getAttribute<Attributes::Floats>("vec"),
                                      a.getAttribute<Attributes::Float>("scalar"), info.settings);
                                });
OpCreator<ManyOp> c5(OpDefinitions({{ManyId, none}}), [](const OpCreatorInfo& info) {
  const Attributes& a = info.attributes;
  const bool right =
      a.getAttribute<Attributes::Float>("float_one") == 1.0f &&
      a.getAttribute<Attributes::Int>("int_one") == 1 &&
      a.getAttribute<Attributes::Int>("int_minus", -5) == -1 &&
      a.getAttribute<Attributes::Floats>("floats") == Attributes::Floats{0.5f, -2.0f} &&
      a.getAttribute<Attributes::Ints>("ints") == Attributes::Ints{7, -8, 1LL << 40} &&
      a.getAttribute<Attributes::String>("string") == "a \"b\" \x01" &&
      a.getAttribute<Attributes::Strings>("strings") == Attributes::Strings{"x", ""} &&
      a.hasAttribute("flag") && a.getAttribute<Attributes::Int>("flag") == 1 &&
      // Of another type than asked for: nothing of it.
      a.getAttribute<Attributes::Float>("int_one") == 0.0f &&
      a.getAttribute<Attributes::String>("missing", "here") == "here";
  return std::make_unique<ManyOp>(info.opid, right, info.settings);
});
OpCreator<ReduceOp> c6(OpDefinitions({{ReduceId, none}}), [](const OpCreatorInfo& info) {
  std::vector<std::string> how{info.attributes.getAttribute<Attributes::String>("reduction")};
  return std::make_unique<ReduceOp>(info.opid, how, info.settings);
});
OpCreator<ReduceOp> c7(OpDefinitions({{ThreeReduceId, none}}), [](const OpCreatorInfo& info) {
  return std::make_unique<ReduceOp>(
      info.opid, info.attributes.getAttribute<Attributes::Strings>("reductions"), info.settings);
});

OpxCreator<AddScalarOpx<float>> x0(AddScalarFloatId);
OpxCreator<AddScalarOpx<int64_t>> x1(AddScalarIntId);
OpxCreator<AddVecOpx<float>> x2(AddScalarVecFloatId);
OpxCreator<AddVecOpx<int64_t>> x3(AddScalarVecIntId);
OpxCreator<AddVecScalarMulOpx> x4(AddVecScalarMulId);
OpxCreator<ManyOpx> x5(ManyId);
OpxCreator<ReduceOpx> x6({ReduceId, ThreeReduceId});

}  // namespace
