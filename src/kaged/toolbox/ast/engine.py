"""`AstEngine`: patterns and files in, matches or edits out; the values the AST tools talk in.

`WorkerEngine` runs the binding in worker processes. Another engine (the binding in a thread, a
command-line program) would leave the tools as they are.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Final, Protocol, cast

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.ast.workers import (
    AstWorkers,
    ProcessWorker,
    WorkerGone,
    all_done,
    found_in_files,
)
from kaged.tools.errors import ToolError

BATCH_BYTES: Final = 128 * 1024
BATCH_FILES: Final = 64
PREPARE_S: Final = 10.0
FILES_PER_WORKER: Final = 8
"""Below so many files another worker costs more than it brings."""


class InvalidAstPattern(ToolError):
    """The pattern is no complete piece of code in its language."""

    code = "invalid_pattern"

    @classmethod
    def of(cls, pattern: str, problem: str) -> InvalidAstPattern:
        """Return the error for a pattern, with how patterns are written."""
        return cls(
            f"the pattern {pattern[:200]!r} cannot be used: {problem}",
            fix="write one complete expression or statement, e.g. console.log($MSG) or "
            "def $F($$$ARGS): $$$BODY; $NAME stands for one node, $$$NAME for any number",
            detail={"pattern": pattern[:2000], "problem": problem},
        )


@dataclass(frozen=True, slots=True)
class AstSettings:
    """What the operator may set.

    `time_s` is how long one call may take, `output_bytes` how much of its matches is returned,
    serialized. `max_matches` ends a search early, `max_changes` a rewrite. `file_bytes` is the
    largest file that is parsed. With `omit_outside` hits outside a caller's cage are left out
    instead of shown as path and line.
    """

    time_s: float = 60.0
    output_bytes: int = 256 * 1024
    max_matches: int = 5_000
    max_changes: int = 50_000
    file_bytes: int = 5 * 1024 * 1024
    omit_outside: bool = False


@dataclass(frozen=True, slots=True)
class PatternFacts:
    """What a pattern binds, and a text that every match contains (None when there is none)."""

    single: tuple[str, ...]
    multi: tuple[str, ...]
    literal: str | None

    @property
    def bound(self) -> frozenset[str]:
        """All names that the pattern binds."""
        return frozenset((*self.single, *self.multi))


@dataclass(frozen=True, slots=True)
class AstJob:
    """Patterns of one call in one language, and what to do with each file."""

    lang: str
    patterns: tuple[str, ...]
    strictness: str = "smart"
    templates: tuple[str, ...] | None = None
    """Replacements, one for each pattern; None to search for the first pattern."""
    context: int = 0


Read = Callable[[int], "bytes | None"]
"""Gives the text of the file with that index, None to pass it over. Called in threads."""
Take = Callable[[int, JsonObject], bool]
"""Takes the result of a file; False when no more are wanted. Called in threads, one at a time."""


class AstEngine(Protocol):
    """Matches and rewrites code by structure."""

    async def prepare(self, job: AstJob) -> list[PatternFacts]:
        """Check the patterns of a job. Raises InvalidAstPattern."""
        ...

    async def scan(self, job: AstJob, count: int, read: Read, take: Take, time_s: float) -> bool:
        """Go through files 0 to `count`; False when the time was up before the end.

        `take` gets `{matches, found}`, `{edits}` or `{broken}` for each file that was read; matches
        may come as the JSON text of their list. When it has enough, every file before the last one
        taken has been taken too.
        """
        ...


class WorkerEngine:
    """The binding ast-grep-py in worker processes."""

    def __init__(self, workers: AstWorkers) -> None:
        self._workers = workers

    async def check(self) -> None:
        """Start a worker and let it parse something. Raises `engine_unavailable`."""
        await self.prepare(AstJob("python", ("print($X)",)))

    async def prepare(self, job: AstJob) -> list[PatternFacts]:
        """Check the patterns of a job."""
        async with self._workers.lease(1) as (worker,):
            try:
                answer = await self._workers.in_thread(
                    worker, lambda: worker.ask(_preparing(job)), PREPARE_S
                )
            except (WorkerGone, TimeoutError):
                raise InvalidAstPattern.of(
                    job.patterns[0], "the parser could not read it"
                ) from None
        return _facts(job, answer)

    async def scan(self, job: AstJob, count: int, read: Read, take: Take, time_s: float) -> bool:
        """Go through files in batches, several workers at once."""
        wanted = 1 + (count - 1) // FILES_PER_WORKER
        feed = _Feed(count, read, take)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(time_s), self._workers.lease(wanted) as workers:
                running = [
                    loop.run_in_executor(self._workers.threads, feed.work, job, worker)
                    for worker in workers
                ]
                try:
                    await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
                finally:
                    if not all(one.done() for one in running):
                        feed.stopped = True
                        for worker in workers:
                            worker.kill()
                        await all_done(running)
                for one in running:
                    one.result()
        except TimeoutError:
            return False
        return True


class _Feed:
    """Hands out batches to threads, in order, and takes what comes back."""

    def __init__(self, count: int, read: Read, take: Take) -> None:
        self._indexes: Iterator[int] = iter(range(count))
        self._read = read
        self._take = take
        self._handing_out = threading.Lock()
        self._taking = threading.Lock()
        self.stopped = False

    def work(self, job: AstJob, worker: ProcessWorker) -> None:
        """Let one worker do batches until there are none. Runs in a thread."""
        try:
            worker.ask(_preparing(job))
            while not self.stopped:
                batch = self._next_batch()
                if not batch:
                    return
                self._do(job, worker, batch)
        except WorkerGone:
            if not self.stopped:
                raise ToolError("the parser ended unexpectedly", code="internal_error") from None

    def _next_batch(self) -> list[tuple[int, bytes]]:
        batch: list[tuple[int, bytes]] = []
        size = 0
        # Reading under the lock keeps the batches in order; workers parse meanwhile.
        with self._handing_out:
            if self.stopped:
                return batch
            for index in self._indexes:
                data = self._read(index)
                if data is None:
                    continue
                batch.append((index, data))
                size += len(data)
                if size >= BATCH_BYTES or len(batch) >= BATCH_FILES:
                    break
        return batch

    def _do(self, job: AstJob, worker: ProcessWorker, batch: list[tuple[int, bytes]]) -> None:
        sizes: JsonObject = {"sizes": [len(data) for _, data in batch]}
        body = b"".join(data for _, data in batch)
        if job.templates is None:
            head: JsonObject = {"op": "search", "context": job.context, **sizes}
            answer = worker.ask(head, body, found_in_files)
        else:
            head = {"op": "rewrite", "templates": list(job.templates), **sizes}
            answer = worker.ask(head, body)
        results = cast("list[JsonObject]", answer)
        with self._taking:
            for (index, _), result in zip(batch, results, strict=True):
                if not self._take(index, result):
                    self.stopped = True


def _preparing(job: AstJob) -> JsonObject:
    return {
        "op": "prepare",
        "lang": job.lang,
        "patterns": list(job.patterns),
        "strictness": job.strictness,
    }


def _facts(job: AstJob, answer: JsonValue) -> list[PatternFacts]:
    facts: list[PatternFacts] = []
    for pattern, said in zip(job.patterns, cast("list[JsonObject]", answer), strict=True):
        if "error" in said:
            raise InvalidAstPattern.of(pattern, str(said["error"]))
        facts.append(
            PatternFacts(
                single=tuple(cast("list[str]", said["single"])),
                multi=tuple(cast("list[str]", said["multi"])),
                literal=cast("str | None", said["literal"]),
            )
        )
    return facts
