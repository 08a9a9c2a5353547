# Thin wrappers, so that no CMakeLists.txt below can link or warn the wrong way.
include_guard()

# Where programs find libraries: LLVM's where they were linked. The same in the build folder: CMake pads what it means to change
# with empty folders, which are the working directory.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
set(CMAKE_INSTALL_RPATH $ORIGIN/../lib)

option(FSDP_WARNINGS_AS_ERRORS "Treat warnings as errors" ON)
set(FSDP_SANITIZE "" CACHE STRING "Sanitizers of the plain targets, e.g. address,undefined or thread")

if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-subobject-linkage) # g++ takes a source that is included for a header
endif()

# What every target outside the LLVM half is built with.
add_library(fsdp-plain-options INTERFACE)
target_include_directories(fsdp-plain-options INTERFACE
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include)
target_compile_options(fsdp-plain-options INTERFACE -Wall -Wextra
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> # false alarms of g++ 12 on std::string
  $<$<BOOL:${FSDP_WARNINGS_AS_ERRORS}>:-Werror>)
if(FSDP_SANITIZE)
  target_compile_options(fsdp-plain-options INTERFACE
    -fsanitize=${FSDP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(fsdp-plain-options INTERFACE -fsanitize=${FSDP_SANITIZE})
endif()

# fsdp_install_library(<name>): who links it finds its headers, here and where it is installed. Installed are
# the libraries of lib: static ones for find_package(FSDP), shared ones for the tools that open them.
function(fsdp_install_library name)
  target_include_directories(${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include;${PROJECT_BINARY_DIR}/include>"
    $<INSTALL_INTERFACE:include>)
  get_target_property(type ${name} TYPE)
  string(FIND ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/lib/ place)
  if(NOT place EQUAL 0)
    return()
  elseif(type STREQUAL "SHARED_LIBRARY")
    install(TARGETS ${name} LIBRARY DESTINATION lib COMPONENT fsdp-tools)
  else()
    install(TARGETS ${name} EXPORT FSDPTargets ARCHIVE DESTINATION lib COMPONENT fsdp-development)
  endif()
endfunction()

# add_fsdp_plain_library(<name> [SHARED] STD <17|20> SOURCES ... [LINK_LIBS ...])
# A library of the neutral part (C++17) or of the runtime (C++20).
function(add_fsdp_plain_library name)
  cmake_parse_arguments(ARG "SHARED" "STD" "SOURCES;LINK_LIBS" ${ARGN})
  if(ARG_SHARED)
    add_library(${name} SHARED ${ARG_SOURCES})
  else()
    add_library(${name} STATIC ${ARG_SOURCES})
  endif()
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_features(${name} PUBLIC cxx_std_${ARG_STD})
  target_link_libraries(${name} PUBLIC ${ARG_LINK_LIBS} PRIVATE $<BUILD_INTERFACE:fsdp-plain-options>)
  fsdp_install_library(${name})
endfunction()

# add_fsdp_plain_executable(<name> SOURCES ... [LINK_LIBS ...]): a C++20 tool of the runtime.
function(add_fsdp_plain_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK_LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_link_libraries(${name} PRIVATE ${ARG_LINK_LIBS} fsdp-plain-options)
endfunction()

# Tests take longer to compile than to run, and what covers them is of no interest.
set(FSDP_TEST_OPTIONS -O0)
if(CMAKE_CXX_FLAGS_RELWITHDEBINFO MATCHES fuzzer-no-link)
  list(APPEND FSDP_TEST_OPTIONS -fno-sanitize=fuzzer-no-link)
endif()

# add_fsdp_unittest(<name> <sources>... [LINK_LIBS <ours>...]): a GoogleTest
# program of the neutral part or the runtime, known to CTest.
function(add_fsdp_unittest name)
  cmake_parse_arguments(ARG "" "" "LINK_LIBS" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_compile_options(${name} PRIVATE ${FSDP_TEST_OPTIONS})
  target_compile_definitions(${name} PRIVATE
    FSDP_FIXTURES="${PROJECT_SOURCE_DIR}/test/fixtures")
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/test/Unit)
  target_link_libraries(${name} PRIVATE ${ARG_LINK_LIBS} fsdp-plain-options
    GTest::gtest GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
endfunction()

# fsdp_add_precompiled(<name> <headers>...): compiles headers of libraries once, for targets that reuse them
# (target_precompile_headers(... REUSE_FROM <name>)) and are compiled as <name> is.
function(fsdp_add_precompiled name)
  file(CONFIGURE OUTPUT ${name}.cpp CONTENT "")
  add_library(${name} OBJECT ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()

# ---- The compiler half: wrappers over LLVM's own functions --------------------

# Compiles a target of the compiler half with MLIR's headers compiled once (lib/CMakeLists.txt):
# they are more than half of the time that a file takes.
function(fsdp_precompile_mlir name)
  target_precompile_headers(${name} REUSE_FROM FSDPPrecompiledMLIR)
endfunction()

# add_fsdp_library(<name> <sources>... [DEPENDS <tablegen>...] [LINK_LIBS <ours>...] [MLIR_LIBS <theirs>...])
function(add_fsdp_library name)
  cmake_parse_arguments(ARG "" "" "LINK_LIBS;MLIR_LIBS;DEPENDS" ${ARGN})
  add_mlir_library(${name} ${ARG_UNPARSED_ARGUMENTS}
    EXCLUDE_FROM_LIBMLIR DISABLE_INSTALL PARTIAL_SOURCES_INTENDED DEPENDS fsdp-tablegen ${ARG_DEPENDS})
  target_link_libraries(${name} PUBLIC ${ARG_LINK_LIBS})
  mlir_target_link_libraries(${name} PUBLIC ${ARG_MLIR_LIBS})
  fsdp_precompile_mlir(${name})
  fsdp_install_library(${name})
endfunction()

# add_fsdp_tool(<name> <sources>... [PLUGINS] [LINK_LIBS <ours>...] [MLIR_LIBS <theirs>...])
# PLUGINS: it loads libraries with passes over our dialects.
function(add_fsdp_tool name)
  cmake_parse_arguments(ARG "PLUGINS" "" "LINK_LIBS;MLIR_LIBS" ${ARGN})
  add_llvm_executable(${name} ${ARG_UNPARSED_ARGUMENTS} PARTIAL_SOURCES_INTENDED)
  target_link_libraries(${name} PRIVATE ${ARG_LINK_LIBS})
  mlir_target_link_libraries(${name} PRIVATE ${ARG_MLIR_LIBS})
  fsdp_precompile_mlir(${name})
  if(ARG_PLUGINS AND NOT FSDP_STATIC_MLIR)
    set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON)
  endif()
  install(TARGETS ${name} RUNTIME COMPONENT fsdp-tools)
endfunction()

# add_fsdp_compiler_unittest(<name> <sources>... [LINK_LIBS <ours>...] [MLIR_LIBS ...])
function(add_fsdp_compiler_unittest name)
  cmake_parse_arguments(ARG "" "" "LINK_LIBS;MLIR_LIBS" ${ARGN})
  add_llvm_executable(${name} NO_INSTALL_RPATH ${ARG_UNPARSED_ARGUMENTS} PARTIAL_SOURCES_INTENDED)
  target_compile_definitions(${name} PRIVATE
    FSDP_FIXTURES="${PROJECT_SOURCE_DIR}/test/fixtures")
  target_link_libraries(${name} PRIVATE ${ARG_LINK_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  mlir_target_link_libraries(${name} PRIVATE ${ARG_MLIR_LIBS})
  add_test(NAME ${name} COMMAND ${name})
endfunction()
