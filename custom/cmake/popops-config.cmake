# SPDX-License-Identifier: Apache-2.0
# libtessera_ops answers for popops.
include(CMakeFindDependencyMacro)
find_dependency(tessera CONFIG HINTS "${CMAKE_CURRENT_LIST_DIR}/../tessera")
if(NOT TARGET popops)
  add_library(popops INTERFACE IMPORTED)
  set_target_properties(popops PROPERTIES INTERFACE_LINK_LIBRARIES tessera::ops)
endif()
