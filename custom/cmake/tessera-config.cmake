# SPDX-License-Identifier: Apache-2.0
# find_package(tessera) gives tessera::ops: the headers of custom ops, PopART's among them, and
# libtessera_ops. The package is that of Python:
#   cmake -DCMAKE_PREFIX_PATH=$(python -c "import poptorch; print(poptorch.__path__[0])") ...
get_filename_component(_tessera_package "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(_tessera_include "${_tessera_package}/include")
if(NOT EXISTS "${_tessera_include}/tessera/custom_op.h")
  get_filename_component(_tessera_include "${_tessera_package}/../../include" ABSOLUTE)
endif()
set(_tessera_library "${_tessera_package}/lib/libtessera_ops.so.1")
if(NOT EXISTS "${_tessera_library}" OR NOT EXISTS "${_tessera_include}/tessera/custom_op.h")
  set(tessera_FOUND FALSE)
  set(tessera_NOT_FOUND_MESSAGE "the headers or libtessera_ops are missing in ${_tessera_package}")
  return()
endif()
set(_tessera_includes "${_tessera_include}")
if(EXISTS "${_tessera_include}/tessera/compat")
  list(APPEND _tessera_includes "${_tessera_include}/tessera/compat")
endif()
if(NOT TARGET tessera::ops)
  add_library(tessera::ops SHARED IMPORTED)
  set_target_properties(tessera::ops PROPERTIES
    IMPORTED_LOCATION "${_tessera_library}"
    IMPORTED_SONAME "libtessera_ops.so.1"
    INTERFACE_INCLUDE_DIRECTORIES "${_tessera_includes}"
    INTERFACE_COMPILE_FEATURES cxx_std_14)
endif()
