"""`AstWorkers`: a few parser processes, started when needed, kept warm, killed when stuck.

A worker is used by one job at a time, from a thread of the pool's own: its pipe is written and read
there, so that the event loop neither copies source texts nor waits for them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.cage import CageProcess, Spawner, Uncaged, UncagedRequest
from kaged.toolbox.ast import worker_main
from kaged.tools.errors import ToolError

IDLE_S: Final = 60.0
START_S: Final = 20.0
MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
_SCRIPT: Final = str(Path(worker_main.__file__).resolve())
_T = TypeVar("_T")
# The interpreter is held while an answer is decoded, so it had better be quick.
_decode = msgspec.json.Decoder().decode
_REASON: Final = Uncaged("parser of the daemon; it gets texts through its pipe and opens no files")


_ENVIRONMENT: Final = (
    ("PYTHONUTF8", "1"),
    # A parsed file is many small pieces that all go at once. Giving them back to the system after
    # each file and fetching them again for the next costs a sixth of the whole work.
    ("MALLOC_TRIM_THRESHOLD_", str(256 * 1024 * 1024)),
    ("MALLOC_MMAP_THRESHOLD_", str(256 * 1024 * 1024)),
    ("MALLOC_TOP_PAD_", str(16 * 1024 * 1024)),
)


class WorkerGone(Exception):
    """The process ended, or was ended, in the middle of a conversation."""


class _FileFound(msgspec.Struct):
    """What was found in one file; the matches stay text until somebody wants to see them."""

    matches: msgspec.Raw = msgspec.Raw(b"[]")
    found: int = 0
    used: int = 0


_decode_found = msgspec.json.Decoder(list[_FileFound]).decode


def found_in_files(answer: bytes) -> JsonValue:
    """Read the answer to a search without taking the matches apart.

    Most of them are never shown, and whoever decodes them keeps the interpreter from the loop.
    """
    try:
        files = _decode_found(answer)
    except msgspec.ValidationError:
        return _decode(answer)  # no list of files: it says what went wrong
    return [
        {"matches": str(bytes(one.matches), "utf-8"), "found": one.found, "used": one.used}
        for one in files
    ]


class ProcessWorker:
    """One worker process. What it is asked blocks; call it from a thread."""

    def __init__(self, process: CageProcess) -> None:
        self._process = process
        self._input = process.take_fd("stdin")
        self._output = process.take_fd("stdout")
        self._handles: tuple[int, ...] = (self._input, self._output)
        os.close(process.take_fd("stderr"))
        self.broken = False

    def ask(
        self, head: JsonObject, body: bytes = b"", decode: Callable[[bytes], JsonValue] = _decode
    ) -> JsonValue:
        """Send a message and wait for the answer. Raises WorkerGone and `internal_error`."""
        raw = json.dumps(head).encode()
        self._write(worker_main.HEAD.pack(len(raw), len(body)) + raw)
        if body:
            self._write(body)
        answer = self.read(decode)
        if isinstance(answer, dict) and "failed" in answer:
            raise ToolError("the parser failed", code="internal_error", detail=answer["failed"])
        return answer

    def read(self, decode: Callable[[bytes], JsonValue] = _decode) -> JsonValue:
        """Wait for the next answer."""
        (size,) = worker_main.LENGTH.unpack(self._read_exactly(worker_main.LENGTH.size))
        if size > MAX_ANSWER_BYTES:
            self.broken = True
            raise WorkerGone
        return decode(self._read_exactly(size))

    def kill(self) -> None:
        """End the process; whoever waits for it in a thread learns of it."""
        self.broken = True
        self._process.kill()

    async def close(self) -> None:
        """End the process and wait for it. No thread may use it any more."""
        self.retire()
        await self._process.wait()

    def retire(self) -> None:
        """End the process without waiting. No thread may use it any more."""
        self.kill()
        handles, self._handles = self._handles, ()
        for handle in handles:
            os.close(handle)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._input, view) :]
        except OSError as error:
            self.broken = True
            raise WorkerGone from error

    def _read_exactly(self, count: int) -> bytes:
        chunks: list[bytes] = []
        while count:
            chunk = os.read(self._output, min(count, 1 << 20))
            if not chunk:
                self.broken = True
                raise WorkerGone
            chunks.append(chunk)
            count -= len(chunk)
        return b"".join(chunks)


class AstWorkers:
    """The pool. One more worker than processors: while one reads files, the others parse."""

    def __init__(self, spawner: Spawner, *, count: int | None = None) -> None:
        self.count = count or (os.cpu_count() or 1) + 1
        self.threads = ThreadPoolExecutor(self.count, thread_name_prefix="kaged-ast")
        self._spawner = spawner
        self._free = asyncio.Semaphore(self.count)
        self._idle: list[ProcessWorker] = []
        self._timer: asyncio.TimerHandle | None = None
        self._library = _library_directory()

    @asynccontextmanager
    async def lease(self, wanted: int) -> AsyncGenerator[list[ProcessWorker]]:
        """Yield up to so many workers, at least one; waits while all are in use."""
        await self._free.acquire()
        held = 1
        workers: list[ProcessWorker] = []
        try:
            while held < min(wanted, self.count) and not self._free.locked():
                await self._free.acquire()
                held += 1
            while len(workers) < held:
                workers.append(self._idle.pop() if self._idle else await self._start())
            yield workers
        finally:
            try:
                await self._take_back(workers)
            finally:
                for _ in range(held):
                    self._free.release()

    async def close(self) -> None:
        """End all workers and the pool's threads."""
        if self._timer is not None:
            self._timer.cancel()
        idle, self._idle = self._idle, []
        for worker in idle:
            await worker.close()
        self.threads.shutdown(wait=True)

    async def in_thread(self, worker: ProcessWorker, work: Callable[[], _T], time_s: float) -> _T:
        """Talk to a worker in a thread; whoever does not want to wait any more ends the worker.

        Raises TimeoutError and WorkerGone.
        """
        running = asyncio.get_running_loop().run_in_executor(self.threads, work)
        try:
            async with asyncio.timeout(time_s):
                return await asyncio.shield(running)
        finally:
            if not running.done():
                worker.kill()
                await all_done((running,))

    async def _start(self) -> ProcessWorker:
        request = UncagedRequest(
            "ast worker",
            _REASON,
            (sys.executable, "-I", "-S", _SCRIPT, self._library),
            env=_ENVIRONMENT,
        )
        worker = ProcessWorker(await self._spawner.spawn(request))
        try:
            await self.in_thread(worker, worker.read, START_S)
        except (WorkerGone, TimeoutError) as error:
            await worker.close()
            raise KagedError(
                "the ast-grep binding cannot be loaded; search.ast and edit.ast need it",
                code="engine_unavailable",
                fix="install the package ast-grep-py into the daemon's environment",
            ) from error
        except BaseException:
            await worker.close()
            raise
        return worker

    async def _take_back(self, workers: list[ProcessWorker]) -> None:
        for worker in workers:
            if worker.broken:
                await worker.close()
            else:
                self._idle.append(worker)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._rest)

    def _rest(self) -> None:
        # The daemon need not hold megabytes for a search that may never come again.
        idle, self._idle = self._idle, []
        for worker in idle:
            worker.retire()


async def all_done(running: Iterable[asyncio.Future[Any]]) -> None:
    """Wait for threads that cannot be cancelled; their workers are dead, so it is a moment."""
    cancelled: asyncio.CancelledError | None = None
    while pending := [one for one in running if not one.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    for one in running:
        one.exception()  # looked at, so that nobody complains about it later
    if cancelled is not None:
        raise cancelled


def _library_directory() -> str:
    try:
        spec = find_spec("ast_grep_py")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise KagedError(
            "the ast-grep binding is not installed; search.ast and edit.ast need it",
            code="engine_unavailable",
            fix="install the package ast-grep-py into the daemon's environment",
        )
    return str(Path(spec.origin).resolve().parent.parent)
