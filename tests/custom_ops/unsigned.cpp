// SPDX-License-Identifier: Apache-2.0
// Integers reinterpreted as unsigned ones: what depends on that, one function at a time.
#include <limits>
#include <memory>
#include <popart/op.hpp>
#include <popart/opmanager.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <popnn/Loss.hpp>
#include <popops/Cast.hpp>
#include <popops/ElementWise.hpp>
#include <popops/Reduce.hpp>
#include <string>
#include <vector>

namespace {

using namespace popart;
namespace pe = popops::expr;

const OperatorIdentifier kUnsigned{"com.acme", "Unsigned", 1};

class UnsignedOp : public Op {
 public:
  UnsignedOp(const OpCreatorInfo& info)
      : Op(info.opid, info.settings),
        what(info.attributes.getAttribute<Attributes::String>("what")) {}
  std::unique_ptr<Op> clone() const override { return std::make_unique<UnsignedOp>(*this); }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }
  void setup() override {
    const DataType type = inInfo(0).dataType();
    if (what == "float")
      outInfo(0) = {DataType::FLOAT, inShape(0)};
    else if (what == "less" || what == "not less than a number")
      outInfo(0) = {DataType::BOOL, inShape(0)};
    else if (what == "reduce min" || what == "reduce max" || what == "arg")
      outInfo(0) = {type, Shape{inShape(0)[0]}};
    else
      outInfo(0) = {type, inShape(0)};
  }
  std::string what;
};

class UnsignedOpx : public popx::Opx {
 public:
  UnsignedOpx(Op* op, popx::Devicex* d) : popx::Opx(op, d) { verifyOp<UnsignedOp>(op, kUnsigned); }
  void grow(poplar::program::Sequence& prog) const final {
    const std::string& what = getOp<UnsignedOp>().what;
    const poplar::Type own = getInTensor(0).elementType();
    const poplar::Type type = own == poplar::SHORT      ? poplar::UNSIGNED_SHORT
                              : own == poplar::LONGLONG ? poplar::UNSIGNED_LONGLONG
                              : own == poplar::INT      ? poplar::UNSIGNED_INT
                                                        : own;
    const poplar::Tensor a = getInTensor(0).reinterpret(type), b = getInTensor(1).reinterpret(type);
    poplar::Tensor y;
    if (what == "less")
      y = popops::lt(graph(), a, b, prog);
    else if (what == "not less than a number")
      y = popops::map(graph(),
                      pe::_1 >= pe::Const(type == poplar::UNSIGNED_SHORT ? 40000u : 3000000000u),
                      {a}, prog);
    else if (what == "max")
      y = popops::max(graph(), a, b, prog);
    else if (what == "min")
      y = popops::min(graph(), a, b, prog);
    else if (what == "divide")
      y = popops::div(graph(), a, b, prog);
    else if (what == "remainder")
      y = popops::rem(graph(), a, b, prog);
    else if (what == "shift")
      y = popops::map(graph(), pe::_1 >> pe::Const(3u), {a}, prog);
    else if (what == "abs")
      y = popops::abs(graph(), a, prog);
    else if (what == "float")
      y = popops::cast(graph(), a, poplar::FLOAT, prog);
    else if (what == "there and back")
      y = popops::cast(graph(), popops::cast(graph(), a, poplar::FLOAT, prog), type, prog);
    else if (what == "reduce min")
      y = popops::reduce(graph(), a, {1}, {popops::Operation::MIN}, prog);
    else if (what == "reduce max")
      y = popops::reduce(graph(), a, {1}, {popops::Operation::MAX}, prog);
    else if (what == "arg")
      y = popnn::maxAndArgMax(graph(), a, prog).first;
    else
      y = popops::map(graph(), pe::Clamp(pe::_1, pe::_2, pe::Const(0xfffffff0u)), {a, b}, prog);
    setOutTensor(0, y.elementType() == type ? y.reinterpret(own) : y);
  }
};
OpCreator<UnsignedOp> makeUnsigned(
    OpDefinitions({{kUnsigned, OpDefinition()}}),
    [](const OpCreatorInfo& info) { return std::unique_ptr<Op>(new UnsignedOp(info)); }, true);
popx::OpxCreator<UnsignedOpx> unsignedOpx(kUnsigned);

}  // namespace
