# LibTorch out of the torch wheel, its version and imported targets:
#   LibTorch_VERSION        such as 2.11.0+cu130
#   LibTorch_FOLDERS        where its libraries lie
#   LibTorch::cpu           libtorch_cpu and libc10
#   LibTorch::cuda          libtorch_cuda, libc10_cuda and the CUDA runtime, if the wheel has them
#   LibTorch::cuda_headers  the headers of the CUDA runtime, to compile against alone
#   LibTorch::nccl          NCCL, with LibTorch::cuda
#   LibTorch::nccl_headers  its headers
#   LibTorch::python        libtorch_python and the headers of Python, if they are there, for extension modules
# The wheel's own TorchConfig.cmake insists on a CUDA toolkit even for CPU builds.
# FSDP_PYTHON names the interpreter whose torch is used.
set(FSDP_PYTHON "${PROJECT_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH
    "Python interpreter whose torch wheel is linked")
execute_process(
  COMMAND ${FSDP_PYTHON} -c
    "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
  OUTPUT_VARIABLE LibTorch_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
set(LibTorch_FOLDERS ${LibTorch_ROOT}/lib ${LibTorch_ROOT}/../nvidia/cu13/lib ${LibTorch_ROOT}/../nvidia/nccl/lib)
if(EXISTS "${LibTorch_ROOT}/version.py")
  file(STRINGS ${LibTorch_ROOT}/version.py LibTorch_VERSION REGEX "^__version__ = ")
  string(REGEX REPLACE ".*'([^']+)'" "\\1" LibTorch_VERSION "${LibTorch_VERSION}")
endif()
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
  find_library(LibTorch_CUDA torch_cuda PATHS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH)
  find_library(LibTorch_C10_CUDA c10_cuda PATHS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH)
  find_path(LibTorch_CUDA_INCLUDE cuda_runtime_api.h
            PATHS ${LibTorch_ROOT}/../nvidia/cu13/include NO_DEFAULT_PATH)
  find_file(LibTorch_CUDART libcudart.so.13
            PATHS ${LibTorch_ROOT}/../nvidia/cu13/lib NO_DEFAULT_PATH)
  if(LibTorch_CUDA AND LibTorch_C10_CUDA AND LibTorch_CUDA_INCLUDE AND LibTorch_CUDART)
    add_library(LibTorch::cuda_headers INTERFACE IMPORTED)
    target_include_directories(LibTorch::cuda_headers SYSTEM INTERFACE ${LibTorch_CUDA_INCLUDE})
    # libtorch_cuda registers the kernels: it must be loaded even if no symbol of it is used.
    add_library(LibTorch::cuda INTERFACE IMPORTED)
    target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu LibTorch::cuda_headers
      -Wl,--push-state,--no-as-needed ${LibTorch_CUDA} -Wl,--pop-state
      ${LibTorch_C10_CUDA} ${LibTorch_CUDART})
    find_path(LibTorch_NCCL_INCLUDE nccl.h
              PATHS ${LibTorch_ROOT}/../nvidia/nccl/include NO_DEFAULT_PATH)
    find_file(LibTorch_NCCL libnccl.so.2
              PATHS ${LibTorch_ROOT}/../nvidia/nccl/lib NO_DEFAULT_PATH)
    if(LibTorch_NCCL_INCLUDE AND LibTorch_NCCL)
      add_library(LibTorch::nccl_headers INTERFACE IMPORTED)
      target_include_directories(LibTorch::nccl_headers SYSTEM INTERFACE ${LibTorch_NCCL_INCLUDE})
      add_library(LibTorch::nccl INTERFACE IMPORTED)
      target_link_libraries(LibTorch::nccl INTERFACE
        LibTorch::cuda LibTorch::nccl_headers ${LibTorch_NCCL})
    endif()
  endif()
  # PyTorch's own pybind11 comes before that of the system: its types are known to no other version.
  execute_process(
    COMMAND ${FSDP_PYTHON} -c "import sysconfig; print(sysconfig.get_path('include'), sysconfig.get_config_var('EXT_SUFFIX'), sep=';', end='')"
    OUTPUT_VARIABLE LibTorch_PYTHON_FACTS)
  list(POP_FRONT LibTorch_PYTHON_FACTS LibTorch_PYTHON_INCLUDE LibTorch_EXTENSION_SUFFIX)
  find_library(LibTorch_PYTHON torch_python PATHS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH)
  if(EXISTS ${LibTorch_PYTHON_INCLUDE}/Python.h AND LibTorch_PYTHON)
    add_library(LibTorch::python INTERFACE IMPORTED)
    target_include_directories(LibTorch::python SYSTEM INTERFACE ${LibTorch_INCLUDE_DIR} ${LibTorch_PYTHON_INCLUDE})
    target_link_libraries(LibTorch::python INTERFACE LibTorch::cpu ${LibTorch_PYTHON})
  endif()
endif()
