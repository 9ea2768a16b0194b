// SPDX-License-Identifier: Apache-2.0
// Values of Python and arguments of ops.
#include <nanobind/stl/string.h>

#include "base/error.h"
#include "bindings.h"

namespace nb = nanobind;

namespace tessera {

namespace {
constexpr int kMaxDepth = 4;  // of lists in the value of an option
}  // namespace

Arg argument(const std::string& name, nb::handle value, int depth) {
  if (value.is_none()) return Arg::none();
  if (nb::isinstance<nb::bool_>(value)) return Arg::boolean(nb::cast<bool>(value));
  if (nb::isinstance<nb::str>(value)) return Arg::string(nb::cast<std::string>(value));
  if (nb::isinstance<nb::float_>(value)) return Arg::real(nb::cast<double>(value));
  int64_t number = 0;
  if (nb::isinstance<nb::int_>(value) && nb::try_cast(value, number)) return Arg::integer(number);
  const bool list = nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value);
  user_check(list && depth < kMaxDepth, "[options] {} has a value that no option takes", name);
  std::vector<Arg> items;
  for (nb::handle item : nb::borrow<nb::sequence>(value))
    items.push_back(argument(name, item, depth + 1));
  return Arg::of(std::move(items));
}

nb::object literal(const Arg& a) {
  switch (a.kind) {
    case Arg::Kind::kNone:
      return nb::none();
    case Arg::Kind::kBool:
      return nb::bool_(a.i != 0);
    case Arg::Kind::kInt:
      return nb::int_(a.i);
    case Arg::Kind::kFloat:
      return nb::float_(a.f);
    case Arg::Kind::kString:
      return nb::str(a.s.c_str());
    case Arg::Kind::kDType:
      return nb::make_tuple("dtype", std::string(name_of(static_cast<DType>(a.i))));
    case Arg::Kind::kOperand:
      return nb::make_tuple("in", a.i);
    case Arg::Kind::kList: {
      nb::list out;
      for (const Arg& x : a.list) out.append(literal(x));
      return out;
    }
  }
  return nb::none();
}

}  // namespace tessera
