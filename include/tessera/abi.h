/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface between Tessera and libraries of custom ops. C++ programs include custom_op.h,
   which says the same in classes. Structs begin with their size and grow only at the end;
   everything else is an opaque handle and a function of libtessera_ops. */
#ifndef TESSERA_ABI_H
#define TESSERA_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Libraries of another number are refused. */
#define TESSERA_OPS_ABI 1

#if defined(TESSERA_OPS_BUILD)
#define TESSERA_API __attribute__((visibility("default")))
#else
#define TESSERA_API
#endif

typedef enum tessera_dtype {
  TESSERA_F32 = 0,
  TESSERA_F16 = 1,
  TESSERA_BF16 = 2,
  TESSERA_F64 = 3,
  TESSERA_I64 = 4,
  TESSERA_I32 = 5,
  TESSERA_I16 = 6,
  TESSERA_I8 = 7,
  TESSERA_U8 = 8,
  TESSERA_BOOL = 9
} tessera_dtype;

typedef enum tessera_attribute_kind {
  TESSERA_NO_ATTRIBUTE = 0,
  TESSERA_FLOAT = 1,
  TESSERA_FLOATS = 2,
  TESSERA_INT = 3,
  TESSERA_INTS = 4,
  TESSERA_STRING = 5,
  TESSERA_STRINGS = 6
} tessera_attribute_kind;

/* What an input of a gradient op is: an input of the op, one of its outputs, or the gradient of
 * one. */
typedef enum tessera_gradient_source {
  TESSERA_IN = 0,
  TESSERA_OUT = 1,
  TESSERA_GRAD_OUT = 2
} tessera_gradient_source;

/* What happens to an input that has a new value: a parameter or a buffer is given it in every
   micro-batch, or once per weight update; or only the gradient ops of the call see it. */
typedef enum tessera_update_kind {
  TESSERA_EVERY_MICRO_BATCH = 0,
  TESSERA_EVERY_STEP = 1,
  TESSERA_FOR_GRADIENTS = 2
} tessera_update_kind;

typedef struct tessera_type {
  int32_t dtype; /* tessera_dtype */
  int32_t rank;
  const int64_t* shape;
} tessera_type;

/* One call of an op in a program: the types of its inputs, its attributes and, after setup, the
   types of its outputs. Pointers that it returns are good while it lives. */
typedef struct tessera_call tessera_call;
typedef struct tessera_gradient tessera_gradient;

/* One thread's part in one run of compute. Tensors are dense and row-major. */
typedef struct tessera_run {
  uint32_t size;
  int32_t thread;
  int32_t threads;
  int32_t reserved;
  const tessera_call* call;
  void* instance; /* what prepare returned */
  const void* const* inputs;
  void* const* outputs;
  void* scratch; /* of this thread, tessera_call_set_scratch bytes, aligned to 64 */
  /* All threads of the run wait for each other; a thread that has returned or failed is not waited
   * for. */
  void (*barrier)(const struct tessera_run*);
  /* The run ends with an error of this text at the user's line; compute should return. */
  void (*fail)(const struct tessera_run*, const char* text);
  void* team;
} tessera_run;

/* flags of an op */
#define TESSERA_ONE_THREAD 1u /* compute is called by one thread only */
#define TESSERA_VARIES 2u     /* equal calls may give other results: each is made once */

/* An op. Callbacks may throw C++ exceptions: they are reported as errors of the call. Those that
   are null are not there; setup and one of compute and compose must be. */
typedef struct tessera_op {
  uint32_t size; /* sizeof(tessera_op) */
  uint32_t abi;  /* TESSERA_OPS_ABI */
  const char* domain;
  const char* name;
  int32_t version;
  uint32_t flags;
  const void* origin; /* an address in the library that the op is of; null: that of the callbacks */
  void* user;         /* for the callbacks: tessera_call_user */
  /* Sets the types of the outputs. Called often and by any thread: it may not keep anything. */
  void (*setup)(tessera_call*);
  /* Once per place in a program, when it is loaded; what it returns is tessera_run.instance. */
  void* (*prepare)(tessera_call*);
  void (*destroy)(void* instance);
  void (*compute)(const tessera_run*);
  /* Gives the op as a graph of others: tessera_call_set_composition. */
  void (*compose)(tessera_call*);
  /* Names the ops that compute gradients: tessera_call_add_gradient. */
  void (*gradients)(tessera_call*);
  /* Operations and bytes of a run, for the IPU Model and reports: tessera_call_set_work. */
  void (*work)(tessera_call*);
} tessera_op;

/* Copies what it is given. 0, or why the op is not used: it is there already, or wrong. */
#define TESSERA_REGISTERED 0
#define TESSERA_KNOWN 1
#define TESSERA_REFUSED 2
TESSERA_API int tessera_register_op(const tessera_op* op);

/* For callbacks. Indices that are out of range give null, -1 or TESSERA_NO_ATTRIBUTE. */
TESSERA_API void* tessera_call_user(const tessera_call*);
TESSERA_API const char* tessera_call_domain(const tessera_call*);
TESSERA_API const char* tessera_call_name(const tessera_call*);
TESSERA_API int32_t tessera_call_version(const tessera_call*);
TESSERA_API int32_t tessera_call_inputs(const tessera_call*);
TESSERA_API int32_t tessera_call_outputs(const tessera_call*);
TESSERA_API const tessera_type* tessera_call_input(const tessera_call*, int32_t index);
TESSERA_API const tessera_type* tessera_call_output(const tessera_call*, int32_t index);

TESSERA_API int32_t tessera_call_attributes(const tessera_call*);
TESSERA_API const char* tessera_call_attribute_name(const tessera_call*, int32_t index);
TESSERA_API tessera_attribute_kind tessera_call_attribute_kind(const tessera_call*,
                                                               const char* name);
/* The values of an attribute, of which there are *count. Null if it is of another kind; one value
   and a list of one are the same here. */
TESSERA_API const float* tessera_call_floats(const tessera_call*, const char* name, int64_t* count);
TESSERA_API const int64_t* tessera_call_ints(const tessera_call*, const char* name, int64_t* count);
TESSERA_API const char* const* tessera_call_strings(const tessera_call*, const char* name,
                                                    int64_t* count);

/* In any callback that has a call: it makes no sense; the first text counts. */
TESSERA_API void tessera_fail(tessera_call*, const char* text);
/* In setup. Outputs are numbered without gaps. */
TESSERA_API void tessera_call_set_output(tessera_call*, int32_t index, tessera_dtype, int32_t rank,
                                         const int64_t* shape);
/* In setup: the op takes a seed, i32[2], behind the inputs that it is called with. A new one is
   drawn for each call; gradient ops may read it as an input. */
TESSERA_API void tessera_call_want_seed(tessera_call*);
/* In prepare: bytes for every thread while compute runs. */
TESSERA_API void tessera_call_set_scratch(tessera_call*, int64_t bytes);
/* In compose: text IR, "tessera 1 graph ..."; its inputs and outputs are those of the op. */
TESSERA_API void tessera_call_set_composition(tessera_call*, const char* text);
/* In compose: an output of the text beyond those of the op, in the order of the calls, is the new
   value of the op's input `input`. */
TESSERA_API void tessera_call_add_update(tessera_call*, int32_t input, tessera_update_kind);
/* In work. */
TESSERA_API void tessera_call_set_work(tessera_call*, int64_t flops, int64_t bytes);

/* In gradients: one op more, which lives as long as the call. */
TESSERA_API tessera_gradient* tessera_call_add_gradient(tessera_call*, const char* domain,
                                                        const char* name, int32_t version);
TESSERA_API void tessera_gradient_set_floats(tessera_gradient*, const char* name, int32_t is_list,
                                             const float* values, int64_t count);
TESSERA_API void tessera_gradient_set_ints(tessera_gradient*, const char* name, int32_t is_list,
                                           const int64_t* values, int64_t count);
TESSERA_API void tessera_gradient_set_strings(tessera_gradient*, const char* name, int32_t is_list,
                                              const char* const* values, int64_t count);
/* All attributes of the op, as they are. */
TESSERA_API void tessera_gradient_copy_attributes(tessera_gradient*, const tessera_call*);
/* Its input `index` is the op's input, output or gradient of an output `from_index`. */
TESSERA_API void tessera_gradient_set_input(tessera_gradient*, int32_t index,
                                            tessera_gradient_source, int32_t from_index);
/* Its output `index` is the gradient of the op's input `forward_input`. */
TESSERA_API void tessera_gradient_set_output(tessera_gradient*, int32_t index,
                                             int32_t forward_input);

#ifdef __cplusplus
}
#endif

#endif
