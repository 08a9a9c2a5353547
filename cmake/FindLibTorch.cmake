# LibTorch out of the torch wheel, as imported targets:
#   LibTorch::cpu           libtorch_cpu and libc10
#   LibTorch::cuda          libtorch_cuda, libc10_cuda and the CUDA runtime, if the wheel has them
#   LibTorch::cuda_headers  the headers of the CUDA runtime, to compile against alone
#   LibTorch::nccl          NCCL, with LibTorch::cuda
#   LibTorch::nccl_headers  its headers
# The wheel's own TorchConfig.cmake insists on a CUDA toolkit even for CPU builds.
# FSDP_PYTHON names the interpreter whose torch is used.
set(FSDP_PYTHON "${PROJECT_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH
    "Python interpreter whose torch wheel is linked")
execute_process(
  COMMAND ${FSDP_PYTHON} -c
    "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
  OUTPUT_VARIABLE LibTorch_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
find_path(LibTorch_INCLUDE_DIR ATen/ATen.h PATHS ${LibTorch_ROOT}/include NO_DEFAULT_PATH)
find_library(LibTorch_CPU torch_cpu PATHS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH)
find_library(LibTorch_C10 c10 PATHS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_INCLUDE_DIR LibTorch_CPU LibTorch_C10
  REASON_FAILURE_MESSAGE "run scripts/setup.sh, or name a Python with torch 2.11 in -DFSDP_PYTHON")
if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  target_include_directories(LibTorch::cpu SYSTEM INTERFACE
    ${LibTorch_INCLUDE_DIR} ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include)
  target_link_libraries(LibTorch::cpu INTERFACE ${LibTorch_CPU} ${LibTorch_C10})
  target_link_options(LibTorch::cpu INTERFACE -Wl,-rpath,${LibTorch_ROOT}/lib)
  find_library(LibTorch_CUDA torch_cuda PATHS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH)
  find_library(LibTorch_C10_CUDA c10_cuda PATHS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH)
  find_path(LibTorch_CUDA_INCLUDE cuda_runtime_api.h
            PATHS ${LibTorch_ROOT}/../nvidia/cu13/include NO_DEFAULT_PATH)
  find_file(LibTorch_CUDART libcudart.so.13
            PATHS ${LibTorch_ROOT}/../nvidia/cu13/lib NO_DEFAULT_PATH)
  if(LibTorch_CUDA AND LibTorch_C10_CUDA AND LibTorch_CUDA_INCLUDE AND LibTorch_CUDART)
    get_filename_component(LibTorch_CUDART_DIR ${LibTorch_CUDART} DIRECTORY)
    add_library(LibTorch::cuda_headers INTERFACE IMPORTED)
    target_include_directories(LibTorch::cuda_headers SYSTEM INTERFACE ${LibTorch_CUDA_INCLUDE})
    # libtorch_cuda registers the kernels: it must be loaded even if no symbol of it is used.
    add_library(LibTorch::cuda INTERFACE IMPORTED)
    target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu LibTorch::cuda_headers
      -Wl,--push-state,--no-as-needed ${LibTorch_CUDA} -Wl,--pop-state
      ${LibTorch_C10_CUDA} ${LibTorch_CUDART})
    target_link_options(LibTorch::cuda INTERFACE -Wl,-rpath,${LibTorch_CUDART_DIR})
    find_path(LibTorch_NCCL_INCLUDE nccl.h
              PATHS ${LibTorch_ROOT}/../nvidia/nccl/include NO_DEFAULT_PATH)
    find_file(LibTorch_NCCL libnccl.so.2
              PATHS ${LibTorch_ROOT}/../nvidia/nccl/lib NO_DEFAULT_PATH)
    if(LibTorch_NCCL_INCLUDE AND LibTorch_NCCL)
      get_filename_component(LibTorch_NCCL_DIR ${LibTorch_NCCL} DIRECTORY)
      add_library(LibTorch::nccl_headers INTERFACE IMPORTED)
      target_include_directories(LibTorch::nccl_headers SYSTEM INTERFACE ${LibTorch_NCCL_INCLUDE})
      add_library(LibTorch::nccl INTERFACE IMPORTED)
      target_link_libraries(LibTorch::nccl INTERFACE
        LibTorch::cuda LibTorch::nccl_headers ${LibTorch_NCCL})
      target_link_options(LibTorch::nccl INTERFACE -Wl,-rpath,${LibTorch_NCCL_DIR})
    endif()
  endif()
endif()
