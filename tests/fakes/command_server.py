"""Commands that have loaded `kaged` already: each is still a process of its own, made by forking.

Two thirds of what a command of a test costs is loading modules, the same ones every time. Here a
server loads them once, and each `kaged …` is a child of it with its own words, environment, folder,
standard files and exit code. A test about loading starts the program (`running_daemon.KAGED`), and
so does one whose environment changes how a program is loaded (`can_fork`). With KAGED_TESTS_EXEC=1
whole tests fork nothing.

The file is both ends: imported it asks, started as a program it serves.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

SERVER = Path(__file__)
_FILES = 4
_MOST = 1 << 20
_LARGE = 2 << 20
_MADV_COLLAPSE = 25
_UNNAMED = 5
_LOADED_ON_DEMAND = (
    *("httpx", "httpcore", "jsonschema_rs", "ast_grep_py", "ruamel.yaml"),
    *("openai.resources.chat.chat", "openai.resources.chat.completions.completions"),
    *("openai.lib.streaming.chat", "openai.resources.chat.completions.messages"),
    *("genai_prices.data", "genai_prices.data_units", "genai_prices.decompose"),
    *("genai_prices.validation", "anyio._backends._asyncio", "encodings.ascii", "encodings.idna"),
)
"""What other people's programs load when they are used first: projects, and talks with models."""
_READ_WHEN_LOADED = ("PYTHON", "LD_", "LANG", "LC_", "TZ", "MALLOC_")
_GIVEN = ("PATH", "LANG", "LC_ALL")


def can_fork(env: Mapping[str, str]) -> bool:
    """Return whether a program with this environment loads as the server has loaded."""
    if os.environ.get("KAGED_TESTS_EXEC"):
        return False
    return all(
        name in _GIVEN and os.environ.get(name) == value
        for name, value in env.items()
        if name.startswith(_READ_WHEN_LOADED)
    )


class Forked:
    """A command that was started. It can be waited for and signalled as `subprocess.Popen` can."""

    def __init__(self, asking: socket.socket) -> None:
        self._asking = asking
        self._code: int | None = None
        self.pid = self._number()

    def __del__(self) -> None:
        # As with any other process, nobody has to ask for its end.
        self._asking.close()

    def poll(self) -> int | None:
        """Return its exit code when it has ended."""
        if self._code is None and self._has_said(0):
            self._code = self._number()
            self._asking.close()
        return self._code

    def wait(self, timeout_s: float) -> int:
        """Return its exit code, or the number of the signal that ended it, negated."""
        if self._code is None and not self._has_said(timeout_s):
            raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout_s)
        code = self.poll()
        assert code is not None
        return code

    def _has_said(self, timeout_s: float) -> bool:
        # Not `select`, which knows 1024 descriptors only; tests of floods have more.
        poll = select.poll()
        poll.register(self._asking, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # ended, and not told of yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it without giving it a chance to do anything."""
        self.send_signal(signal.SIGKILL)

    def _number(self) -> int:
        said = b""
        while not said.endswith(b"\n"):
            piece = self._asking.recv(1)
            assert piece, "the command server ended"
            said += piece
        return int(said)


class CommandServer:
    """Asks the server of this test process to run commands."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kgc-")
        self._path = f"{self._folder.name}/s"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(self._path)
            listening.listen(16)
            # It ends when its standard input does, which is with this process at the latest.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(SERVER), str(listening.fileno())],
                env={name: os.environ[name] for name in _GIVEN if name in os.environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listening.fileno()],
            )

    def start(
        self, words: Sequence[str], env: Mapping[str, str], cwd: Path | None, files: Sequence[int]
    ) -> Forked:
        """Start `kaged` with these words; the files are its standard ones, and its number 3."""
        asking = socket.socket(socket.AF_UNIX)
        asking.connect(self._path)
        wanted = {"words": [*words], "env": {**env}, "cwd": str(cwd or Path.cwd())}
        socket.send_fds(asking, [json.dumps(wanted).encode()], [*files])
        asking.shutdown(socket.SHUT_WR)
        return Forked(asking)

    def run(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        cwd: Path | None,
        timeout_s: float,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run `kaged` with these words and this input, and wait for its end."""
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            given.write(stdin.encode())
            given.seek(0)
            files = [given.fileno(), out.fileno(), err.fileno()]
            code = self.start(words, env, cwd, files).wait(timeout_s)
            return subprocess.CompletedProcess(["kaged", *words], code, _text(out), _text(err))

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


@cache
def command_server() -> CommandServer:
    """Return the server of this process, which ends with it."""
    server = CommandServer()
    atexit.register(server.close)
    return server


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode("utf-8"))


# -- the server ---------------------------------------------------------------------------------


def _serve(listening: socket.socket) -> None:
    _load()
    gc.collect()
    gc.freeze()
    pack_memory()
    watched: dict[int, tuple[int, socket.socket]] = {}
    poll = select.poll()
    poll.register(listening, select.POLLIN)
    poll.register(sys.stdin, select.POLLHUP)
    while True:
        ready = {file for file, _ in poll.poll()}
        if sys.stdin.fileno() in ready:
            return
        for ended in ready & watched.keys():
            poll.unregister(ended)
            _tell_end(ended, *watched.pop(ended))
        if listening.fileno() in ready:
            child, connection = _start(listening)
            number = os.pidfd_open(child)
            watched[number] = child, connection
            poll.register(number, select.POLLIN)


def _start(listening: socket.socket) -> tuple[int, socket.socket]:
    """Run one command in a child."""
    connection, _ = listening.accept()
    said, files, _, _ = socket.recv_fds(connection, _MOST, _FILES)
    while piece := connection.recv(_MOST):
        said += piece
    child = os.fork()  # noqa: TID251 - a server of tests, not of the product
    if child == 0:
        _take(files)
        _become(json.loads(said))
    for file in files:
        os.close(file)
    with contextlib.suppress(OSError):  # nobody has to ask for it
        connection.sendall(f"{child}\n".encode())
    return child, connection


def _tell_end(number: int, child: int, connection: socket.socket) -> None:
    _, status = os.waitpid(child, 0)
    os.close(number)
    with connection, contextlib.suppress(OSError):
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _load() -> None:
    sys.modules["httpx._main"] = None  # type: ignore[assignment]  # as the command itself does
    product = importlib.import_module("kaged")
    found = [one.name for one in pkgutil.walk_packages(product.__path__, "kaged.")]
    # All that anybody loads on demand, without the programs, which run when they are loaded.
    names = [one for one in found if not one.endswith("_main") and not one.endswith("__main__")]
    for name in (*names, *_LOADED_ON_DEMAND):
        importlib.import_module(name)


def pack_memory() -> int:
    """Put what this process holds into large pages, and return how many bytes of it went there.

    Most of what a fork costs is copying the table of pages: of large ones there are 512 times
    fewer. Which kernels can do it on request is theirs to say; without them a fork costs more.
    """
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    packed = 0
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if words[1] == "rw-p" and (len(words) == _UNNAMED or words[-1] == "[heap]"):
            first, last = (int(one, 16) // _LARGE for one in words[0].split("-"))
            size = (last - first - 1) * _LARGE  # what it begins in is not wholly its own
            if size > 0 and advise((first + 1) * _LARGE, size, _MADV_COLLAPSE) == 0:
                packed += size
    return packed


def _take(files: Sequence[int]) -> None:
    """Put these files where the command looks for them, and close every other."""
    above = [fcntl.fcntl(one, fcntl.F_DUPFD, _FILES) for one in files]
    for number, file in enumerate(above):
        os.dup2(file, number)
    os.closerange(len(files), os.sysconf("SC_OPEN_MAX"))


def _become(wanted: dict[str, Any]) -> None:
    """Run the command line in this process and leave with its exit code."""
    os.environ.clear()
    os.environ.update(wanted["env"])
    os.chdir(wanted["cwd"])
    # Made anew: whether they are terminals decides how they are buffered.
    sys.stdin = os.fdopen(0, encoding="utf-8")
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace")
    sys.argv = ["kaged", *wanted["words"]]
    code: Any = 0
    try:
        importlib.import_module("kaged.cli.main").main()
    except SystemExit as left:
        code = left.code
    except BaseException:  # noqa: BLE001 - what the interpreter does with it
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code or 0))


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
