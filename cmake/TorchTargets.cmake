# Imported targets for the torch that Python sees. find_package(Torch) is not used: against a CUDA
# wheel it demands a CUDA toolkit, which nothing here needs.
set(SWAPLINE_PYTHON "" CACHE FILEPATH
    "Python whose torch is used; default: the one that pip builds for, .venv, then python3")
if(NOT SWAPLINE_PYTHON)
  if(Python_EXECUTABLE)
    set(SWAPLINE_PYTHON ${Python_EXECUTABLE})
  elseif(EXISTS ${CMAKE_SOURCE_DIR}/.venv/bin/python)
    set(SWAPLINE_PYTHON ${CMAKE_SOURCE_DIR}/.venv/bin/python)
  else()
    find_program(SWAPLINE_PYTHON3 python3 REQUIRED)
    set(SWAPLINE_PYTHON ${SWAPLINE_PYTHON3})
  endif()
endif()

execute_process(
  COMMAND ${SWAPLINE_PYTHON} -c
          "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
  OUTPUT_VARIABLE TORCH_DIR
  OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE TORCH_MISSING
  ERROR_QUIET)
if(TORCH_MISSING)
  message(FATAL_ERROR "${SWAPLINE_PYTHON} has no torch: run scripts/setup.sh, or set SWAPLINE_PYTHON")
endif()
file(STRINGS ${TORCH_DIR}/version.py TORCH_VERSION_LINE REGEX "^__version__ = ")
string(REGEX REPLACE ".*'([0-9]+\\.[0-9]+\\.[0-9]+).*" "\\1" TORCH_VERSION "${TORCH_VERSION_LINE}")
if(TORCH_VERSION VERSION_LESS 2.9 OR TORCH_VERSION VERSION_GREATER_EQUAL 2.15)
  message(FATAL_ERROR "torch ${TORCH_VERSION} found in ${TORCH_DIR}; supported are 2.9 to 2.14")
endif()
message(STATUS "torch ${TORCH_VERSION} in ${TORCH_DIR}")

function(add_torch_library name)
  cmake_parse_arguments(ARG "" "" "LINKS" ${ARGN})
  add_library(torch_wheel::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(torch_wheel::${name} PROPERTIES IMPORTED_LOCATION ${TORCH_DIR}/lib/lib${name}.so)
  target_include_directories(
    torch_wheel::${name} INTERFACE ${TORCH_DIR}/include ${TORCH_DIR}/include/torch/csrc/api/include)
  target_link_libraries(torch_wheel::${name} INTERFACE ${ARG_LINKS})
endfunction()

add_torch_library(c10 LINKS Threads::Threads)
# As the wheel was built: some of torch's headers differ in layout and checks without it.
target_compile_definitions(torch_wheel::c10 INTERFACE NDEBUG)
add_torch_library(torch_cpu LINKS torch_wheel::c10)
add_torch_library(torch LINKS torch_wheel::torch_cpu)

# Torch's libraries of devices, where this torch has some: for programs. Registrations live in their
# static initialisers, so the linker must keep them though no symbol of them is used.
add_library(torch_wheel_devices INTERFACE)
add_library(torch_wheel::devices ALIAS torch_wheel_devices)
foreach(name torch_cuda torch_xpu)
  if(EXISTS ${TORCH_DIR}/lib/lib${name}.so)
    target_link_libraries(torch_wheel_devices INTERFACE
      "-Wl,--push-state,--no-as-needed,${TORCH_DIR}/lib/lib${name}.so,--pop-state")
    # What those need is found by their own paths when a program runs.
    target_link_options(torch_wheel_devices INTERFACE -Wl,--allow-shlib-undefined)
  endif()
endforeach()
