// SPDX-License-Identifier: Apache-2.0
// What a statement needs and gives: checks its tensors and makes variables for results that are not
// there.
#include <algorithm>

#include "custom/compat/recorder_impl.h"

namespace tessera::compat {

namespace {

void want(const Statement& s, size_t in, const char* what) {
  if (s.in.size() < in) fail(std::string(what) + ": a tensor is missing");
}

// The i-th result, made if it is not there, else checked.
void result(tessera_recorder& r, Statement& s, size_t i, int32_t type, const Shape& shape,
            const char* what) {
  if (s.out.size() == i) s.out.push_back(new_variable(r, type, shape));
  const View& v = *s.out.at(i);
  if (v.dims != shape || v.type != type)
    fail(std::string(what) + ": the result is " + row_of(type).name + text_of(shape) +
         ", the tensor for it " + row_of(v.type).name + text_of(v.dims));
}

Shape reduced(const View& x, const std::vector<int64_t>& dims) {
  std::vector<bool> gone(x.rank, false);
  for (int64_t d : dims) {
    if (d < 0 || d >= x.rank)
      fail("reduce: dimension " + std::to_string(d) + " of a tensor of shape " + text_of(x.dims));
    gone[d] = true;
  }
  Shape out;
  for (int32_t i = 0; i < x.rank; ++i)
    if (!gone[i]) out.push_back(x.dims[i]);
  return out;
}

void complete_map(tessera_recorder& r, Statement& s) {
  const ExprType t = type_of_map(s.expr, s.in, s.out.empty() ? nullptr : s.out[0]);
  if (s.out.empty()) {
    s.out.push_back(new_variable(r, t.type, t.shape));
  } else if (broadcast(s.out[0]->dims, t.shape, "map") != s.out[0]->dims) {
    fail("map: the tensors broadcast to " + text_of(t.shape) + ", the result is " +
         text_of(s.out[0]->dims));
  }
}

// ints: op, update, type, dims...
void complete_reduce(tessera_recorder& r, Statement& s) {
  want(s, 1, "reduce");
  const Shape shape = reduced(*s.in[0], {s.ints.begin() + 3, s.ints.end()});
  const int32_t type = s.out.empty() ? static_cast<int32_t>(s.ints[2]) : s.out[0]->type;
  if (s.ints[1] && s.out.empty())
    fail("reduce: update needs the tensor to update, see reduceWithOutput");
  result(r, s, 0, type, shape, "reduce");
}

void complete_slice(tessera_recorder& r, Statement& s) {
  want(s, 2, "dynamic slice");
  const bool update = s.kind == TESSERA_DO_DYNAMIC_UPDATE;
  const View& whole = update ? *s.out.at(0) : *s.in[0];
  const int64_t n = s.ints.at(0);
  Shape part = whole.dims;
  if (s.in[1]->elements != n)
    fail("dynamic slice: " + std::to_string(n) + " dimensions, " +
         std::to_string(s.in[1]->elements) + " offsets");
  for (int64_t i = 0; i < n; ++i) {
    const int64_t d = s.ints.at(1 + i), size = s.ints.at(1 + n + i);
    if (d < 0 || d >= whole.rank || size < 0 || size > whole.dims[d])
      fail("dynamic slice: " + std::to_string(size) + " elements of dimension " +
           std::to_string(d) + " of a tensor of shape " + text_of(whole.dims));
    part[d] = size;
  }
  if (!update) return result(r, s, 0, whole.type, part, "dynamicSlice");
  if (s.in[0]->dims != part || s.in[0]->type != whole.type)
    fail("dynamicUpdate: a slice of shape " + text_of(s.in[0]->dims) + " where " + text_of(part) +
         " is needed");
}

void complete_matmul(tessera_recorder& r, Statement& s) {
  want(s, 2, "matMul");
  const View &a = *s.in[0], &b = *s.in[1];
  const int32_t n = a.rank;
  if ((n != 2 && n != 3) || b.rank != n || a.dims[n - 1] != b.dims[n - 2] ||
      (n == 3 && a.dims[0] != b.dims[0]))
    fail("matMul: shapes " + text_of(a.dims) + " and " + text_of(b.dims) + " do not fit");
  if (a.type != b.type) fail("matMul: tensors of two types");
  Shape shape = a.dims;
  shape[n - 1] = b.dims[n - 1];
  const int32_t type = s.kind == TESSERA_DO_MATMUL_ADD ? s.out.at(0)->type
                       : s.ints.empty()                ? a.type
                                                       : static_cast<int32_t>(s.ints[0]);
  result(r, s, 0, type, shape, "matMul");
}

void complete_rows(tessera_recorder& r, Statement& s) {
  want(s, 2, "multi slice");
  const View& index = *s.in[1];
  const int64_t rows = index.dims.empty() ? 1 : index.dims[0];
  if (s.kind == TESSERA_DO_MULTI_SLICE) {
    Shape shape = s.in[0]->dims;
    shape.at(s.ints.at(0)) = 1;
    shape.insert(shape.begin(), rows);
    return result(r, s, 0, s.in[0]->type, shape, "multiSlice");
  }
}

// Values and places along the last dim.
void complete_top(tessera_recorder& r, Statement& s) {
  want(s, 1, "topK");
  Shape shape = s.in[0]->dims;
  if (shape.empty() || s.ints.at(0) > shape.back())
    fail("topK: " + std::to_string(s.ints.at(0)) + " of a tensor of shape " + text_of(shape));
  shape.back() = s.ints[0];
  result(r, s, 0, s.in[0]->type, shape, "topK");
  result(r, s, 1, UNSIGNED_INT, shape, "topK");
}

}  // namespace

void complete(tessera_recorder& r, Statement& s) {
  switch (s.kind) {
    case TESSERA_DO_MAP:
      return complete_map(r, s);
    case TESSERA_DO_COPY:
      want(s, 1, "Copy");
      if (s.in[0]->elements != s.out.at(0)->elements || s.in[0]->type != s.out[0]->type)
        fail(std::string("Copy: from ") + row_of(s.in[0]->type).name + text_of(s.in[0]->dims) +
             " to " + row_of(s.out[0]->type).name + text_of(s.out[0]->dims));
      return;
    case TESSERA_DO_FILL:
      s.out.at(0);
      return;
    case TESSERA_DO_CAST:
      want(s, 1, "cast");
      if (s.out.empty())
        return result(r, s, 0, static_cast<int32_t>(s.ints.at(0)), s.in[0]->dims, "cast");
      if (s.out[0]->elements != s.in[0]->elements) fail("cast: the tensors differ in size");
      return;
    case TESSERA_DO_REDUCE:
      return complete_reduce(r, s);
    case TESSERA_DO_DYNAMIC_SLICE:
    case TESSERA_DO_DYNAMIC_UPDATE:
      return complete_slice(r, s);
    case TESSERA_DO_MATMUL:
    case TESSERA_DO_MATMUL_ADD:
      return complete_matmul(r, s);
    case TESSERA_DO_ARG_EXTREME:
      want(s, 1, "maxAndArgMax");
      if (s.in[0]->rank != 2)
        fail("maxAndArgMax: a tensor of shape " + text_of(s.in[0]->dims) + ", not of rank 2");
      result(r, s, 0, s.in[0]->type, {s.in[0]->dims[0]}, "maxAndArgMax");
      return result(r, s, 1, UNSIGNED_INT, {s.in[0]->dims[0]}, "maxAndArgMax");
    case TESSERA_DO_TOP_K:
      return complete_top(r, s);
    case TESSERA_DO_SORT:
      want(s, 1, "sort");
      return result(r, s, 0, s.in.back()->type, s.in.back()->dims, "sort");
    case TESSERA_DO_MULTI_SLICE:
    case TESSERA_DO_MULTI_UPDATE:
      return complete_rows(r, s);
    case TESSERA_DO_RANDOM:
      if (s.out.empty()) fail("random numbers need a tensor to be like");
      if (s.ints.size() != 4) fail("random numbers: four numbers say which");
      return;
    case TESSERA_DO_EXCHANGE:
      want(s, 1, "a collective");
      if (s.in[0]->dims.empty() || s.in[0]->dims[0] != s.ints.at(0))
        fail("a tensor of shape " + text_of(s.in[0]->dims) + " has no part for each of " +
             std::to_string(s.ints[0]) + " replicas in its first dimension");
      return result(r, s, 0, s.in[0]->type, s.in[0]->dims, "a collective");
    case TESSERA_DO_CUSTOM:
      return;
  }
  fail("unknown statement");
}

}  // namespace tessera::compat
