# SPDX-License-Identifier: Apache-2.0
# libtessera_ops answers for poputil.
include(CMakeFindDependencyMacro)
find_dependency(tessera CONFIG HINTS "${CMAKE_CURRENT_LIST_DIR}/../tessera")
if(NOT TARGET poputil)
  add_library(poputil INTERFACE IMPORTED)
  set_target_properties(poputil PROPERTIES INTERFACE_LINK_LIBRARIES tessera::ops)
endif()
