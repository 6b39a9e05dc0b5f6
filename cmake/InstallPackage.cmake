# What a wheel holds beside the Python files: modules, libraries, headers, the program, and the
# CMake package for C++ projects that build against all this. Paths are relative to the package.
set_target_properties(swapline swapline_sim PROPERTIES
                      INSTALL_RPATH "$ORIGIN;$ORIGIN/../../torch/lib")
install(TARGETS python_core python_sim LIBRARY DESTINATION . COMPONENT python)
install(TARGETS swapline swapline_sim EXPORT swapline_targets
        LIBRARY DESTINATION lib COMPONENT python
        INCLUDES DESTINATION include)
if(TARGET swapline_program)
  set_target_properties(swapline_sim_device PROPERTIES
                        INSTALL_RPATH "$ORIGIN;$ORIGIN/../../torch/lib")
  install(TARGETS swapline_sim_device LIBRARY DESTINATION lib COMPONENT python)
  set_target_properties(swapline_program PROPERTIES
                        INSTALL_RPATH "$ORIGIN/../lib;$ORIGIN/../../torch/lib")
  install(TARGETS swapline_program RUNTIME DESTINATION bin COMPONENT python)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/swapline ${PROJECT_SOURCE_DIR}/sim
        DESTINATION include COMPONENT python FILES_MATCHING PATTERN "*.h")

include(CMakePackageConfigHelpers)
set(CMAKE_PACKAGE_DIR share/cmake/swapline)
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/swaplineConfig.cmake.in ${CMAKE_BINARY_DIR}/swaplineConfig.cmake
  INSTALL_DESTINATION ${CMAKE_PACKAGE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/swaplineConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/swaplineConfig.cmake
              ${CMAKE_BINARY_DIR}/swaplineConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/TorchTargets.cmake
        DESTINATION ${CMAKE_PACKAGE_DIR} COMPONENT python)
install(EXPORT swapline_targets NAMESPACE swapline:: FILE swaplineTargets.cmake
        DESTINATION ${CMAKE_PACKAGE_DIR} COMPONENT python)
