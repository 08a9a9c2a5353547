"""Runs of a tool that share its start: each is a fork of a process that has loaded the libraries of the tool, which takes longer than most runs."""

import array
import concurrent.futures
import functools
import os
import pathlib
import signal
import socket
import subprocess
import threading

LONGEST = 100_000  # bytes of a request; a socket takes twice as much


def read(end: int) -> str:
    with open(end) as pipe:
        return pipe.read()


class ForkServer:
    """A tool that ForkServer.cpp holds ahead of its `main`."""

    def __init__(self, tool: str, library: pathlib.Path):
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "LD_PRELOAD": str(library), "FSDP_FORK_SERVER": str(theirs.fileno())}
            self.process = subprocess.Popen([tool], env=environment, pass_fds=[theirs.fileno()])
        self.lock = threading.Lock()

    def receive(self) -> int:
        """The next answer. TimeoutError if there is none for as long as the channel waits."""
        answer = self.channel.recv(4)
        assert len(answer) == 4, f"the fork server of {self.process.args[0]} has ended"
        return array.array("i", answer)[0]

    def run(self, command: list[str], request: bytes, timeout: float) -> subprocess.CompletedProcess:
        """As `subprocess.run(command, capture_output=True, text=True, timeout=timeout)`."""
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        with self.lock, concurrent.futures.ThreadPoolExecutor(2) as readers:
            said = [readers.submit(read, end) for end in (out, err)]
            try:
                socket.send_fds(self.channel, [request], [out_end, err_end])
            finally:
                os.close(out_end)
                os.close(err_end)
            process = self.receive()
            self.channel.settimeout(timeout)
            try:
                status = self.receive()
            except TimeoutError:
                os.kill(process, signal.SIGKILL)
                self.channel.settimeout(None)
                self.receive()
                raise subprocess.TimeoutExpired(command, timeout) from None
            self.channel.settimeout(None)
            return subprocess.CompletedProcess(command, os.waitstatus_to_exitcode(status), *(each.result() for each in said))


@functools.cache
def server_of(tool: str, process: int) -> ForkServer | None:
    """That of this process; None if tests were built without."""
    library = pathlib.Path(tool).parents[1] / "lib" / "libfsdp_test_fork_server.so"
    return ForkServer(tool, library) if library.exists() and os.access(tool, os.X_OK) else None


def run(command: list[str], timeout: float, **variables: str) -> subprocess.CompletedProcess:
    """Runs a tool of the build folder on one thread of OpenMP; its output is text. `variables` join the environment, of a start of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    words = [os.getcwd(), str(len(command)), *command, *(f"{name}={value}" for name, value in environment.items())]
    request = b"".join(os.fsencode(word) + b"\0" for word in words)
    server = server_of(command[0], os.getpid()) if not variables and len(request) < LONGEST else None
    if server:
        return server.run(command, request, timeout)
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
