// SPDX-License-Identifier: Apache-2.0
// The border between poplar::Graph and libtessera_ops for codelets: compute sets, vertices and
// their fields. C only, as recorder.h. Functions that fail return -1 or null, with the reason in
// tessera_vertices_error.
#pragma once

#include "recorder.h"

extern "C" {

// tessera_vertices: codelets, compute sets and vertices of one graph.

TESSERA_COMPAT_API const char* tessera_vertices_error(void);
TESSERA_COMPAT_API tessera_vertices* tessera_vertices_new(tessera_recorder*);
TESSERA_COMPAT_API void tessera_vertices_delete(tessera_vertices*);

// Compiles and loads a C++ file, or text. 0 if that went well.
TESSERA_COMPAT_API int tessera_add_codelets(tessera_vertices*, const char* path, const char* flags);
TESSERA_COMPAT_API int tessera_add_codelets_text(tessera_vertices*, const char* text,
                                                 const char* flags);
TESSERA_COMPAT_API int64_t tessera_add_compute_set(tessera_vertices*, const char* name);
TESSERA_COMPAT_API int64_t tessera_add_vertex(tessera_vertices*, int64_t set, const char* name);

// Element -1 is the whole field. A list of vectors takes a view per element, or one view whose
// first dim counts them; other fields take one view, or more that are joined.
TESSERA_COMPAT_API int tessera_connect(tessera_vertices*, int64_t vertex, const char* field,
                                       int64_t element, const tessera_view* const* views,
                                       int64_t count);
TESSERA_COMPAT_API int tessera_set_field_size(tessera_vertices*, int64_t vertex, const char* field,
                                              int64_t size);
// State: numbers or integers, the other null.
TESSERA_COMPAT_API int tessera_set_field(tessera_vertices*, int64_t vertex, const char* field,
                                         int64_t element, const double* numbers,
                                         const int64_t* integers, int64_t count);

// The set as a statement, with all vertices that it has by now. Null without an error: it has none.
TESSERA_COMPAT_API const tessera_statement* tessera_execute(tessera_vertices*, int64_t set);
}
