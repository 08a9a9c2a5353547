"""What tests start once and run often says what a start of its own says."""

import os
import pathlib
import signal
import subprocess
import threading
import time

import fork_server
import pytest
from conftest import BUILD, FIXTURES, tool


# Or the other tests would be about programs that nobody starts.
@pytest.mark.parametrize("name", ["fsdp-run", "fsdp-plan", "fsdp-opt", "fsdp-translate"])
@pytest.mark.parametrize("arguments", [["--help"], ["--no-such-option"], ["", "no.file"]], ids=["help", "usage", "input"])
def test_a_run_is_that_of_a_start(name, arguments):
    command = [str(BUILD / "bin" / name), *arguments]
    expected = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    for _ in range(2):  # whatever ran before it
        found = fork_server.run(command, 60)
        assert (found.returncode, found.stdout, found.stderr) == (expected.returncode, expected.stdout, expected.stderr)
    assert fork_server.server_of(command[0], os.getpid())


# Tests change both.
def test_the_folder_and_the_environment_are_those_of_the_caller(plans, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.plan").write_bytes(plans("gpt2", 2).read_bytes())
    assert tool("fsdp-translate", "--import-plan", "here.plan").returncode == 0
    wide = tool("fsdp-run", "--help").stdout
    monkeypatch.setenv("COLUMNS", "60")
    assert tool("fsdp-run", "--help").stdout != wide


@pytest.fixture
def endless(plans):
    """Arguments of a training that takes longer than a test."""
    return [plans("gpt2", 2), "--weights", FIXTURES / "gpt2.pt2", "--data", FIXTURES / "gpt2_train2x5.safetensors", "--steps", 999999, "--json"]


# One that hangs stops neither the tests nor the next run.
def test_a_run_that_takes_too_long_is_killed(endless):
    with pytest.raises(subprocess.TimeoutExpired):
        tool("fsdp-run", *endless, timeout=1)
    assert tool("fsdp-run", "--help").returncode == 0


# A crash is no exit status of a tool.
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_crash_is_its_signal(number, endless):
    server = fork_server.server_of(str(BUILD / "bin" / "fsdp-run"), os.getpid())

    def kill():
        while not (children := pathlib.Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()):
            time.sleep(0.01)
        os.kill(int(children[0]), number)

    killer = threading.Thread(target=kill)
    killer.start()
    assert tool("fsdp-run", *endless).returncode == -number
    killer.join()
    assert tool("fsdp-run", "--help").returncode == 0
