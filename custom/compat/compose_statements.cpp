// SPDX-License-Identifier: Apache-2.0
// Statements of a recorded program as nodes of the text IR.
#include "custom/compat/compose.h"

namespace tessera::compat {

namespace {

enum ReduceOp : int32_t {
#define ROW(name) R_##name,
  TESSERA_REDUCE_OPS(ROW)
#undef ROW
};

// Sums and products of integers are of 64 bits in the text IR.
Value reduced(Writer& w, const char* row, const Value& x, const std::vector<int64_t>& dims) {
  if (dims.empty()) return x;
  Shape shape;
  std::vector<bool> gone(x.shape.size(), false);
  for (int64_t d : dims) gone[d] = true;
  for (size_t i = 0; i < gone.size(); ++i)
    if (!gone[i]) shape.push_back(x.shape[i]);
  const std::string_view name = row;
  if (is_unsigned(x.type) && (name == "amin" || name == "amax"))
    return out_of_order(w, reduced(w, row, in_order(w, x), dims), x.type);
  const bool wide = !is_real(x.type) && (name == "sum" || name == "prod");
  const std::string args = Writer::ref(x) + ", ";
  if (name == "prod" || name == "all" || name == "any") {
    // One dim at a time, the last first: the ops of torch take no more.
    Value v = x;
    for (size_t i = gone.size(); i-- > 0;) {
      if (!gone[i]) continue;
      Shape rest = v.shape;
      rest.erase(rest.begin() + static_cast<int64_t>(i));
      const int32_t type = name == "prod" ? (wide ? static_cast<int32_t>(LONGLONG) : v.type)
                                          : static_cast<int32_t>(BOOL);
      v = w.node(row, Writer::ref(v) + ", [" + std::to_string(i) + "], false", type, rest);
    }
    return w.cast(v, x.type);
  }
  const Value v = w.node(row, args + Writer::list(dims) + ", false",
                         wide ? static_cast<int32_t>(LONGLONG) : x.type, shape);
  return w.cast(v, x.type);
}

Value log_add(Writer& w, const Value& x, const std::vector<int64_t>& dims) {
  const Value top = reduced(w, "amax", x, dims);
  Shape kept = x.shape;
  for (int64_t d : dims) kept[d] = 1;
  const Value less = w.pointwise("sub", {x, w.reshape(top, kept)}, x.type);
  const Value sum = reduced(w, "sum", w.pointwise("exp", {less}, x.type), dims);
  return w.pointwise("add", {top, w.pointwise("log", {sum}, x.type)}, x.type);
}

}  // namespace

void Composer::map(const Statement& s) {
  std::vector<Value> in;
  for (const View* v : s.in) in.push_back(read(*v));
  const View& out = *s.out[0];
  const Value x = write_expr(w, typed(s.expr, s.in, &out), in);
  write(out, w.expand(x, out.dims));
}

void Composer::reduce(const Statement& s) {
  const View& out = *s.out[0];
  const int32_t op = static_cast<int32_t>(s.ints[0]);
  const std::vector<int64_t> dims(s.ints.begin() + 3, s.ints.end());
  const bool scaled = s.in.size() > 1;
  Value x = read(*s.in[0]);
  // Half is summed in float.
  if (is_real(x.type) && (scaled || out.type != x.type)) x = w.cast(x, FLOAT);
  Value y;
  switch (op) {
    case R_ADD:
      y = reduced(w, "sum", x, dims);
      break;
    case R_SQUARE_ADD:
      y = reduced(w, "sum", w.pointwise("square", {x}, x.type), dims);
      break;
    case R_MUL:
      y = reduced(w, "prod", x, dims);
      break;
    case R_MIN:
      y = reduced(w, "amin", x, dims);
      break;
    case R_MAX:
      y = reduced(w, "amax", x, dims);
      break;
    case R_LOGICAL_AND:
      y = reduced(w, "all", x, dims);
      break;
    case R_LOGICAL_OR:
      y = reduced(w, "any", x, dims);
      break;
    case R_LOG_ADD:
      y = log_add(w, x, dims);
      break;
    default:
      fail("reduce: unknown operation");
  }
  if (scaled) {
    const Value scale = w.cast(w.reshape(read(*s.in[1]), {}), y.type);
    y = op == R_LOG_ADD ? w.pointwise("add", {y, scale}, y.type)
                        : w.pointwise("mul", {y, scale}, y.type);
  }
  y = w.cast(y, out.type);
  if (s.ints[1]) {
    const Value before = read(out);
    const int32_t how = op == R_MUL           ? B_MULTIPLY
                        : op == R_MIN         ? B_MINIMUM
                        : op == R_MAX         ? B_MAXIMUM
                        : op == R_LOGICAL_AND ? B_LOGICAL_AND
                        : op == R_LOGICAL_OR  ? B_LOGICAL_OR
                                              : B_ADD;
    if (op == R_LOG_ADD)
      y = w.pointwise("logaddexp", {before, y}, y.type);
    else
      y = write_binary(w, how, before, y);
  }
  write(out, y);
}

// Places offset[i] .. offset[i] + size - 1 in a dim, which go round at its end.
Value Composer::places(const Value& offsets, int64_t i, int64_t size, int64_t extent) {
  const Value flat = w.reshape(offsets, {product(offsets.shape)});
  const Value first = w.cast(w.slice(flat, 0, i, i + 1), LONGLONG);
  const Value steps = w.node("iota", "0, 0, 1", LONGLONG, {size});
  const Value at = w.pointwise("add", {steps, first}, LONGLONG);
  return w.node("remainder", Writer::ref(at) + ", " + std::to_string(extent), LONGLONG, {size});
}

void Composer::dynamic_slice(const Statement& s) {
  Value x = read(*s.in[0]);
  const Value offsets = read(*s.in[1]);
  const int64_t n = s.ints[0];
  for (int64_t i = 0; i < n; ++i) {
    const int64_t d = s.ints[1 + i], size = s.ints[1 + n + i];
    if (size == x.shape[d]) continue;
    Shape shape = x.shape;
    shape[d] = size;
    const Value at = places(offsets, i, size, x.shape[d]);
    x = w.node("index_select", Writer::ref(x) + ", " + std::to_string(d) + ", " + Writer::ref(at),
               x.type, shape);
  }
  write(*s.out[0], x);
}

void Composer::dynamic_update(const Statement& s) {
  const Value offsets = read(*s.in[1]);
  const int64_t n = s.ints[0];
  // The parts that hold the place, from the whole inwards, and where each lies in the one before.
  std::vector<Value> parts{read(*s.out[0])}, at;
  std::vector<int64_t> dims;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t d = s.ints[1 + i], size = s.ints[1 + n + i];
    const Value& x = parts.back();
    if (size == x.shape[d]) continue;
    dims.push_back(d);
    at.push_back(places(offsets, i, size, x.shape[d]));
    Shape shape = x.shape;
    shape[d] = size;
    parts.push_back(w.node(
        "index_select", Writer::ref(x) + ", " + std::to_string(d) + ", " + Writer::ref(at.back()),
        x.type, shape));
  }
  Value x = read(*s.in[0]);
  for (size_t i = dims.size(); i-- > 0;)
    x = w.node("index_copy",
               Writer::ref(parts[i]) + ", " + std::to_string(dims[i]) + ", " + Writer::ref(at[i]) +
                   ", " + Writer::ref(x),
               x.type, parts[i].shape);
  write(*s.out[0], x);
}

void Composer::matmul(const Statement& s) {
  const View& out = *s.out[0];
  Value a = read(*s.in[0]), b = read(*s.in[1]);
  if (out.type != a.type) {
    a = w.cast(a, FLOAT);
    b = w.cast(b, FLOAT);
  }
  Value y = w.node(out.rank == 3 ? "bmm" : "mm", Writer::ref(a) + ", " + Writer::ref(b), a.type,
                   out.dims);
  y = w.cast(y, out.type);
  if (s.kind == TESSERA_DO_MATMUL_ADD) {
    if (s.reals.at(0) != 1)
      y = w.node("mul", Writer::ref(y) + ", " + number_text(s.reals[0]), y.type, y.shape);
    y = w.pointwise("add", {read(out), y}, y.type);
  }
  write(out, y);
}

void Composer::arg_extreme(const Statement& s) {
  const Value given = read(*s.in[0]), x = in_order(w, given);
  const bool least = !s.ints.empty() && s.ints[0];
  const Shape shape{x.shape[0]};
  write(*s.out[0], reduced(w, least ? "amin" : "amax", given, {1}));
  const Value at =
      w.node(least ? "argmin" : "argmax", Writer::ref(x) + ", [1], false", LONGLONG, shape);
  write(*s.out[1], w.cast(at, s.out[1]->type));
}

// ints: k, largest, sorted
void Composer::top_k(const Statement& s) {
  const Value x = in_order(w, read(*s.in[0]));
  const Shape& shape = s.out[0]->dims;
  const std::string args = Writer::ref(x) + ", " + std::to_string(s.ints[0]) + ", " +
                           std::to_string(x.shape.size() - 1) + (s.ints[1] ? ", true" : ", false") +
                           ", true";
  const std::vector<Value> y = w.nodes("topk", args, {{-1, x.type, shape}, {-1, LONGLONG, shape}});
  write(*s.out[0], out_of_order(w, y[0], s.out[0]->type));
  write(*s.out[1], w.cast(y[1], s.out[1]->type));
}

// ints: dim. One tensor: it is sorted; two: the second in the order of the first.
void Composer::sort(const Statement& s) {
  const Value key = in_order(w, read(*s.in[0]));
  const std::string dim = std::to_string(s.ints.at(0));
  const std::vector<Value> y = w.nodes("sort", Writer::ref(key) + ", " + dim + ", false",
                                       {{-1, key.type, key.shape}, {-1, LONGLONG, key.shape}});
  if (s.in.size() == 1) return write(*s.out[0], out_of_order(w, y[0], s.out[0]->type));
  const Value x = read(*s.in[1]);
  write(*s.out[0],
        w.node("gather", Writer::ref(x) + ", " + dim + ", " + Writer::ref(y[1]), x.type, x.shape));
}

void Composer::multi_slice(const Statement& s) {
  const Value table = read(*s.in[0]);
  const int64_t dim = s.ints[0];
  Value index = read(*s.in[1]);
  const int64_t rows = s.out[0]->dims[0];
  index = w.cast(w.reshape(index, {rows}), LONGLONG);
  Shape shape = table.shape;
  shape[dim] = rows;
  Value x = w.node("index_select",
                   Writer::ref(table) + ", " + std::to_string(dim) + ", " + Writer::ref(index),
                   table.type, shape);
  // [.., rows, ..] to [rows, .., 1, ..]
  std::vector<int64_t> order{dim};
  for (int64_t i = 0; i < static_cast<int64_t>(shape.size()); ++i)
    if (i != dim) order.push_back(i);
  write(*s.out[0], w.reshape(w.permute(x, order), s.out[0]->dims));
}

void Composer::multi_update(const Statement& s) {
  const View& out = *s.out[0];
  const int64_t dim = s.ints[0];
  Value rows = read(*s.in[0]);
  const int64_t n = rows.shape.empty() ? 0 : rows.shape[0];
  const Value index = w.cast(w.reshape(read(*s.in[1]), {n}), LONGLONG);
  // [rows, .., 1, ..] to [.., rows, ..]
  Shape flat{n};
  std::vector<int64_t> order;
  for (int64_t i = 0; i < out.rank; ++i) {
    if (i != dim) flat.push_back(out.dims[i]);
    order.push_back(i == dim ? 0 : (i < dim ? i + 1 : i));
  }
  rows = w.permute(w.reshape(rows, flat), order);
  const Value before = read(out);
  const bool add = s.ints[1] != 0;
  if (add && s.in.size() > 2) {
    const Value scale = w.cast(w.reshape(read(*s.in[2]), {}), rows.type);
    rows = w.pointwise("mul", {rows, scale}, rows.type);
  }
  write(out, w.node(add ? "index_add" : "index_copy",
                    Writer::ref(before) + ", " + std::to_string(dim) + ", " + Writer::ref(index) +
                        ", " + Writer::ref(rows),
                    before.type, before.shape));
}

void Composer::custom(const Statement& s) {
  std::string in;
  for (const View* v : s.in) {
    // A custom op reads dense memory; the text has no more to say.
    const std::string ref = Writer::ref(read(*v));
    in += (in.empty() ? "" : ", ") + ref;
  }
  if (!s.ints.empty() && s.ints[0] == 1) in += (in.empty() ? "" : ", ") + Writer::ref(seed());
  std::vector<Value> types;
  for (const View* v : s.out) types.push_back({-1, v->type, v->dims});
  const std::string attributes = s.attributes.empty() ? "[]" : s.attributes;
  const std::vector<Value> y = w.nodes("custom", s.text + ", [" + in + "], " + attributes, types);
  for (size_t i = 0; i < y.size(); ++i) write(*s.out[i], y[i]);
}

}  // namespace tessera::compat
