# Finds MLIR and sets LLVM's build functions up as an out-of-tree project needs them.
find_package(MLIR 22.1 REQUIRED CONFIG)
message(STATUS "Using MLIR ${LLVM_PACKAGE_VERSION} from ${MLIR_DIR}")
# Plugins need all of MLIR, which is in the shared library. Without them, tools start in a third of the time.
option(FSDP_STATIC_MLIR "Link the parts of MLIR that are used into each tool; no plugins" OFF)
if(FSDP_STATIC_MLIR)
  set(MLIR_LINK_MLIR_DYLIB OFF) # read by AddMLIR, set by nobody
  set(LLVM_LINK_LLVM_DYLIB OFF)
  foreach(library IN LISTS MLIR_EXPORTED_TARGETS) # Debian's parts of MLIR ask for all of LLVM, in one shared library
    get_target_property(needed ${library} INTERFACE_LINK_LIBRARIES)
    if(needed MATCHES "(^|;)LLVM(;|$)")
      list(TRANSFORM needed REPLACE "^LLVM$" "LLVMCore;LLVMRemarks;LLVMSupport;LLVMSupportLSP;LLVMTargetParser")
      set_target_properties(${library} PROPERTIES INTERFACE_LINK_LIBRARIES "${needed}")
    endif()
  endforeach()
  add_compile_definitions(FSDP_STATIC_MLIR)
  add_compile_definitions(LLVM_BUILD_STATIC) # as AddLLVM does for tools: they share a precompiled header with libraries
else()
  set(MLIR_LINK_MLIR_DYLIB ON)
endif()
if(NOT TARGET MLIR AND NOT FSDP_STATIC_MLIR)
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
