"""What a command writes never destroys what was there: devices, pipes, links, inputs, other outputs; and what is lost is said."""

import os
import pathlib
import shutil
import signal
import stat
import subprocess
import threading
import time

import pytest

from conftest import BUILD, FIXTURES, succeed

MODEL = FIXTURES / "gpt2.pt2"
LLVM_TEXTS = ("LLVM ERROR", "PLEASE submit", "Stack dump", "terminate called")


@pytest.fixture
def model(tmp_path) -> pathlib.Path:
    return pathlib.Path(shutil.copy(MODEL, tmp_path / "model.pt2"))


@pytest.fixture
def text(tmp_path) -> pathlib.Path:
    path = tmp_path / "model.mlir"
    succeed("fsdp-translate", "--import-pt2", MODEL, "-o", path)
    return path


def shell(command: str, folder: pathlib.Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PATH": f"{BUILD / 'bin'}:{os.environ['PATH']}"}
    result = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=60, env=environment)
    assert not any(words in result.stderr for words in LLVM_TEXTS), result.stderr
    return result


def rejected(command: str, folder: pathlib.Path) -> str:
    result = shell(command, folder)
    assert result.returncode == 1, result
    return result.stderr


# Also by another path, or another name of the same file.
def test_an_input_is_no_output(model, text, tmp_path):
    before = model.read_bytes(), text.read_bytes()
    os.symlink("model.pt2", tmp_path / "link")
    os.link(model, tmp_path / "hard")
    for name in "model.pt2", "./model.pt2", "link", "hard":
        assert rejected(f"fsdp-plan model.pt2 --ranks 2 -o {name}", tmp_path) == (
            f"fsdp-plan: error: {name}: expected a file of its own for -o, found that of the model\n")
        assert rejected(f"fsdp-translate --import-pt2 model.pt2 -o {name}", tmp_path) == (
            f"fsdp-translate: error: {name}: expected a file of its own for -o, found that of the input\n")
    assert rejected("fsdp-plan model.pt2 --ranks 2 -o p --trace hard", tmp_path) == (
        "fsdp-plan: error: hard: expected a file of its own for --trace, found that of the model\n")
    assert rejected("fsdp-opt model.mlir -o ./model.mlir", tmp_path) == (
        "fsdp-opt: error: ./model.mlir: expected a file of its own for -o, found that of the input\n")
    assert (model.read_bytes(), text.read_bytes()) == before


def test_two_outputs_are_two_files(model, tmp_path):
    os.symlink("p", tmp_path / "dangling")
    for name in "p", "./p", "dangling":
        assert rejected(f"fsdp-plan model.pt2 --ranks 2 -o p --report {name}", tmp_path) == (
            f"fsdp-plan: error: {name}: expected a file of its own for --report, found that of -o\n")
    assert not (tmp_path / "p").exists()


# As root, a rename would put a regular file where the device was.
def test_devices_stay_devices(model, text, tmp_path):
    for command in ("fsdp-plan model.pt2 --ranks 2 -o /dev/null --trace /dev/null --report /dev/null",
                    "fsdp-opt model.mlir -o /dev/null", "fsdp-translate --import-pt2 model.pt2 -o /dev/null"):
        assert shell(command, tmp_path).returncode == 0
        assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_pipes_and_links_are_followed(model, tmp_path):
    succeed("fsdp-plan", model, "--ranks", 2, "-o", tmp_path / "p")
    plan = (tmp_path / "p").read_bytes()
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    succeed("fsdp-plan", model, "--ranks", 2, "-o", tmp_path / "pipe")
    reader.join()
    assert read == [plan] and stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)

    (tmp_path / "link").symlink_to("target")
    succeed("fsdp-plan", model, "--ranks", 2, "-o", tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_bytes() == plan
    assert shell("fsdp-plan model.pt2 --ranks 2 -o >(cat >copy) --report /dev/stdout; wait $!", tmp_path).returncode == 0
    assert (tmp_path / "copy").read_bytes() == plan
    # Standard output that is a file stays that file.
    assert shell("fsdp-plan model.pt2 --ranks 2 -o /dev/stdout >all", tmp_path).returncode == 0
    assert (tmp_path / "all").read_bytes().startswith(plan + b"plan for 2 ranks")


# A full disk, a closed pipe and no memory are sentences.
def test_what_is_lost_is_said(model, text, tmp_path):
    for command, tool_name in (("fsdp-plan model.pt2 --ranks 2 -o p", "fsdp-plan"), ("fsdp-opt model.mlir", "fsdp-opt"),
                               ("fsdp-translate --import-pt2 model.pt2", "fsdp-translate")):
        lost = f"{tool_name}: error: standard output: cannot write: "
        assert rejected(f"{command} >/dev/full", tmp_path) == f"{lost}No space left on device\n"
        assert rejected(f"{command} >&-", tmp_path) == f"{lost}Bad file descriptor\n"
        assert rejected(f"{command.removesuffix(' -o p')} -o /dev/full", tmp_path) == (
            f"{tool_name}: error: /dev/full: cannot write the file: No space left on device\n")
    # The libraries need half a gigabyte of addresses; the model more than what is left.
    graph = FIXTURES / "llama_405b.pt2.zst"
    subprocess.run(["zstd", "-dqf", graph, "-o", tmp_path / "large.pt2"], check=True)
    errors = rejected("ulimit -v 700000; fsdp-plan large.pt2 --ranks 8 -o p", tmp_path)
    assert errors.startswith("fsdp-plan: error: ") and errors.count("\n") == 1


def test_a_failure_leaves_what_was_there(model, text, tmp_path):
    for command in "fsdp-plan no.pt2 --ranks 2 -o old", "fsdp-opt --fsdp-shard=ranks=0 model.mlir -o old":
        (tmp_path / "old").write_text("old")
        assert rejected(command, tmp_path)
        assert (tmp_path / "old").read_text() == "old"


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_leave_nothing_after(which, model, tmp_path):
    out = tmp_path / "out"
    for trial in range(6):
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        command = [BUILD / "bin" / "fsdp-plan", model, "--ranks", "2", "-o", out / "p", "--report", out / "r"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.02 * trial)
        process.send_signal(which)
        process.wait()
        assert {path.name for path in out.iterdir()} <= {"p", "r"}


def test_names_cannot_steer_the_terminal(tmp_path):
    result = subprocess.run([BUILD / "bin" / "fsdp-plan", b"\x1b[2J\xff.pt2", "--ranks", "2", "-o", tmp_path / "p"], capture_output=True)
    assert result.stderr == b"fsdp-plan: error: \\x1b[2J\\xff.pt2: cannot open: No such file or directory\n"
