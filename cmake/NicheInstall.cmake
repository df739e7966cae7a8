# cmake --install: libniche.so, the public headers, the niche program (evolution's worker), and what find_package(niche)
# reads. tests/install builds a consumer, and the tutorial's operator, against such an installation.
include(CMakePackageConfigHelpers)

# What runtime/runtime.h and runtime/torch/torch.h include, and what an operator in a shared object needs.
set(_public_headers
  dispatch/call_site.h dispatch/captured_graph.h dispatch/constraints.h dispatch/counters.h dispatch/definition.h
  dispatch/dispatcher.h dispatch/dtype.h dispatch/epoch.h dispatch/fallback_reason.h dispatch/group_board.h
  dispatch/group_table.h dispatch/hit_log.h dispatch/kernel.h dispatch/kernel_abi.h dispatch/niche_index.h dispatch/op_spec.h
  dispatch/problem_key.h dispatch/published_kernel.h dispatch/publisher.h dispatch/rank_group.h dispatch/request_scope.h dispatch/route.h
  dispatch/table.h dispatch/thread_state.h
  dispatch/base/clock.h dispatch/base/hash.h dispatch/base/hot_inline.h dispatch/base/log.h dispatch/base/status.h
  runtime/config.h runtime/explanation.h runtime/group.h runtime/runtime.h)
if(NICHE_WITH_TORCH)
  list(APPEND _public_headers runtime/torch/torch.h
    runtime/ops/aten_op.h runtime/ops/inputs.h runtime/ops/tolerances.h runtime/ops/user_op.h)
endif()
foreach(_header ${_public_headers})
  cmake_path(GET _header PARENT_PATH _folder)
  install(FILES "${PROJECT_SOURCE_DIR}/${_header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/niche/${_folder}")
endforeach()

# Of a build that made something else: which target is missing, instead of a file that cannot be found.
add_custom_target(niche_installable DEPENDS niche_shared)
set(_installed $<TARGET_FILE:niche_shared>)
if(TARGET niche)
  add_dependencies(niche_installable niche)
  list(APPEND _installed $<TARGET_FILE:niche>)
endif()
install(CODE "
  foreach(_file ${_installed})
    if(NOT EXISTS \"\${_file}\")
      message(FATAL_ERROR \"\${_file} is not built; first: cmake --build ${PROJECT_BINARY_DIR} --target niche_installable\")
    endif()
  endforeach()")
install(TARGETS niche_shared EXPORT niche LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
if(TARGET niche)
  install(TARGETS niche RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
install(EXPORT niche NAMESPACE niche:: FILE nicheTargets.cmake DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/niche")
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/nicheConfig.cmake.in" "${PROJECT_BINARY_DIR}/nicheConfig.cmake"
  INSTALL_DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/niche")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/nicheConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/nicheConfig.cmake" "${PROJECT_BINARY_DIR}/nicheConfigVersion.cmake"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/niche")
