# An own imported target for libtorch's CPU half: find_package(Torch) of a CUDA wheel wants a CUDA toolkit and
# TORCH_CUDA_ARCH_LIST, and serving on the CPU needs libtorch_cpu and libc10 alone.
set(_niche_torch "${NICHE_TORCH_ROOT}")
if(NOT _niche_torch)
  file(GLOB _niche_candidates "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
  list(GET _niche_candidates 0 _niche_torch)
endif()
if(NOT EXISTS "${_niche_torch}/include/ATen/ATen.h")
  message(FATAL_ERROR "libtorch not found at '${_niche_torch}'. Run ./dev build (it installs PyPI's torch into "
                      ".venv), pass -DNICHE_TORCH_ROOT=<dir with include/ and lib/>, or -DNICHE_WITH_TORCH=OFF.")
endif()
set(NICHE_TORCH_DIR "${_niche_torch}" CACHE INTERNAL "torch package directory in use")
file(GLOB _niche_nv_cudart "${_niche_torch}/../nvidia/*/lib" "${_niche_torch}/../nvidia/*/*/lib")

add_library(niche_torch_headers INTERFACE)
target_include_directories(niche_torch_headers SYSTEM INTERFACE
  "${_niche_torch}/include" "${_niche_torch}/include/torch/csrc/api/include")
target_compile_definitions(niche_torch_headers INTERFACE NICHE_WITH_TORCH=1)

add_library(niche_libtorch INTERFACE)
target_link_libraries(niche_libtorch INTERFACE niche_torch_headers
  "${_niche_torch}/lib/libtorch_cpu.so" "${_niche_torch}/lib/libc10.so")
target_link_options(niche_libtorch INTERFACE
  "LINKER:-rpath,${_niche_torch}/lib" "LINKER:--allow-shlib-undefined")
foreach(_dir ${_niche_nv_cudart})
  target_link_options(niche_libtorch INTERFACE "LINKER:-rpath,${_dir}" "LINKER:-rpath-link,${_dir}")
endforeach()
add_library(niche::libtorch ALIAS niche_libtorch)
