# lit configuration of the regression tests.  # noqa: F821

import os

import lit.formats
from lit.llvm import llvm_config
from lit.llvm.subst import ToolSubst

config.name = "fsdp-mlir"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test"]
config.excludes = ["Inputs", "Unit", "Python", "fixtures"]
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = os.path.join(config.fsdp_obj_root, "test")

# A capture is not visible past the next CHECK-LABEL unless named $LIKE_THIS.
config.environment["FILECHECK_OPTS"] = "--enable-var-scope --allow-unused-prefixes=false"
# libMLIR.so is not instrumented, and MLIR's allocators are inlined into our code.
config.environment["XDG_CONFIG_HOME"] = "/dev/null"  # no machine that somebody has measured
config.environment["ASAN_OPTIONS"] = "allow_user_poisoning=0:detect_leaks=0"

# A build without the runtime has nothing for its tests to run.
if config.fsdp_build_runtime in ("ON", "1", "TRUE"):
    config.available_features.add("runtime")

config.substitutions += [
    ("%python", config.fsdp_python),
    ("%fixtures", os.path.join(config.test_source_root, "fixtures")),
    ("%fsdp_tools", config.fsdp_tools_dir),
    ("%compress_replicas", config.compress_replicas),
]

llvm_config.with_system_environment(["HOME", "TMP"])
llvm_config.use_default_substitutions()  # FileCheck, not, count
# A tool that this build leaves out is missing only in the tests that need it.
tools = ["fsdp-opt", "fsdp-translate", "fsdp-plan", "fsdp-run", "fsdp-lsp-server",
         "fsdp-reduce", "llvm-nm", "llvm-readelf"]
if lit_config.params.get("verify_roundtrip"):  # noqa: F821
    tools[0] = ToolSubst("fsdp-opt", extra_args=["--verify-roundtrip"])
llvm_config.add_tool_substitutions(tools, [config.fsdp_tools_dir, config.llvm_tools_dir])
