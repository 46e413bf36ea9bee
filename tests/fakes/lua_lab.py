"""`LuaLab`: scripts in real caged workers on a real session service, in a real workdir."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fakes.session_lab import PROJECT, SessionLab, message, session_lab
from fakes.stocked_cache import stocked
from kaged.audit import AuditEvent
from kaged.base import Ids, JsonObject, ManualClock, SystemClock
from kaged.cage import CageSettings, Spawner
from kaged.cage.net import SystemResolver
from kaged.inbox import Inbox
from kaged.kernel.lua_powers import parse_powers
from kaged.kernel.net import ANYWHERE, NetTarget
from kaged.lua.calls import CallParts, HostCalls
from kaged.lua.dialogs import DialogAnswers, Dialogs
from kaged.lua.folder import read_folders
from kaged.lua.keeping import ScriptStore
from kaged.lua.limits import ScriptLimits
from kaged.lua.moves import ScriptSessions
from kaged.lua.programs import ScriptPrograms
from kaged.lua.runtime import CommandOutput, ScriptRuntime
from kaged.lua.script import Script, ScriptParts
from kaged.lua.session_events import SessionEventForwarder
from kaged.lua.web import ScriptWeb
from kaged.sessions.entry import EntryDraft, EntryKind, EntryRole
from kaged.sessions.lifecycle import SessionEvent
from kaged.sessions.transforms import Transforms
from kaged.workspace import Workspace

PATIENCE_S = 40.0
QUICK = ScriptLimits(instructions=20_000_000, compute_s=8.0)


class LuaLab:
    """One project with scripts. Grants are what a test puts into `grants`."""

    def __init__(self, root: Path, host_sessions: SessionLab) -> None:
        self.root = root
        self.host_sessions = host_sessions
        self.work = root / "work"
        self.scripts_dir = root / "scripts"
        self.grants: dict[str, list[str]] = {}
        self.config: dict[str, JsonObject] = {}
        self.environ: dict[str, str] = {"HOME": str(root / "nobody"), "PATH": os.environ["PATH"]}
        self.net: tuple[NetTarget, ...] = (ANYWHERE,)
        self.events: list[AuditEvent] = []
        self.published: list[tuple[str, JsonObject]] = []
        self.cage_events: list[tuple[str, JsonObject]] = []
        self.limits = QUICK
        self.strict_context = False
        self.naps: list[float] = []
        self.wake = asyncio.Event()
        self.transforms = Transforms()
        self.python: str | None = None
        self.inbox: Inbox
        self.inbox_events: list[AuditEvent] = []
        self.runtime: ScriptRuntime
        self.spawner: Spawner
        self.workspace: Workspace
        self.sessions: ScriptSessions
        self.resolver = SystemResolver()
        self._forwarder: SessionEventForwarder

    async def open(self) -> None:
        """Make the workdir and everything around it; no script is loaded yet."""
        self.root.chmod(0o755)
        self.work.mkdir(exist_ok=True)
        self.scripts_dir.mkdir(exist_ok=True)
        self.spawner = Spawner(
            CageSettings(cache_dir=stocked(self.root / "cage-cache")),
            on_event=lambda name, data: self.cage_events.append((name, data)),
        )
        self.workspace = Workspace(self.work)
        self.build()
        self._forwarder = SessionEventForwarder(
            lambda project: self.runtime if project == PROJECT else None,
            self.host_sessions.lifecycle,
            self.host_sessions.navigation,
            self.host_sessions.transcript,
            self.transforms,
            self.events.append,
        )

    def build(self) -> None:
        """Make the runtime; again when a test has changed what it is made of."""
        host_sessions = self.host_sessions
        self.sessions = ScriptSessions(
            PROJECT,
            service=host_sessions.service,
            transcript=host_sessions.transcript,
            navigation=host_sessions.navigation,
            driver=lambda: None,
            audit=self.events.append,
        )
        stores: dict[str, ScriptStore] = {}

        def publish(name: str, data: JsonObject) -> None:
            self.published.append((name, data))

        async def describe() -> JsonObject:
            return {"cwd": str(self.work), "model": "scripted", "system_prompt": "You help."}

        self.inbox = Inbox(
            host_sessions.store.inbox,
            record=self._recorded,
            post=self.inbox_events.append,
            announce=lambda _name, _data: None,
            clock=SystemClock(),
        )
        dialogs = Dialogs(
            PROJECT, DialogAnswers(self.inbox), Ids(SystemClock()), SystemClock(), publish
        )
        calls = HostCalls(
            CallParts(
                project_id=PROJECT,
                workspace=self.workspace,
                sessions=self.sessions,
                programs=ScriptPrograms(self.spawner, self.workspace, self.environ, PROJECT),
                web=ScriptWeb(self.net, self.resolver),
                dialogs=dialogs,
                clock=SystemClock(),
                environ=self.environ,
                audit=self.events.append,
                notice=self._noticed,
                store_of=lambda stem: stores.setdefault(
                    stem, ScriptStore(self.root / "kept", PROJECT, stem)
                ),
                describe=describe,
            )
        )
        self.runtime = ScriptRuntime(
            calls, self.sessions, dialogs, publish=publish, offer=lambda _tools: ()
        )

    async def _recorded(self, event: AuditEvent) -> None:
        self.inbox_events.append(event)

    def _noticed(self, script: str, level: str, message: str) -> None:
        self.runtime.notice(script, level, message)

    async def close(self) -> None:
        self._forwarder.close()
        await self.runtime.close()
        await self.spawner.close()
        self.resolver.close()

    # -- scripts -------------------------------------------------------------------------------

    async def load(self, **sources: str) -> None:
        """Write these scripts and load the folder; all that was loaded before is ended."""
        for stem, source in sources.items():
            (self.scripts_dir / f"{stem}.lua").write_text(source, encoding="utf-8")
        async with asyncio.timeout(PATIENCE_S):
            await self.runtime.load(
                read_folders([self.scripts_dir]),
                self.parts(),
                lambda stem: parse_powers(self.grants.get(stem, [])),
                lambda stem: self.config.get(stem, {}),
            )

    def parts(self) -> ScriptParts:
        return ScriptParts(
            spawner=self.spawner,
            clock=SystemClock(),
            limits=self.limits,
            host=self.runtime,
            host_version="0.1.0",
            strict_context=self.strict_context,
            sleep=self._nap,
            python=self.python,
        )

    async def _nap(self, seconds: float) -> None:
        self.naps.append(seconds)
        await self.wake.wait()

    def script(self, stem: str) -> Script:
        return next(one for one in self.runtime.scripts if one.stem == stem)

    async def run(self, name: str, raw: str = "", *, interactive: bool = False) -> CommandOutput:
        """Run a command."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.runtime.command(name, raw, interactive=interactive)

    async def eval(self, code: str, stem: str = "probe") -> Any:
        """Load a script that runs this code as a command; returns what it returned, as a value."""
        name = "eval" if stem == "probe" else f"eval-{stem}"
        body = (
            f"kage.register_command{{name='{name}', description='', handler=function()\n"
            f"local value = (function() {code}\nend)()\n"
            "return { text = 'ok', structured = { value = value } }\nend}"
        )
        await self.load(**{stem: body})
        assert self.script(stem).state == "running", self.script(stem).error
        found = await self.run(name)
        assert not found.is_error, found.text
        assert isinstance(found.structured, dict)
        return found.structured.get("value")

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something has become true."""
        for _ in range(2000):
            if true():
                return
            await asyncio.sleep(0.02)
        raise TimeoutError

    async def running(self, stem: str) -> None:
        """Wait until a script runs."""
        await self.until(lambda: self.script(stem).state == "running")

    # -- sessions ------------------------------------------------------------------------------

    async def begin(self, *said: str) -> str:
        """Begin a session and make it the current one."""
        session = await self.host_sessions.session(*said)
        await self.host_sessions.navigation.enter(PROJECT, session)
        current = await self.host_sessions.service.current(PROJECT)
        if current != session:
            self.host_sessions.navigation.request_switch(str(current), session)
            await self.host_sessions.navigation.apply(str(current))
        return session

    async def current(self) -> str:
        return str(await self.host_sessions.service.current(PROJECT))

    async def exchange(self, user: str, answer: str, files: Mapping[str, str] | None = None) -> str:
        """Let a run happen in the current session: words, files, the events of a real run."""
        session = await self.current()
        append = self.host_sessions.transcript.append
        await append(session, [message(user)])
        self.emit("run.started", session)
        await self.runtime.drain()
        for name, text in (files or {}).items():
            path = self.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        made = await append(session, [message(answer, EntryRole.ASSISTANT)])
        self.emit("turn.ended", session, index=1, had_tool_calls=False)
        await self.runtime.drain()
        self.emit("run.ended", session, status="completed")
        await self.runtime.drain()
        return made[-1].id

    def emit(self, name: str, session: str, **data: Any) -> None:
        self.host_sessions.lifecycle.emit(SessionEvent(name, session, PROJECT, "run_1", data))

    async def custom(self, session: str) -> None:
        draft = EntryDraft(EntryKind.CUSTOM, {"kind": "note", "data": {}})
        await self.host_sessions.transcript.append(session, [draft])

    # -- looking -------------------------------------------------------------------------------

    def notices(self) -> list[str]:
        return [str(data["message"]) for name, data in self.published if name == "lua.notice"]

    def audited(self, *names: str) -> list[dict[str, Any]]:
        return [dict(one.data) for one in self.events if one.name in names]

    def git(self, *words: str, cwd: Path | None = None) -> str:
        """Run the operator's own git, outside every cage."""
        done = subprocess.run(
            [shutil.which("git") or "git", *words],
            cwd=cwd or self.work,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.root / "nobody"),
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_AUTHOR_NAME": "t",
                "GIT_AUTHOR_EMAIL": "t@t",
                "GIT_COMMITTER_NAME": "t",
                "GIT_COMMITTER_EMAIL": "t@t",
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
            },
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=True,
        )
        return done.stdout.strip()

    def repository(self, **files: str) -> None:
        """Make the workdir a repository with a first commit."""
        self.git("init", "-q", "-b", "main")
        for name, text in (files or {"a.txt": "one\n"}).items():
            (self.work / name.replace("__", ".")).write_text(text, encoding="utf-8")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "first")


@asynccontextmanager
async def lua_lab(root: Path, clock: ManualClock, ids: Ids) -> AsyncGenerator[LuaLab]:
    """Open a lab below `root`."""
    home = root / "book"
    home.mkdir()
    async with session_lab(home, clock, ids) as host_sessions:
        lab = LuaLab(root, host_sessions)
        await lab.open()
        try:
            yield lab
        finally:
            await lab.close()


__all__ = ["LuaLab", "lua_lab"]
