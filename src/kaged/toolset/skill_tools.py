"""`skill.load` and `skill.run`: an agent reads a skill, and runs its scripts.

A script runs in the agent's cage like any command of the agent, from a copy of the files that the
operator agreed to. Its context token names the skill and what that declared; it is that command's
alone. No variables of the model's choice reach it, because they could change what an interpreter
loads.
"""

from __future__ import annotations

import asyncio
import contextlib
import stat
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.cage import CageProcess, HostMount
from kaged.config.skill_file import SKILL_FILE
from kaged.kernel.policy import CagePolicy, FsMode
from kaged.kernel.requirements import CapabilityRequirement, FsRequirement
from kaged.skills.library import Skill
from kaged.skills.skill_service import OWNER, SkillService
from kaged.toolbox.shell import (
    Attach,
    Attachment,
    CommandRunner,
    RunningSkill,
    ShellCommand,
)
from kaged.toolbox.shell.interpreters import RETURNS, TIMEOUT_MS
from kaged.toolbox.shell.launch import CageLauncher
from kaged.tools import InvalidToolParams, Tool, ToolDefinition, ToolInvocation, one_path
from kaged.tools.definition import ToolSource
from kaged.tools.errors import ToolError
from kaged.tools.fields import closed, integer, text

if TYPE_CHECKING:
    from kaged.kernel.identity import Actor
    from kaged.store.session_skill_rows import SessionSkillRows
    from kaged.tools import ToolCallContext

INSIDE: Final = "/opt/kaged/skills"
"""Where cages see the folders of skills, each under its name."""

FILE_LIMIT_BYTES: Final = 256 * 1024
ARGUMENTS_LIMIT: Final = 64
ARGUMENT_LIMIT_CHARS: Final = 16 * 1024
LOADED_LIMIT: Final = 32
SESSIONS_LIMIT: Final = 1000
_LISTED: Final = 20
_PROGRAMS: Final = {
    ".py": "python3",
    ".sh": "bash",
    ".bash": "bash",
    ".js": "node",
    ".mjs": "node",
    ".cjs": "node",
    ".rb": "ruby",
    ".pl": "perl",
}
# A script must not load what the project left where interpreters look for more.
_QUIET: Final = {"PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}

_NAME: Final = text("The skill's name.", minLength=1, maxLength=64)
LOAD: Final = ToolDefinition(
    name="skill.load",
    namespace=OWNER,
    source=ToolSource.PLUGIN,
    plugin_name=OWNER,
    description=(
        "Read a skill before you do a task that it is for: its instructions, where its folder is, "
        "and the files that come with it. With `file` you get the text of one of these instead."
    ),
    parameters=closed(
        {"name": _NAME, "file": text("One of the skill's files.", minLength=1, maxLength=1024)},
        ["name"],
    ),
    returns=closed(
        {
            "name": {"type": "string"},
            "description": {"type": "string"},
            "instructions": {"type": "string"},
            "folder": {"type": "string"},
            "capabilities": {"type": "array"},
            "files": {"type": "array"},
            "file": {"type": "string"},
            "content": {"type": "string"},
        },
        ["name"],
    ),
    requires=(),
)
RUN: Final = ToolDefinition(
    name="skill.run",
    namespace=OWNER,
    source=ToolSource.PLUGIN,
    plugin_name=OWNER,
    description=(
        "Run a script that comes with a skill and get its output and exit code. It runs in the "
        "project like a command of yours, and only scripts that are run so may use the accounts "
        "that the skill asks for. stdout holds both streams; a non-zero exit code is a result, "
        "not an error."
    ),
    parameters=closed(
        {
            "name": _NAME,
            "script": text("One of the skill's files, such as scripts/fetch.py.", minLength=1),
            "args": {
                "type": "array",
                "items": {"type": "string", "maxLength": ARGUMENT_LIMIT_CHARS},
                "maxItems": ARGUMENTS_LIMIT,
                "default": [],
                "description": "Its arguments; no shell reads them.",
            },
            "cwd": text("Where it runs, relative to the project root.", default="./"),
            "timeout": integer("Milliseconds until it is ended.", default=TIMEOUT_MS),
        },
        ["name", "script"],
    ),
    returns=RETURNS,
    requires=(FsRequirement(FsMode.RW), CapabilityRequirement("shell")),
)


def skill_tools(
    skills: SkillService, runner: CommandRunner, loaded: LoadedSkills
) -> tuple[Tool, ...]:
    """Return the two tools; `loaded` is told what each session has loaded."""
    work = _SkillTools(skills, runner, loaded)
    return (
        Tool(LOAD, work.load),
        Tool(RUN, work.run, paths=one_path("cwd"), changes=True, check=_check),
    )


class LoadedSkills:
    """Which skills each session has loaded: their folders are what its commands see.

    What a session has loaded is kept in the store. When it goes on after a start, or as a fork, a
    skill is there again if it may still be used by whoever acts and its files are the same; one
    that changed is loaded again.
    """

    def __init__(self, skills: SkillService, rows: SessionSkillRows) -> None:
        self._skills = skills
        self._rows = rows
        self._folders: OrderedDict[str, dict[str, str]] = OrderedDict()
        self._lock = asyncio.Lock()

    async def note(self, call: ToolCallContext, skill: Skill, folder: Path) -> None:
        """Take note that a session has loaded a skill."""
        async with self._lock:
            folders = await self._known(call.session_id, call.project_id, call.identity)
            await self._rows.note(call.session_id, skill.name, skill.digest)
            folders.pop(skill.name, None)
            folders[skill.name] = str(folder)
            if len(folders) > LOADED_LIMIT:
                del folders[next(iter(folders))]

    def recalled(self, launch: CageLauncher) -> CageLauncher:
        """Return what starts a command once it is known what its session has loaded."""

        async def after(policy: CagePolicy, command: ShellCommand) -> CageProcess:
            async with self._lock:
                await self._known(command.session_id, command.project_id, command.identity)
            return await launch(policy, command)

        return after

    async def _known(self, session_id: str, project_id: str, actor: Actor | None) -> dict[str, str]:
        """Return the folders of a session, read from the store at its first command or load."""
        folders = self._folders.get(session_id)
        if folders is not None:
            self._folders.move_to_end(session_id)
            return folders
        folders = {}
        for name, digest in [*(await self._rows.of(session_id)).items()][-LOADED_LIMIT:]:
            with contextlib.suppress(KagedError, OSError):
                skill = await self._skills.require(project_id, name, actor)
                if skill.digest == digest:
                    folders[name] = str(await self._skills.files_of(skill))
        self._folders[session_id] = folders
        if len(self._folders) > SESSIONS_LIMIT:
            self._folders.popitem(last=False)
        return folders

    def attached(self, attach: Attach) -> Attach:
        """Return what gives a caged command the folders beside what `attach` gives it."""

        def both(policy: CagePolicy, command: ShellCommand) -> Attachment:
            added = attach(policy, command)
            mounts = self._mounts(command)
            return replace(added, mounts=(*added.mounts, *mounts)) if mounts else added

        return both

    def _mounts(self, command: ShellCommand) -> tuple[HostMount, ...]:
        folders = dict(self._folders.get(command.session_id, {}))
        if command.skill is not None:
            folders[command.skill.name] = command.skill.folder
        return tuple(
            HostMount(folder, f"{INSIDE}/{name}")
            for name, folder in folders.items()
            if Path(folder).is_dir()  # the cache keeps the latest only
        )


@dataclass(frozen=True, slots=True)
class _SkillTools:
    _skills: SkillService
    _runner: CommandRunner
    _loaded: LoadedSkills

    async def load(self, call: ToolInvocation) -> JsonValue:
        """Return a skill's instructions, or one of its files."""
        name, file = str(call.args["name"]), call.args.get("file")
        skill, folder = await self._files(call, name)
        await self._loaded.note(call.context, skill, folder)
        if file is not None:
            path = _bundled(skill, str(file), "file")
            content = await asyncio.to_thread(_read_text, folder / path, path)
            call.emit("skill.loaded", **_said(skill), file=path)
            return {"name": name, "file": path, "content": content}
        call.emit("skill.loaded", **_said(skill))
        listed: list[JsonValue] = [
            {"path": one.path, "size": one.size, "executable": one.executable}
            for one in skill.files
            if one.path != SKILL_FILE
        ]
        return {
            "name": name,
            "description": skill.file.description,
            "instructions": skill.file.instructions,
            "folder": _shown_folder(call, name, folder),
            "capabilities": list(skill.capabilities),
            "files": listed,
        }

    async def run(self, call: ToolInvocation) -> JsonValue:
        """Run one of a skill's scripts to its end."""
        args, context = call.args, call.context
        name = str(args["name"])
        skill, folder = await self._files(call, name)
        script = _bundled(skill, str(args["script"]), "script")
        shown = f"{_shown_folder(call, name, folder)}/{script}"
        program = await asyncio.to_thread(_program, folder / script, shown)
        given = cast("list[str]", args["args"])
        command = ShellCommand(
            request_id=context.request_id,
            caller=context.caller,
            text=script,
            cwd=call.paths[0].resolved,
            env={**self._skills.env_of(skill), **_QUIET},
            session_id=context.session_id,
            timeout_s=self._runner.timeout_ms(cast("int", args["timeout"])) / 1000,
            identity=context.identity,
            program=("/bin/sh", "-c", 'exec "$@"', "sh", *program, *given),
            tool_name=RUN.name,
            project_id=context.project_id,
            skill=RunningSkill(name, skill.capabilities, str(folder)),
        )
        said: JsonObject = {**_said(skill), "script": script, "args": len(given)}
        return await self._runner.run(call, command, "skill.ran", said)

    async def _files(self, call: ToolInvocation, name: str) -> tuple[Skill, Path]:
        context = call.context
        skill = await self._skills.require(context.project_id, name, context.identity)
        try:
            return skill, await self._skills.files_of(skill)
        except OSError as error:
            raise ToolError(
                f"the files of the skill {name} cannot be prepared: {error.strerror}",
                fix="ask the operator to look at the daemon's cache folder",
            ) from error


def _said(skill: Skill) -> JsonObject:
    return {"skill": skill.name, "source": skill.source.value, "digest": skill.digest}


def _shown_folder(call: ToolInvocation, name: str, folder: Path) -> str:
    return str(folder) if call.context.cage_policy is None else f"{INSIDE}/{name}"


def _bundled(skill: Skill, wanted: str, field: str) -> str:
    """Return one of a skill's files as it is listed; nothing else can be named."""
    path = wanted.removeprefix("./").removeprefix(f"{INSIDE}/{skill.name}/")
    if all(one.path != path for one in skill.files):
        listed = ", ".join(one.path for one in skill.files[:_LISTED])
        raise InvalidToolParams.of_field(
            field, "is none of the skill's files", fix=f"the first of these are: {listed}"
        )
    return path


def _read_text(file: Path, path: str) -> str:
    data = file.read_bytes()
    if len(data) > FILE_LIMIT_BYTES:
        raise InvalidToolParams.of_field(
            "file",
            f"{path} has {len(data)} bytes, and {FILE_LIMIT_BYTES} are shown",
            fix="read parts of it with a command, in the skill's folder",
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidToolParams.of_field(
            "file", f"{path} is no text", fix="use it with a command, in the skill's folder"
        ) from None


def _program(file: Path, shown: str) -> tuple[str, ...]:
    """Return how a script is started: by its own first line, or by what its name says."""
    with file.open("rb") as opened:
        own = opened.read(2) == b"#!"
    if own and file.stat().st_mode & stat.S_IXUSR:
        return (shown,)
    by_name = _PROGRAMS.get(file.suffix.lower())
    if by_name is None:
        raise InvalidToolParams.of_field(
            "script",
            "is no script that can be started",
            fix="it needs `#!` in its first line and the right to be executed, or a name that "
            f"ends with one of {', '.join(sorted(_PROGRAMS))}",
        )
    return (by_name, shown)


def _check(args: JsonObject) -> None:
    for one in cast("list[str]", args["args"]):
        if "\0" in one:
            raise InvalidToolParams.of_field("args", "one of them holds a NUL character")
