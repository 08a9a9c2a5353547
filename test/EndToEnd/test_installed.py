"""What `cmake --install` installs: tools that run, and an example that is built against it as a project of its own."""

import os
import subprocess

import pytest
from conftest import BUILD, FIXTURES, ROOT


def run(*command, **options):
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=240, **options)
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--prefix", folder)
    return folder


@pytest.fixture(scope="module")
def plugin(prefix, tmp_path_factory):
    build = tmp_path_factory.mktemp("example")
    run("cmake", "-S", ROOT / "examples" / "CompressReplicas", "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", build)
    return build / "CompressReplicas.so"


def test_tools_run(prefix, tmp_path):
    plan = tmp_path / "step.plan"
    assert "proved" in run(prefix / "bin" / "fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 2, "-o", plan)
    said = run(prefix / "bin" / "fsdp-run", plan, "--weights", FIXTURES / "gpt2.pt2", "--reference", FIXTURES / "gpt2_ref.safetensors",
               env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert said.startswith("compared 29 tensors")
    for tool in ("fsdp-ckpt", "fsdp-opt", "fsdp-translate"):
        assert run(prefix / "bin" / tool, "--version")


def test_example_is_built_against_it(prefix, plugin, tmp_path):
    said = run(prefix / "bin" / "fsdp-plan", FIXTURES / "gpt2.pt2", "--mesh", "2x2", "--load-pass-plugin", plugin, "--comm-hook", "compress-replicas")
    assert "proved: the plan computes what the model does" in said


def test_library_is_linked_against_it(prefix, tmp_path):
    """A program that reads plans: headers, static libraries, and what these need."""
    (tmp_path / "CMakeLists.txt").write_text("""cmake_minimum_required(VERSION 3.25)
project(ReadsPlans LANGUAGES C CXX)
find_package(FSDP 0.1 REQUIRED)
add_executable(reads-plans main.cpp)
target_link_libraries(reads-plans PRIVATE FSDP::FSDPPlanFile)
""")
    (tmp_path / "main.cpp").write_text("""#include "fsdp/PlanFile/PlanFile.h"
#include <cstdio>
int main(int, char **argv) {
  auto plan = fsdp::planfile::PlanFile::open(argv[1]);
  std::printf("%u ranks\\n", plan ? fsdp::planfile::getRankCount(plan->plan()) : 0);
}
""")
    plan = tmp_path / "step.plan"
    run(prefix / "bin" / "fsdp-plan", FIXTURES / "gpt2.pt2", "--ranks", 3, "-o", plan)
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    assert run(tmp_path / "build" / "reads-plans", plan) == "3 ranks\n"
