# SPDX-License-Identifier: Apache-2.0
# libtessera_ops answers for poplar.
include(CMakeFindDependencyMacro)
find_dependency(tessera CONFIG HINTS "${CMAKE_CURRENT_LIST_DIR}/../tessera")
if(NOT TARGET poplar)
  add_library(poplar INTERFACE IMPORTED)
  set_target_properties(poplar PROPERTIES INTERFACE_LINK_LIBRARIES tessera::ops)
endif()
