# SPDX-License-Identifier: Apache-2.0
# Compiler settings shared by every target, gathered in the interface target tessera_flags.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths relative to the tree: another checkout finds the objects of this one.
  set(CMAKE_CXX_COMPILER_LAUNCHER env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" "${CCACHE_PROGRAM}")
endif()

# Oldest CPU the whole of the library runs on; hot kernels are compiled again for TESSERA_ISA_HIGH
# and chosen at run time (core/kernels/dispatch.h).
set(TESSERA_ISA_BASE "x86-64-v3")
set(TESSERA_ISA_HIGH "x86-64-v4")

add_library(tessera_flags INTERFACE)
# -ffast-math is left out on purpose: linked into a shared library it turns on flush-to-zero for
# the whole process, torch included. -Wno-psabi: 64-byte vectors never cross a library boundary here.
target_compile_options(tessera_flags INTERFACE
  -Wall
  -Wextra
  -Wno-psabi
  -fno-math-errno
  -fno-trapping-math
  $<$<BOOL:${TESSERA_WERROR}>:-Werror>
)
if(TESSERA_SANITIZE)
  set(sanitizer_flags "-fsanitize=${TESSERA_SANITIZE}" -fno-omit-frame-pointer)
  if(NOT TESSERA_SANITIZE MATCHES "thread")
    list(APPEND sanitizer_flags -fno-sanitize-recover=all)
  endif()
  target_compile_options(tessera_flags INTERFACE ${sanitizer_flags})
  target_link_options(tessera_flags INTERFACE ${sanitizer_flags})
endif()
