// SPDX-License-Identifier: Apache-2.0
// Element-wise functions: map with an expression, and each function by its name in three forms (a
// new tensor, in place of the first operand, into a given tensor).
#pragma once

#include <vector>

#include "../poplar/Graph.hpp"
#include "../poplar/Program.hpp"
#include "Expr.hpp"
#include "ExprOp.hpp"

namespace popops {

namespace detail {
inline poplar::Tensor map_to(poplar::Graph& graph, const expr::Expr& e,
                             poplar::ArrayRef<poplar::Tensor> ts, poplar::program::Sequence& prog,
                             const poplar::Tensor* out) {
  poplar::program::detail::Draft d(TESSERA_DO_MAP);
  d.in = poplar::detail::handles(ts);
  if (out) d.out = {out->handle()};
  d.expr = e.nodes();
  const tessera_view* result = nullptr;
  prog.add(d.make(graph.recorder(), &result));
  return poplar::Tensor(result);
}
}  // namespace detail

inline poplar::Tensor map(poplar::Graph& graph, const expr::Expr& e,
                          const std::vector<poplar::Tensor>& ts, poplar::program::Sequence& prog,
                          const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {
  return detail::map_to(graph, e, ts, prog, nullptr);
}
inline void mapInPlace(poplar::Graph& graph, const expr::Expr& e,
                       const std::vector<poplar::Tensor>& ts, poplar::program::Sequence& prog,
                       const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {
  detail::map_to(graph, e, ts, prog, &ts.at(0));
}
inline void mapWithOutput(poplar::Graph& graph, const expr::Expr& e,
                          const std::vector<poplar::Tensor>& ts, const poplar::Tensor& out,
                          poplar::program::Sequence& prog, const poplar::DebugContext& = {},
                          const poplar::OptionFlags& = {}) {
  detail::map_to(graph, e, ts, prog, &out);
}

// Several expressions of the same tensors.
inline std::vector<poplar::Tensor> map(poplar::Graph& graph, const std::vector<expr::Any>& es,
                                       const std::vector<poplar::Tensor>& ts,
                                       poplar::program::Sequence& prog,
                                       const poplar::DebugContext& = {},
                                       const poplar::OptionFlags& = {}) {
  std::vector<poplar::Tensor> out;
  for (const expr::Any& e : es) out.push_back(detail::map_to(graph, e, ts, prog, nullptr));
  return out;
}
inline void mapInPlace(poplar::Graph& graph, const std::vector<expr::Any>& es,
                       const std::vector<poplar::Tensor>& ts, poplar::program::Sequence& prog,
                       const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {
  const std::vector<poplar::Tensor> now = map(graph, es, ts, prog);
  for (std::size_t i = 0; i < now.size(); ++i) prog.add(poplar::program::Copy(now[i], ts.at(i)));
}
inline void mapWithOutput(poplar::Graph& graph, const std::vector<expr::Any>& es,
                          const std::vector<poplar::Tensor>& ts,
                          const std::vector<poplar::Tensor>& outs, poplar::program::Sequence& prog,
                          const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {
  const std::vector<poplar::Tensor> now = map(graph, es, ts, prog);
  for (std::size_t i = 0; i < now.size(); ++i) prog.add(poplar::program::Copy(now[i], outs.at(i)));
}

// By number.
inline poplar::Tensor map(poplar::Graph& graph, expr::UnaryOpType op, const poplar::Tensor& a,
                          poplar::program::Sequence& prog, const poplar::DebugContext& = {},
                          const poplar::OptionFlags& = {}) {
  return detail::map_to(graph, expr::UnaryOp(op, expr::PlaceHolder(1)), {a}, prog, nullptr);
}
inline void mapInPlace(poplar::Graph& graph, expr::UnaryOpType op, const poplar::Tensor& a,
                       poplar::program::Sequence& prog, const poplar::DebugContext& = {},
                       const poplar::OptionFlags& = {}) {
  detail::map_to(graph, expr::UnaryOp(op, expr::PlaceHolder(1)), {a}, prog, &a);
}
inline void mapWithOutput(poplar::Graph& graph, expr::UnaryOpType op, const poplar::Tensor& a,
                          const poplar::Tensor& out, poplar::program::Sequence& prog,
                          const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {
  detail::map_to(graph, expr::UnaryOp(op, expr::PlaceHolder(1)), {a}, prog, &out);
}
inline poplar::Tensor map(poplar::Graph& graph, expr::BinaryOpType op, const poplar::Tensor& a,
                          const poplar::Tensor& b, poplar::program::Sequence& prog,
                          const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {
  return detail::map_to(graph, expr::BinaryOp(op, expr::PlaceHolder(1), expr::PlaceHolder(2)),
                        {a, b}, prog, nullptr);
}
inline void mapInPlace(poplar::Graph& graph, expr::BinaryOpType op, const poplar::Tensor& a,
                       const poplar::Tensor& b, poplar::program::Sequence& prog,
                       const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {
  detail::map_to(graph, expr::BinaryOp(op, expr::PlaceHolder(1), expr::PlaceHolder(2)), {a, b},
                 prog, &a);
}
inline void mapWithOutput(poplar::Graph& graph, expr::BinaryOpType op, const poplar::Tensor& a,
                          const poplar::Tensor& b, const poplar::Tensor& out,
                          poplar::program::Sequence& prog, const poplar::DebugContext& = {},
                          const poplar::OptionFlags& = {}) {
  detail::map_to(graph, expr::BinaryOp(op, expr::PlaceHolder(1), expr::PlaceHolder(2)), {a, b},
                 prog, &out);
}
inline poplar::Tensor map(poplar::Graph& graph, expr::TernaryOpType op, const poplar::Tensor& a,
                          const poplar::Tensor& b, const poplar::Tensor& c,
                          poplar::program::Sequence& prog, const poplar::DebugContext& = {},
                          const poplar::OptionFlags& = {}) {
  using expr::PlaceHolder;
  return detail::map_to(graph, expr::TernaryOp(op, PlaceHolder(1), PlaceHolder(2), PlaceHolder(3)),
                        {a, b, c}, prog, nullptr);
}
inline void mapInPlace(poplar::Graph& graph, expr::TernaryOpType op, const poplar::Tensor& a,
                       const poplar::Tensor& b, const poplar::Tensor& c,
                       poplar::program::Sequence& prog, const poplar::DebugContext& = {},
                       const poplar::OptionFlags& = {}) {
  using expr::PlaceHolder;
  detail::map_to(graph, expr::TernaryOp(op, PlaceHolder(1), PlaceHolder(2), PlaceHolder(3)),
                 {a, b, c}, prog, &a);
}
inline void mapWithOutput(poplar::Graph& graph, expr::TernaryOpType op, const poplar::Tensor& a,
                          const poplar::Tensor& b, const poplar::Tensor& c,
                          const poplar::Tensor& out, poplar::program::Sequence& prog,
                          const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {
  using expr::PlaceHolder;
  detail::map_to(graph, expr::TernaryOp(op, PlaceHolder(1), PlaceHolder(2), PlaceHolder(3)),
                 {a, b, c}, prog, &out);
}

// By name.
#define TESSERA_ROW(name, cls, fn)                                                                \
  inline poplar::Tensor fn(poplar::Graph& graph, const poplar::Tensor& a,                         \
                           poplar::program::Sequence& prog, const poplar::DebugContext& = {},     \
                           const poplar::OptionFlags& = {}) {                                     \
    return map(graph, expr::UnaryOpType::name, a, prog);                                          \
  }                                                                                               \
  inline void fn##InPlace(poplar::Graph& graph, const poplar::Tensor& a,                          \
                          poplar::program::Sequence& prog, const poplar::DebugContext& = {},      \
                          const poplar::OptionFlags& = {}) {                                      \
    mapInPlace(graph, expr::UnaryOpType::name, a, prog);                                          \
  }                                                                                               \
  inline void fn##WithOutput(poplar::Graph& graph, const poplar::Tensor& a,                       \
                             const poplar::Tensor& out, poplar::program::Sequence& prog,          \
                             const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) { \
    mapWithOutput(graph, expr::UnaryOpType::name, a, out, prog);                                  \
  }
TESSERA_UNARY_OPS(TESSERA_ROW)
#undef TESSERA_ROW

// Tensors, or a tensor and a number.
#define TESSERA_ROW(name, cls, fn)                                                                 \
  inline poplar::Tensor fn(poplar::Graph& graph, const poplar::Tensor& a, const poplar::Tensor& b, \
                           poplar::program::Sequence& prog, const poplar::DebugContext& = {},      \
                           const poplar::OptionFlags& = {}) {                                      \
    return map(graph, expr::BinaryOpType::name, a, b, prog);                                       \
  }                                                                                                \
  inline void fn##InPlace(poplar::Graph& graph, const poplar::Tensor& a, const poplar::Tensor& b,  \
                          poplar::program::Sequence& prog, const poplar::DebugContext& = {},       \
                          const poplar::OptionFlags& = {}) {                                       \
    mapInPlace(graph, expr::BinaryOpType::name, a, b, prog);                                       \
  }                                                                                                \
  inline void fn##WithOutput(poplar::Graph& graph, const poplar::Tensor& a,                        \
                             const poplar::Tensor& b, const poplar::Tensor& out,                   \
                             poplar::program::Sequence& prog, const poplar::DebugContext& = {},    \
                             const poplar::OptionFlags& = {}) {                                    \
    mapWithOutput(graph, expr::BinaryOpType::name, a, b, out, prog);                               \
  }                                                                                                \
  template <typename T, expr::detail::IfNumber<T> = 0>                                             \
  poplar::Tensor fn(poplar::Graph& graph, const poplar::Tensor& a, T b,                            \
                    poplar::program::Sequence& prog, const poplar::DebugContext& = {},             \
                    const poplar::OptionFlags& = {}) {                                             \
    return map(graph, expr::cls(expr::PlaceHolder(1), expr::Const(b)), {a}, prog);                 \
  }                                                                                                \
  template <typename T, expr::detail::IfNumber<T> = 0>                                             \
  poplar::Tensor fn(poplar::Graph& graph, T a, const poplar::Tensor& b,                            \
                    poplar::program::Sequence& prog, const poplar::DebugContext& = {},             \
                    const poplar::OptionFlags& = {}) {                                             \
    return map(graph, expr::cls(expr::Const(a), expr::PlaceHolder(1)), {b}, prog);                 \
  }                                                                                                \
  template <typename T, expr::detail::IfNumber<T> = 0>                                             \
  void fn##InPlace(poplar::Graph& graph, const poplar::Tensor& a, T b,                             \
                   poplar::program::Sequence& prog, const poplar::DebugContext& = {},              \
                   const poplar::OptionFlags& = {}) {                                              \
    mapInPlace(graph, expr::cls(expr::PlaceHolder(1), expr::Const(b)), {a}, prog);                 \
  }                                                                                                \
  template <typename T, expr::detail::IfNumber<T> = 0>                                             \
  void fn##WithOutput(poplar::Graph& graph, const poplar::Tensor& a, T b,                          \
                      const poplar::Tensor& out, poplar::program::Sequence& prog,                  \
                      const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {         \
    mapWithOutput(graph, expr::cls(expr::PlaceHolder(1), expr::Const(b)), {a}, out, prog);         \
  }                                                                                                \
  template <typename T, expr::detail::IfNumber<T> = 0>                                             \
  void fn##WithOutput(poplar::Graph& graph, T a, const poplar::Tensor& b,                          \
                      const poplar::Tensor& out, poplar::program::Sequence& prog,                  \
                      const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {         \
    mapWithOutput(graph, expr::cls(expr::Const(a), expr::PlaceHolder(1)), {b}, out, prog);         \
  }
TESSERA_BINARY_OPS(TESSERA_ROW)
#undef TESSERA_ROW

#define TESSERA_ROW(name, cls, fn)                                                                 \
  inline poplar::Tensor fn(poplar::Graph& graph, const poplar::Tensor& a, const poplar::Tensor& b, \
                           const poplar::Tensor& c, poplar::program::Sequence& prog,               \
                           const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {    \
    return map(graph, expr::TernaryOpType::name, a, b, c, prog);                                   \
  }                                                                                                \
  inline void fn##InPlace(poplar::Graph& graph, const poplar::Tensor& a, const poplar::Tensor& b,  \
                          const poplar::Tensor& c, poplar::program::Sequence& prog,                \
                          const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {     \
    mapInPlace(graph, expr::TernaryOpType::name, a, b, c, prog);                                   \
  }                                                                                                \
  inline void fn##WithOutput(poplar::Graph& graph, const poplar::Tensor& a,                        \
                             const poplar::Tensor& b, const poplar::Tensor& c,                     \
                             const poplar::Tensor& out, poplar::program::Sequence& prog,           \
                             const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {  \
    mapWithOutput(graph, expr::TernaryOpType::name, a, b, c, out, prog);                           \
  }
TESSERA_TERNARY_OPS(TESSERA_ROW)
#undef TESSERA_ROW

}  // namespace popops
