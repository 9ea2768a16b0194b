// SPDX-License-Identifier: Apache-2.0
// The border between the Poplar and PopART headers, which are inline, and libtessera_ops, which
// records what a program of Poplar does and gives it as text IR. C only: libraries of users need
// not share a C++ library with ours. Functions that fail return null and leave the reason in
// tessera_rec_error.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(TESSERA_OPS_BUILD)
#define TESSERA_COMPAT_API __attribute__((visibility("default")))
#else
#define TESSERA_COMPAT_API
#endif

//   C++ name              name in vertices          text IR  bytes
#define TESSERA_POPLAR_TYPES(ROW)                        \
  ROW(FLOAT, "float", "f32", 4)                          \
  ROW(HALF, "half", "f16", 2)                            \
  ROW(INT, "int", "i32", 4)                              \
  ROW(UNSIGNED_INT, "unsigned int", "i32", 4)            \
  ROW(SHORT, "short", "i16", 2)                          \
  ROW(UNSIGNED_SHORT, "unsigned short", "i16", 2)        \
  ROW(CHAR, "char", "i8", 1)                             \
  ROW(SIGNED_CHAR, "signed char", "i8", 1)               \
  ROW(UNSIGNED_CHAR, "unsigned char", "u8", 1)           \
  ROW(BOOL, "bool", "bool", 1)                           \
  ROW(LONGLONG, "long long", "i64", 8)                   \
  ROW(UNSIGNED_LONGLONG, "unsigned long long", "i64", 8) \
  ROW(BFLOAT16, "bfloat16", "bf16", 2)

extern "C" {

typedef struct tessera_recorder tessera_recorder;
typedef struct tessera_vertices tessera_vertices;  // vertices.h
typedef struct tessera_statement tessera_statement;

// Part of one or more variables, seen as a dense tensor. It lives as long as its recorder.
typedef struct tessera_view {
  tessera_recorder* recorder;
  int32_t type;  // a row of TESSERA_POPLAR_TYPES
  int32_t rank;
  const int64_t* shape;
  int64_t elements;
} tessera_view;

// How a view is made of others, with the integers that it takes.
typedef enum tessera_view_kind {
  TESSERA_VIEW_VARIABLE = 0,
  TESSERA_VIEW_RESHAPE = 1,      // shape
  TESSERA_VIEW_PERMUTE = 2,      // permutation
  TESSERA_VIEW_SLICE = 3,        // dim, begin, end
  TESSERA_VIEW_BROADCAST = 4,    // dim, times
  TESSERA_VIEW_REVERSE = 5,      // dim
  TESSERA_VIEW_REINTERPRET = 6,  // type
  TESSERA_VIEW_CONCAT = 7        // dim
} tessera_view_kind;

// One node of an element-wise expression in postfix order.
typedef enum tessera_expr_kind {
  TESSERA_EXPR_CONST = 0,  // number or integer, type; strict is 1 if the type is not to be changed
  TESSERA_EXPR_PLACEHOLDER = 1,  // op: which tensor, from 0
  TESSERA_EXPR_CAST = 2,         // type
  TESSERA_EXPR_UNARY = 3,        // op
  TESSERA_EXPR_BINARY = 4,
  TESSERA_EXPR_TERNARY = 5
} tessera_expr_kind;

typedef struct tessera_expr {
  int32_t kind;
  int32_t op;
  int32_t type;
  int32_t strict;
  double number;
  int64_t integer;
} tessera_expr;

// What a statement does; `in` are views that it reads, `out` those that it writes. Where `out` is
// left empty a variable is made for the result.
typedef enum tessera_statement_kind {
  TESSERA_DO_MAP = 0,     // in -> out by `expr`
  TESSERA_DO_COPY = 1,    // in -> out, of as many elements
  TESSERA_DO_FILL = 2,    // out = reals[0]
  TESSERA_DO_CAST = 3,    // in -> out; ints: type
  TESSERA_DO_REDUCE = 4,  // in[0], in[1] scale if there -> out; ints: op, update, type, dims...
  TESSERA_DO_DYNAMIC_SLICE = 5,   // in, offsets -> out; ints: n, dims..., sizes...
  TESSERA_DO_DYNAMIC_UPDATE = 6,  // in, offsets -> out; ints: n, dims..., sizes...
  TESSERA_DO_MATMUL = 7,          // a, b -> out; ints: type
  TESSERA_DO_MATMUL_ADD = 8,      // a, b -> out += reals[0] * a b
  TESSERA_DO_ARG_EXTREME = 9,     // in[n, m] -> value[n], index[n]; ints: 1 for the smallest
  TESSERA_DO_TOP_K = 10,  // in -> values, indices along the last dim; ints: k, largest, sorted
  TESSERA_DO_SORT = 11,   // in -> values; ints: dim; in, values to sort by it -> two results
  TESSERA_DO_MULTI_SLICE = 12,   // table, indices -> rows; ints: dim
  TESSERA_DO_MULTI_UPDATE = 13,  // rows, indices -> out; ints: dim, add; reals: scale
  TESSERA_DO_RANDOM = 14,  // seed if any -> out; ints: tessera_random, smallest, largest, modifier;
                           // reals: smallest and largest, or mean, deviation and limit
  TESSERA_DO_CUSTOM = 15,  // in -> out by the op that `text` calls: "domain", "name", version;
                           // ints: 1 for a seed as the last input
  TESSERA_DO_EXCHANGE = 16  // in[n, ..] -> out, of a group of n replicas; ints: n, how far apart
} tessera_statement_kind;

typedef enum tessera_random {
  TESSERA_RANDOM_UNIFORM = 0,
  TESSERA_RANDOM_NORMAL = 1,
  TESSERA_RANDOM_TRUNCATED = 2,  // of `limit` deviations at most
  TESSERA_RANDOM_INTEGER = 3     // both ends may come
} tessera_random;

typedef struct tessera_statement_desc {
  uint32_t size;
  int32_t kind;
  const tessera_view* const* in;
  int64_t ins;
  const tessera_view* const* out;
  int64_t outs;
  const int64_t* ints;
  int64_t int_count;
  const double* reals;
  int64_t real_count;
  const tessera_expr* expr;
  int64_t expr_count;
  const char* text;        // for TESSERA_DO_CUSTOM: `"domain", "name", 1`
  const char* attributes;  // for TESSERA_DO_CUSTOM: `[["key", 1], ...]`
} tessera_statement_desc;

typedef enum tessera_program_kind {
  TESSERA_SEQUENCE = 0,
  TESSERA_STATEMENT = 1,
  TESSERA_REPEAT = 2,        // children[0], count times
  TESSERA_REPEAT_WHILE = 3,  // children[0], then while predicate: children[1], children[0]
  TESSERA_IF = 4,            // predicate ? children[0] : children[1]
  TESSERA_EXECUTE = 5        // vertices, the compute set `count`
} tessera_program_kind;

// A program of Poplar: a tree that the headers own.
typedef struct tessera_program {
  int32_t kind;
  int32_t until;  // for TESSERA_REPEAT_WHILE: go on while the predicate is this
  int64_t count;
  const tessera_statement* statement;
  const tessera_view* predicate;
  const struct tessera_program* const* children;
  int64_t child_count;
  tessera_vertices* vertices;
} tessera_program;

typedef struct tessera_tile_interval {
  int64_t tile;
  int64_t begin;
  int64_t end;
} tessera_tile_interval;

TESSERA_COMPAT_API const char* tessera_rec_error(void);
TESSERA_COMPAT_API tessera_recorder* tessera_rec_new(void);
TESSERA_COMPAT_API void tessera_rec_delete(tessera_recorder*);

// A variable; those that are inputs of the op have its number, others -1.
TESSERA_COMPAT_API const tessera_view* tessera_rec_variable(tessera_recorder*, int32_t type,
                                                            int32_t rank, const int64_t* shape,
                                                            int32_t input, const char* name);
// A constant. One value is for all elements.
TESSERA_COMPAT_API const tessera_view* tessera_rec_constant(tessera_recorder*, int32_t type,
                                                            int32_t rank, const int64_t* shape,
                                                            const double* numbers,
                                                            const int64_t* integers, int64_t count);
// What a variable holds before the program runs.
TESSERA_COMPAT_API int tessera_rec_set_initial(const tessera_view*, const double* numbers,
                                               const int64_t* integers, int64_t count);
TESSERA_COMPAT_API const tessera_view* tessera_rec_view(tessera_view_kind,
                                                        const tessera_view* const* parents,
                                                        int64_t parent_count, const int64_t* args,
                                                        int64_t arg_count);
// Results are put where `results` points, one for each that the statement has.
TESSERA_COMPAT_API const tessera_statement* tessera_rec_statement(tessera_recorder*,
                                                                  const tessera_statement_desc*,
                                                                  const tessera_view** results);
// Text IR of the program with the views as outputs; good until the next call.
TESSERA_COMPAT_API const char* tessera_rec_compose(tessera_recorder*, const tessera_program*,
                                                   const tessera_view* const* outputs,
                                                   int64_t output_count);

// Tile mapping. Intervals are of the flattened view.
TESSERA_COMPAT_API int tessera_rec_set_mapping(const tessera_view*, const tessera_tile_interval*,
                                               int64_t count);
TESSERA_COMPAT_API int tessera_rec_copy_mapping(const tessera_view* from, const tessera_view* to);
// Sorted by tile, then by place; good until the next call.
TESSERA_COMPAT_API const tessera_tile_interval* tessera_rec_mapping(const tessera_view*,
                                                                    int64_t* count);
// Contiguous parts of variables that a view is made of: variable, begin, end. Good until the next
// call.
TESSERA_COMPAT_API const tessera_tile_interval* tessera_rec_regions(const tessera_view*,
                                                                    int64_t* count);

// The view of a whole variable, by the number that regions have.
TESSERA_COMPAT_API const tessera_view* tessera_rec_whole(tessera_recorder*, int64_t variable);

// Creators of ops and of their Opx, and patterns, of all libraries: objects of the headers under a
// key. The first one stays; add returns 0, or 1 if there was one.
TESSERA_COMPAT_API int tessera_creator_add(const char* kind, const char* key, void* creator);
TESSERA_COMPAT_API void* tessera_creator_find(const char* kind, const char* key);
// In the order in which they came; null behind the last one.
TESSERA_COMPAT_API void* tessera_creator_at(const char* kind, int64_t index);
// What is known of the program that is being made: "training", "replicas", "accumulation",
// "pattern NAME", "literal in place".
TESSERA_COMPAT_API int64_t tessera_fact(const char* name, int64_t otherwise);
TESSERA_COMPAT_API void tessera_compat_log(int32_t level, const char* text);
}
