"""Real files through real processes: what the end-to-end tests share."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("FSDP_BUILD", ROOT / "build" / "gcc"))
FIXTURES = ROOT / "test" / "fixtures"


def tool(name: str, *arguments, timeout: float = 120) -> subprocess.CompletedProcess:
    """Runs a tool of the build folder; its output and exit status are the caller's business."""
    command = [str(BUILD / "bin" / name), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)


def succeed(name: str, *arguments, **options) -> subprocess.CompletedProcess:
    """The same, and the tool must end well."""
    result = tool(name, *arguments, **options)
    assert result.returncode == 0, f"{' '.join(map(str, result.args))}\n{result.stdout}{result.stderr}"
    return result


def pytest_addoption(parser):
    parser.addoption("--all-mutants", action="store_true", help="try all mutants, not one in ten, and write docs/mutation.md")


@pytest.fixture(scope="session")
def references(tmp_path_factory):
    """references(graph, ranks): path of a reference with a different batch on every rank; `graph` is relative to the fixtures."""
    folder = tmp_path_factory.mktemp("references")

    def find(graph: str, ranks: int) -> pathlib.Path:
        suffix = "_ref" if ranks == 1 else f"_ref{ranks}"
        committed = FIXTURES / f"{graph}{suffix}.safetensors"
        made = folder / f"{graph.replace('/', '_')}.pt2"
        target = made.with_name(f"{made.stem}_ref{ranks}.safetensors")
        if committed.exists():
            return committed
        if not target.exists():
            made.symlink_to(FIXTURES / f"{graph}.pt2") if not made.exists() else None
            recorded = FIXTURES / f"{graph}_ref.safetensors"
            link = made.with_name(f"{made.stem}_ref.safetensors")
            if recorded.exists() and not link.exists():
                link.symlink_to(recorded)
            script = ROOT / "scripts" / "make_rank_reference.py"
            subprocess.run([sys.executable, str(script), str(ranks), str(made)], check=True, capture_output=True)
        return target

    return find


@pytest.fixture(scope="session")
def plans(tmp_path_factory):
    """plans(graph, ranks, *options): path of the plan that fsdp-plan makes of a fixture."""
    folder, made = tmp_path_factory.mktemp("plans"), {}

    def find(graph: str, ranks: int, *options: str) -> pathlib.Path:
        key = (graph, ranks, *options)
        if key not in made:
            path = folder / f"{len(made)}.plan"
            succeed("fsdp-plan", FIXTURES / f"{graph}.pt2", "--ranks", ranks, "-o", path, *options)
            made[key] = path
        return made[key]

    return find


@pytest.fixture(scope="session")
def chains(tmp_path_factory):
    """chains(config): the aten level of the chain that a file of PyTorch's FSDP (fsdp_*.json) was recorded with."""
    sys.path[:0] = [str(ROOT / "python-bindings"), str(ROOT / "scripts")]
    import torch
    from fixture_models import Case, Chain
    from make_fixtures import write

    folder, made = tmp_path_factory.mktemp("chains"), {}

    def find(config: dict) -> pathlib.Path:
        args, dtype = config["args"], (config.get("mixed") or ["float32"])[0]
        path = made.setdefault(str((args, dtype)), folder / f"chain{len(made)}.mlir")
        if not path.exists():
            chain = Chain(args["n"], args["d"], args.get("root_params", True), args.get("head", True), args.get("frozen", ()))
            case = Case(chain.train().to(getattr(torch, dtype)), (torch.ones(2, args["d"], dtype=getattr(torch, dtype)),))
            write(case, folder, path.stem, reference=False)
            succeed("fsdp-translate", "--import-pt2", path.with_suffix(".pt2"), "-o", path)
        return path

    return find


@pytest.fixture(scope="session")
def operators(tmp_path_factory):
    """operators(name): the library of custom operators out of Inputs/name.cpp, for `fsdp-run --load`."""
    import torch

    folder, include = tmp_path_factory.mktemp("operators"), pathlib.Path(torch.__file__).parent / "include"

    def make(name: str) -> pathlib.Path:
        source, library = pathlib.Path(__file__).parent / "Inputs" / f"{name}.cpp", folder / f"lib{name}.so"
        if not library.exists():
            subprocess.run(["g++", "-std=c++20", "-shared", "-fPIC", "-isystem", include, source, "-o", library], check=True)
        return library

    return make
