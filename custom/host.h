/* SPDX-License-Identifier: Apache-2.0 */
/* The other side of tessera/abi.h: how the core finds ops and asks them. C at the border, because
   the core and the libraries of users need not share a C++ library. Functions that ask an op return
   0, or not 0 with the reason in tessera_call_error. */
#ifndef TESSERA_CUSTOM_HOST_H
#define TESSERA_CUSTOM_HOST_H

#include "tessera/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The op of the largest version that is not above `version`; null if there is none. */
TESSERA_API const tessera_op* tessera_find_op(const char* domain, const char* name,
                                              int32_t version);
TESSERA_API int64_t tessera_op_count(void);
/* In the order of registration. */
TESSERA_API const tessera_op* tessera_op_at(int64_t index);
/* File of the library that registered the op; "" if unknown. */
TESSERA_API const char* tessera_op_library(const tessera_op*);
/* Ops that are not used, and why, one sentence each. */
TESSERA_API int64_t tessera_refused_count(void);
TESSERA_API const char* tessera_refused_at(int64_t index);

TESSERA_API tessera_call* tessera_call_new(const tessera_op*);
TESSERA_API void tessera_call_delete(tessera_call*);
TESSERA_API void tessera_call_add_input(tessera_call*, tessera_dtype, int32_t rank,
                                        const int64_t* shape);
TESSERA_API void tessera_call_add_floats(tessera_call*, const char* name, int32_t is_list,
                                         const float* values, int64_t count);
TESSERA_API void tessera_call_add_ints(tessera_call*, const char* name, int32_t is_list,
                                       const int64_t* values, int64_t count);
TESSERA_API void tessera_call_add_strings(tessera_call*, const char* name, int32_t is_list,
                                          const char* const* values, int64_t count);

TESSERA_API int tessera_call_setup(tessera_call*);
/* After setup. */
TESSERA_API int32_t tessera_call_wants_seed(const tessera_call*);
TESSERA_API int tessera_call_prepare(tessera_call*, void** instance);
TESSERA_API void tessera_call_destroy(tessera_call*, void* instance);
TESSERA_API int tessera_call_compose(tessera_call*);
TESSERA_API int tessera_call_gradients(tessera_call*);
TESSERA_API int tessera_call_work(tessera_call*, int64_t* flops, int64_t* bytes);
/* compute; exceptions become tessera_run.fail. */
TESSERA_API void tessera_run_compute(const tessera_op*, const tessera_run*);

TESSERA_API const char* tessera_call_error(const tessera_call*);
TESSERA_API int64_t tessera_call_scratch(const tessera_call*);
TESSERA_API const char* tessera_call_composition(const tessera_call*);
TESSERA_API int32_t tessera_call_update_count(const tessera_call*);
/* Input of an update, and its tessera_update_kind. */
TESSERA_API int32_t tessera_call_update_at(const tessera_call*, int32_t index, int32_t* kind);
/* What ops may ask of the program that is being made; those of before are forgotten. */
TESSERA_API void tessera_set_facts(const char* const* names, const int64_t* values, int64_t count);
TESSERA_API int32_t tessera_call_gradient_count(const tessera_call*);
TESSERA_API const tessera_gradient* tessera_call_gradient_at(const tessera_call*, int32_t index);
/* The op and attributes of a gradient op, as a call without inputs that belongs to the gradient. */
TESSERA_API const tessera_call* tessera_gradient_call(const tessera_gradient*);
TESSERA_API int32_t tessera_gradient_inputs(const tessera_gradient*);
TESSERA_API int32_t tessera_gradient_outputs(const tessera_gradient*);
/* -1 where nothing was set. */
TESSERA_API int32_t tessera_gradient_input(const tessera_gradient*, int32_t index,
                                           int32_t* from_index);
TESSERA_API int32_t tessera_gradient_output(const tessera_gradient*, int32_t index);

#ifdef __cplusplus
}
#endif

#endif
