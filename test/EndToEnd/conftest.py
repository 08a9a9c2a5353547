"""Real files through real processes: what the end-to-end tests share."""

import fcntl
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("FSDP_BUILD", ROOT / "build" / "gcc"))
# Which of what there is too much of is tried: scripts/check.sh has it follow the commit.
SAMPLE = int(os.environ.get("FSDP_SAMPLE", 0))
FIXTURES = ROOT / "test" / "fixtures"
FAKE_GPUS = BUILD / "test" / "FakeGPUs" / "bin" / "fsdp-run"
ORACLE = ROOT / "test" / "EndToEnd" / "oracle"
sys.path[:0] = [str(ROOT / "python-bindings"), str(ROOT / "scripts"), str(ROOT / "test" / "ForkServer")]
os.environ["XDG_CONFIG_HOME"] = os.devnull  # predictions are those of no machine that somebody has measured
os.environ.setdefault("OMP_NUM_THREADS", "1")  # ahead of torch: there are as many workers as cores

import fork_server  # noqa: E402


def tool(name: str, *arguments, timeout: float = 120, **variables) -> subprocess.CompletedProcess:
    """Runs a tool of the build folder; its output and exit status are the caller's business. `variables` join the environment."""
    if through_nccl and name == "fsdp-run" and "--reference" in arguments and "--backend" not in arguments:
        return run_through_nccl(arguments, timeout, variables)
    return fork_server.run([str(BUILD / "bin" / name), *map(str, arguments)], timeout, **variables)


through_nccl = False  # --through-nccl


def draw_decisions(written: str, generator: random.Random, pieces: bool = False) -> str:
    """Decisions that nobody would make, of the units of a file: what is kept, calls, launches and waits. `pieces`: where they may be kept."""
    keeps = ["true", "false"] + ['"piece"'] * 2 * pieces
    text = re.sub(r"joins = \w+", lambda _: f"joins = {generator.choice(['true', 'false'])}", written)
    text = re.sub(r"keep = [^,]+", lambda _: f"keep = {generator.choice(keeps)}", text)
    return re.sub(r"(ahead|wait) = \d+", lambda found: f"{found[1]} = {generator.randrange(6)}", text)


def free_port() -> int:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        return other.getsockname()[1]


def start_nccl(ranks: int, *arguments, **variables) -> list[subprocess.Popen]:
    """A process for each rank, as torchrun starts them, with GPUs and a NCCL of ordinary memory; `variables` join the environment."""
    port = free_port()
    return [subprocess.Popen([FAKE_GPUS, *map(str, arguments), "--backend", "nccl"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
                                  "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **variables})
            for rank in range(ranks)]


def communicate(processes: list[subprocess.Popen], timeout: float) -> list[tuple[str, str]]:
    """The output and the errors of each. None is left."""
    try:
        return [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()


def children(parent: int, name: str = "") -> list[int]:
    """The processes that another one has started, whose program has that name."""
    return list(map(int, subprocess.run(["pgrep", "-P", str(parent), name], capture_output=True, text=True).stdout.split()))


def run_through_nccl(arguments: tuple, timeout: float, variables: dict) -> subprocess.CompletedProcess:
    """As many processes as the plan has ranks, which is what one process is told."""
    ranks = 1
    while True:
        processes = start_nccl(ranks, *arguments, **variables)
        said = communicate(processes, timeout)
        wanted = re.search(r"expected a process for each of its (\d+) ranks", said[0][1])
        if not wanted:
            break
        ranks = int(wanted[1])
    code = max((process.returncode for process in processes), key=abs)  # a signal, if there was one
    return subprocess.CompletedProcess(processes[0].args, code, said[0][0], "".join(error for _, error in said))


def succeed(name: str, *arguments, **options) -> subprocess.CompletedProcess:
    """The same, and the tool must end well."""
    result = tool(name, *arguments, **options)
    assert result.returncode == 0, f"{' '.join(map(str, result.args))}\n{result.stdout}{result.stderr}"
    return result


needs_trainer = pytest.mark.skipif(not list((BUILD / "python" / "fsdp_mlir").glob("_runtime.*")),
                                   reason="not run: no headers of Python, or a sanitizer, when the project was built")
needs_mpi = pytest.mark.skipif(not (BUILD / "lib" / "libfsdp_mpi.so").exists() or not shutil.which("mpirun"),
                               reason="not run: there was no MPI library when the project was built, or there is no mpirun")

# As root, and with more processes than cores. Where PMIx keeps its data in shared memory, `mpirun` never ends if a process is killed while it holds the lock
# of it, in MPI_Init (openpmix, issue 1233).
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1", "PMIX_MCA_gds": "hash"}


def start_processes(*groups, before=(), **variables) -> subprocess.Popen:
    """Starts groups of processes, each (number, arguments of fsdp-run...), as one job; `variables` join the environment.

    `before`: what starts each process.
    """
    command = ["mpirun"]
    for number, *arguments in groups:
        command += [*([":"] if command[1:] else []), "-n", str(number), *before, BUILD / "bin" / "fsdp-run", *map(str, arguments), "--backend", "mpi"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "OMP_NUM_THREADS": "1", **OPEN_MPI, **variables})


def outcome(stdout: str) -> tuple:
    """The losses of a training with --json, digit by digit, and a hash of all parameters after it."""
    *steps, last = map(json.loads, stdout.splitlines())
    return [step["loss"] for step in steps], last["summary"]["parameters"]


def pytest_configure(config):
    global through_nccl
    through_nccl = config.getoption("--through-nccl")
    config.addinivalue_line("markers", "covers(*names): rows of docs/fsdp-coverage.toml that the test shows")


def pytest_addoption(parser):
    parser.addoption("--all-mutants", action="store_true", help="try all mutants, not one in forty or fewer, and write docs/internals/mutation.md")
    parser.addoption("--through-nccl", action="store_true", help="compare with PyTorch what processes compute that a NCCL of ordinary memory connects")
    parser.addoption("--all-pairs", action="store_true", help="compare all trainings with PyTorch's FSDP, not only twelve")


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory):
    """Plans of the module's own; one thread, as a rank has: more of them add in another order."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FSDP_BIN", str(BUILD / "bin"))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """once(name, make): path of the file that `make(path)` writes, made for all workers of pytest-xdist by the first that asks."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "once"
    folder.mkdir(exist_ok=True)

    def find(name: str, make) -> pathlib.Path:
        path = folder / name
        with open(folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                unfinished = folder / f"unfinished-{name}"
                shutil.rmtree(unfinished, ignore_errors=True)  # of a make that failed in another worker
                make(unfinished)
                unfinished.rename(path)
        return path

    return find


def digest(*values) -> str:
    """A name for a file that depends on these."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def make_reference(path: pathlib.Path, graph: str, ranks: int, *options) -> None:
    """Writes what PyTorch computes of a fixture: scripts/make_rank_reference.py, in a process that has imported torch."""
    import make_rank_reference

    assert make_rank_reference.main([*map(str, (ranks, FIXTURES / f"{graph}.pt2", "--output", path, *options))]) == 0


@pytest.fixture(scope="session")
def references(once):
    """references(graph, ranks): path of a reference with a different batch on every rank; `graph` is relative to the fixtures."""
    def find(graph: str, ranks: int) -> pathlib.Path:
        committed = FIXTURES / f"{graph}{'_ref' if ranks == 1 else f'_ref{ranks}'}.safetensors"
        return committed if committed.exists() else once(
            f"{graph.replace('/', '_')}_ref{ranks}.safetensors", lambda path: make_reference(path, graph, ranks))

    return find


@pytest.fixture(scope="session")
def trainings(once):
    """trainings(graph, ranks, steps, make): path of a reference for the steps of the optimizer that `make` makes of a dictionary
    of the parameters that train, of a fixture with a different batch on every rank and step.

    `make` names the file; it has an attribute `hyper`, what the options of `fsdp-run` would say.
    """
    import make_rank_reference as maker
    from safetensors.torch import save_file

    def find(graph: str, ranks: int, steps: int, make) -> pathlib.Path:
        def write(path):
            program = maker.load(FIXTURES / f"{graph}.pt2")
            trained = {spec.target for spec in program.graph_signature.output_specs if "GRADIENT" in spec.kind.name}
            names = [name for name in program.graph_signature.parameters if name in trained]
            made = maker.training(program, ranks, steps, seed=7, storage=None, make=lambda kept: make(dict(zip(names, kept, strict=True))))
            save_file(made, path, {key: str(value) for key, value in make.hyper.items()})

        return once(f"training-{digest(graph, ranks, steps, repr(make))}.safetensors", write)

    return find


@pytest.fixture(scope="session")
def plans(once):
    """plans(graph, ranks, *options): path of the plan that fsdp-plan makes of a fixture."""

    def find(graph: str, ranks: int, *options: str) -> pathlib.Path:
        return once(f"{digest(graph, ranks, *options)}.plan",
                    lambda path: succeed("fsdp-plan", FIXTURES / f"{graph}.pt2", *([] if "--mesh" in options or "--ranks" in options else ["--ranks", ranks]), "-o", path, *options))

    return find


@pytest.fixture(scope="session")
def micro_batches(references, once):
    """micro_batches(graph, ranks, count): like `references`, with another batch for each rank in each micro-batch of a step."""
    from safetensors.torch import load_file, save_file

    def find(graph: str, ranks: int, count: int) -> pathlib.Path:
        def make(path):
            import torch
            save_file({name: torch.stack([tensor.roll(k, 0) for k in range(count)]) if name.startswith("in_") else tensor
                       for name, tensor in load_file(references(graph, ranks)).items()}, path)

        return references(graph, ranks) if count == 1 else once(f"{graph}_ref{ranks}x{count}.safetensors", make)

    return find


def made_on() -> str:
    """What a page of results begins with: scripts/check_pages.sh says how much of its code is newer."""
    commit = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return f"Made on commit `{commit}`."


def find_bits(graph: str, inputs: pathlib.Path, seed: int, plans: list) -> dict[str, str]:
    """What each plan leaves behind: a hash, or the sentence of a failure. With a seed, in chaos."""
    found, todo = {}, list(map(str, plans))
    while todo:
        result = tool("fsdp-bits", FIXTURES / f"{graph}.pt2", inputs, seed, *todo, timeout=3600)
        lines = [line.partition("\t") for line in result.stdout.splitlines()]
        found |= {plan: sentence for plan, _, sentence in lines}
        if result.returncode == 0:
            break
        # Whoever crashes is tried again, alone: what a rejected load leaves behind is not its fault.
        last = lines[-1][0]
        if len(lines) == 1:
            found[last] = f"crashed with {result.returncode}: {result.stderr.strip()}"
        todo = todo[max(len(lines) - 1, 1):]
    return found


@pytest.fixture(scope="session")
def chains(once):
    """chains(config): the aten level of the chain that a file of PyTorch's FSDP (fsdp_*.json) was recorded with."""
    import torch
    from fixture_models import Case, Chain
    from make_fixtures import write

    def find(config: dict) -> pathlib.Path:
        args, dtype = config["args"], (config.get("mixed") or ["float32"])[0]

        def make(path):
            chain = Chain(args["n"], args["d"], args.get("root_params", True), args.get("head", True), args.get("frozen", ()))
            case = Case(chain.train().to(getattr(torch, dtype)), (torch.ones(2, args["d"], dtype=getattr(torch, dtype)),))
            write(case, path.parent, path.stem, reference=False)
            succeed("fsdp-translate", "--import-pt2", path.with_suffix(".pt2"), "-o", path)

        return once(f"chain-{digest(args, dtype)}.mlir", make)

    return find


@pytest.fixture(scope="session")
def operators(once):
    """The library of custom operators out of Inputs/scaled_square.cpp, for `fsdp-run --load`."""
    import torch

    include = pathlib.Path(torch.__file__).parent / "include"
    source = pathlib.Path(__file__).parent / "Inputs" / "scaled_square.cpp"
    command = ["g++", "-std=c++20", "-shared", "-fPIC", "-isystem", include, source, "-o"]
    return once("libscaled_square.so", lambda path: subprocess.run([*command, path], check=True))


@pytest.fixture(scope="session")
def small_archive(once):
    """The captured model of oracle/ranks.py."""

    def make(path: pathlib.Path) -> None:
        sys.path.insert(0, str(ORACLE))
        import ranks

        import fsdp_mlir

        fsdp_mlir.save(fsdp_mlir.capture(ranks.build(), tuple(ranks.rows()[0])), path)

    return once("ranks.pt2", make)


@pytest.fixture(scope="session")
def on_two_ranks(once):
    """The folder that oracle/ranks.py writes: its data, and what PyTorch makes of each of its functions."""

    def make(folder: pathlib.Path) -> None:
        folder.mkdir()
        what = "summon,ignored,broadcast,mean,own,all_reduce_hook"
        result = subprocess.run([sys.executable, ORACLE / "ranks.py", what, folder], capture_output=True, text=True, timeout=120,
                                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"})
        assert result.returncode == 0, result.stderr

    return once("ranks", make)
