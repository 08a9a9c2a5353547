# Finds MLIR and sets LLVM's build functions up as an out-of-tree project needs them.
find_package(MLIR 22.1 REQUIRED CONFIG)
message(STATUS "Using MLIR ${LLVM_PACKAGE_VERSION} from ${MLIR_DIR}")
set(MLIR_LINK_MLIR_DYLIB ON) # read by AddMLIR, set by nobody
if(NOT TARGET MLIR)
  message(FATAL_ERROR "this MLIR has no libMLIR.so: install Debian's libmlir-22-dev")
endif()
set(LLVM_RUNTIME_OUTPUT_INTDIR ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
set(LLVM_LIBRARY_OUTPUT_INTDIR ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
set(MLIR_BINARY_DIR ${CMAKE_BINARY_DIR})
set(LLVM_LIT_ARGS "-sv" CACHE STRING "Default options for lit")
set(LLVM_ENABLE_WERROR ${FSDP_WARNINGS_AS_ERRORS})
if(FSDP_SANITIZE STREQUAL "address,undefined")
  set(LLVM_USE_SANITIZER "Address;Undefined")
  # Set by LLVM's own top folder only; vptr and function need the run-time types that LLVM is built without.
  set(LLVM_UBSAN_FLAGS "-fsanitize=undefined -fno-sanitize=vptr,function -fno-sanitize-recover=all")
endif()
list(APPEND CMAKE_MODULE_PATH "${MLIR_CMAKE_DIR}" "${LLVM_CMAKE_DIR}")
find_program(FSDP_LLD ld.lld-22)
if(FSDP_LLD)
  set(LLVM_USE_LINKER lld) # never "lld-22": g++ rejects that
endif()
set(CMAKE_CXX_STANDARD 17) # what LLVM 22 is built as
separate_arguments(LLVM_DEFINITIONS_LIST NATIVE_COMMAND ${LLVM_DEFINITIONS})
add_definitions(${LLVM_DEFINITIONS_LIST})
include(TableGen)
set(LLVM_TABLEGEN_EXE "${LLVM_TOOLS_BINARY_DIR}/llvm-tblgen") # as MLIRConfig does for mlir-tblgen
include(AddLLVM)
include(AddMLIR)
include(HandleLLVMOptions)
include_directories(SYSTEM ${LLVM_INCLUDE_DIRS} ${MLIR_INCLUDE_DIRS})
include_directories(${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include)
