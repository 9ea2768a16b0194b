# SPDX-License-Identifier: Apache-2.0
# libtessera_ops answers for popart.
include(CMakeFindDependencyMacro)
find_dependency(tessera CONFIG HINTS "${CMAKE_CURRENT_LIST_DIR}/../tessera")
if(NOT TARGET popart)
  add_library(popart INTERFACE IMPORTED)
  set_target_properties(popart PROPERTIES INTERFACE_LINK_LIBRARIES tessera::ops)
endif()
if(NOT TARGET popart-only)
  add_library(popart-only INTERFACE IMPORTED)
  set_target_properties(popart-only PROPERTIES INTERFACE_LINK_LIBRARIES tessera::ops)
endif()
