# SPDX-License-Identifier: Apache-2.0
# Source lists are written out and sorted, so that a diff shows what is built; a list that differs
# from its folder stops the build instead of leaving a file out.
function(tessera_check_sources variable)
  file(GLOB found RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" CONFIGURE_DEPENDS ${ARGN})
  list(SORT found)
  if(NOT "${found}" STREQUAL "${${variable}}")
    message(FATAL_ERROR "The list ${variable} in ${CMAKE_CURRENT_SOURCE_DIR} differs from the files "
      "there; run tools/dev/check_sources.py --fix")
  endif()
endfunction()
