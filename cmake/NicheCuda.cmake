# cuda.h for the device's declarations, and where NVRTC is on this machine. Neither library is linked: both are opened
# at run time. Looked for in NICHE_CUDA_ROOT, the CUDA toolkit, and PyPI's packages in .venv (./dev installs them).
set(NICHE_CUDA_ROOT "" CACHE PATH "a CUDA toolkit, or a directory with include/cuda.h and lib/libnvrtc.so")
file(GLOB _niche_pip_cuda "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu13"
     "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cuda_*")
set(_niche_cuda_roots ${NICHE_CUDA_ROOT} $ENV{CUDA_HOME} /usr/local/cuda /opt/cuda ${_niche_pip_cuda})
find_path(NICHE_CUDA_INCLUDE cuda.h PATHS ${_niche_cuda_roots} PATH_SUFFIXES include NO_DEFAULT_PATH)
if(NOT NICHE_CUDA_INCLUDE)
  message(FATAL_ERROR "cuda.h not found in ${_niche_cuda_roots}. Run ./dev build cuda (it installs PyPI's "
                      "nvidia-cuda-runtime and nvidia-cuda-nvrtc into .venv), or pass -DNICHE_CUDA_ROOT=<toolkit>.")
endif()
find_file(NICHE_NVRTC_LIBRARY NAMES libnvrtc.so.13 libnvrtc.so.12 PATHS ${_niche_cuda_roots}
          PATH_SUFFIXES lib64 lib NO_DEFAULT_PATH)
if(NOT NICHE_NVRTC_LIBRARY)
  message(FATAL_ERROR "libnvrtc not found in ${_niche_cuda_roots}. Run ./dev build cuda, or pass "
                      "-DNICHE_CUDA_ROOT=<toolkit>.")
endif()

add_library(niche_cuda_headers INTERFACE)
target_include_directories(niche_cuda_headers SYSTEM INTERFACE "${NICHE_CUDA_INCLUDE}")
target_compile_definitions(niche_cuda_headers INTERFACE NICHE_WITH_CUDA=1)
# For what CUDA adds alone: everything else keeps the flags of the build without it, and so its objects in the compiler cache.
option(NICHE_CUDA_WERROR "warnings of the CUDA parts are errors (CI)" OFF)
target_compile_options(niche_cuda_headers INTERFACE $<$<BOOL:${NICHE_CUDA_WERROR}>:-Werror>)
add_library(niche::cuda_headers ALIAS niche_cuda_headers)
