# NCCL's headers; the library is found at run time. NCCL_ROOT (variable or environment) before the wheel of build/venv before the system.
set(nccl_hints "${NCCL_ROOT}" "$ENV{NCCL_ROOT}")
set(nccl_python "${CMAKE_SOURCE_DIR}/build/venv/bin/python")
if(EXISTS "${nccl_python}")
  execute_process(
    COMMAND "${nccl_python}" -c "import importlib.util as u; print(*u.find_spec('nvidia.nccl').submodule_search_locations)"
    OUTPUT_VARIABLE nccl_wheel OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(APPEND nccl_hints "${nccl_wheel}")
endif()
list(REMOVE_ITEM nccl_hints "")

# A wheel that has moved or gone since is looked for again.
if(NCCL_INCLUDE_DIR AND NOT EXISTS "${NCCL_INCLUDE_DIR}/nccl.h")
  unset(NCCL_INCLUDE_DIR CACHE)
endif()
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${nccl_hints} PATH_SUFFIXES include)
find_file(NCCL_LIBRARY NAMES libnccl.so.2 HINTS ${nccl_hints} PATH_SUFFIXES lib)
if(NCCL_INCLUDE_DIR)
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" nccl_lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9]+" "." NCCL_VERSION "${nccl_lines}")
  string(REGEX REPLACE "^\\.|\\.$" "" NCCL_VERSION "${NCCL_VERSION}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
if(NCCL_FOUND AND NOT TARGET NCCL::headers)
  add_library(NCCL::headers INTERFACE IMPORTED)
  target_include_directories(NCCL::headers INTERFACE "${NCCL_INCLUDE_DIR}")
endif()
