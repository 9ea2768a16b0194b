# SPDX-License-Identifier: Apache-2.0
# Libraries from Debian's packages: libfmt-dev, libdnnl-dev, libboost1.81-dev
# (headers of Boost.Math only), llvm-19-dev, doctest-dev.
find_package(fmt REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Threads REQUIRED)

# Debian's dnnl-config.cmake insists on OpenCL's development files, which the CPU engine never uses.
find_path(DNNL_INCLUDE dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(tessera_dnnl INTERFACE)
target_include_directories(tessera_dnnl SYSTEM INTERFACE "${DNNL_INCLUDE}")
target_link_libraries(tessera_dnnl INTERFACE "${DNNL_LIBRARY}")

find_path(BOOST_MATH_INCLUDE boost/math/special_functions/airy.hpp REQUIRED)
add_library(tessera_boost_math INTERFACE)
target_include_directories(tessera_boost_math SYSTEM INTERFACE "${BOOST_MATH_INCLUDE}")

# llvm-config rather than LLVM's CMake package: that one insists on the development files of every
# library LLVM itself was linked with.
if(TESSERA_USE_LLVM)
  find_program(LLVM_CONFIG NAMES llvm-config-19 REQUIRED)
  execute_process(COMMAND "${LLVM_CONFIG}" --includedir
    OUTPUT_VARIABLE llvm_include OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${LLVM_CONFIG}" --libdir
    OUTPUT_VARIABLE llvm_libdir OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  find_library(LLVM_LIBRARY NAMES LLVM-19 PATHS "${llvm_libdir}" NO_DEFAULT_PATH REQUIRED)
  add_library(tessera_llvm INTERFACE)
  target_include_directories(tessera_llvm SYSTEM INTERFACE "${llvm_include}")
  target_compile_definitions(tessera_llvm INTERFACE TESSERA_HAVE_LLVM=1)
  target_link_libraries(tessera_llvm INTERFACE "${LLVM_LIBRARY}")
endif()
