# SPDX-License-Identifier: Apache-2.0
# Run as a script (cmake -P): reads the op rows in folder ROWS and writes into folder OUT what every
# file needs of them, the enumerators and the families. A row is a macro call at the start of a
# line. A file is written only if it changes: editing the rest of a row rebuilds few objects.
function(write_names file text)
  set(old "")
  if(EXISTS "${OUT}/${file}")
    file(READ "${OUT}/${file}" old)
  endif()
  if(NOT old STREQUAL text)
    file(WRITE "${OUT}/${file}" "${text}")
  endif()
endfunction()

file(READ "${ROWS}/pointwise.def" pointwise)
file(READ "${ROWS}/ops.def" ops)
string(REGEX MATCHALL "\nPOINTWISE\\([A-Za-z0-9]+," pointwise "${pointwise}")
string(REGEX MATCHALL "\nOP\\([A-Za-z0-9]+, *\"[^\"]*\", *[a-z_]+," ops "${ops}")

set(names "")
foreach(row IN LISTS pointwise ops)
  string(REGEX REPLACE "\n[A-Z]+\\(([A-Za-z0-9]+),.*" "\\1" name "${row}")
  string(APPEND names "${name},\n")
endforeach()

set(families "")
foreach(row IN LISTS ops)
  string(REGEX REPLACE ".*, *([a-z_]+),$" "\\1" family "${row}")
  list(APPEND families "${family}")
endforeach()
list(REMOVE_DUPLICATES families)
# These have no functions of their own, see ops/registry.cpp.
list(REMOVE_ITEM families view fused host flow)
list(TRANSFORM families REPLACE "(.+)" "FAMILY(\\1)")
list(JOIN families "\n" families)

write_names(op_names.inc "${names}")
write_names(op_families.inc "${families}\n")
