"""`AcpAgent`: what an editor may ask of kaged, in the words of the Agent Client Protocol."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from acp import PROTOCOL_VERSION, RequestError, update_agent_message_text
from acp.helpers import update_available_commands
from acp.interfaces import Client
from acp.schema import (
    AgentCapabilities,
    AvailableCommand,
    AvailableCommandInput,
    ClientCapabilities,
    ForkSessionResponse,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionConfigOptionSelect,
    SessionConfigSelectOption,
    SessionForkCapabilities,
    SessionInfo,
    SessionListCapabilities,
    SessionMode,
    SessionModeState,
    SessionResumeCapabilities,
    SetSessionConfigOptionResponse,
    SetSessionModeResponse,
    UnstructuredCommandInput,
)

from kaged import __version__
from kaged.cli.acp.asking import Asker
from kaged.cli.acp.blocks import prompt_text
from kaged.cli.acp.conversation import Conversation
from kaged.cli.acp.feed import EventFeed
from kaged.cli.acp.link import DaemonLink, bad_request, refusal
from kaged.cli.acp.replay import replayed
from kaged.cli.acp.slash import BUILT_IN, run_slash_command

ROOT: Final = "primary"
MODEL: Final = "model"
OWN_MODEL: Final = "agent"
"""The value that stands for the model of the agent's own settings."""

MAX_CONVERSATIONS: Final = 100
PAGE: Final = 50
ENTRIES: Final = 1000
PROJECT_FILE: Final = ".kaged/project.yaml"


class AcpAgent:
    """Serves one editor. `project` and `agent` are what the command was told, if anything."""

    def __init__(
        self, link: DaemonLink, feed: EventFeed, *, project: dict[str, Any] | None, agent: str
    ) -> None:
        self._link = link
        self._feed = feed
        self._project = project
        self._agent = agent
        self._open: dict[str, Conversation] = {}
        self._editor: Client | None = None
        self._asker: Asker | None = None

    def on_connect(self, conn: Client) -> None:
        """Take the editor's side of the connection."""
        self._editor = conn

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: ClientCapabilities | None = None,
        client_info: Implementation | None = None,
        **_: Any,
    ) -> InitializeResponse:
        """Agree on a version, and say what there is."""
        del protocol_version, client_info  # there is one version
        assert self._editor is not None, "the SDK connects before it hands on requests"
        self._asker = Asker(self._editor, client_capabilities)
        await self._feed.ready()
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_info=Implementation(name="kaged", title="kaged", version=__version__),
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=PromptCapabilities(embedded_context=True),
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(),
                    fork=SessionForkCapabilities(),
                    resume=SessionResumeCapabilities(),
                    close=SessionCloseCapabilities(),
                ),
            ),
            auth_methods=[],
        )

    async def authenticate(self, method_id: str, **_: Any) -> None:
        """Refuse: whoever reaches the daemon's socket is its operator, and nothing else helps."""
        raise bad_request(f"There is no method {method_id!r}.")

    # -- sessions ------------------------------------------------------------------------------

    async def new_session(self, cwd: str, **_: Any) -> NewSessionResponse:
        """Begin a session in the project that the folder belongs to."""
        project = await self._project_of(cwd)
        made = await self._link.post(
            f"/projects/{project['id']}/sessions", {"title": None, "current": False}
        )
        opened = await self._opened(project, str(made["id"]))
        await self._greet(opened)
        return NewSessionResponse(session_id=opened.session_id, **await self._settings(opened))

    async def load_session(self, cwd: str, session_id: str, **_: Any) -> LoadSessionResponse:
        """Open a session that was had before, and tell all of it."""
        opened = await self._known(cwd, session_id)
        path = f"{opened.base}/sessions/{opened.session_id}/entries"
        after: str | None = None
        while True:
            page = await self._link.get(path, {"after": after, "limit": ENTRIES})
            for update in replayed(page["items"], opened.root, opened.agent):
                await opened.tell(update)
            after = page["next_after"]
            if after is None:
                break
        await self._greet(opened)
        return LoadSessionResponse(**await self._settings(opened))

    async def resume_session(self, cwd: str, session_id: str, **_: Any) -> ResumeSessionResponse:
        """Open a session that was had before, without telling it."""
        opened = await self._known(cwd, session_id)
        await self._greet(opened)
        return ResumeSessionResponse(**await self._settings(opened))

    async def fork_session(self, cwd: str, session_id: str, **_: Any) -> ForkSessionResponse:
        """Branch off at a session's end."""
        source = await self._known(cwd, session_id, keep=False)
        moved = await self._link.post(
            f"{source.base}/sessions/{source.session_id}/fork", {"at": None, "switch": False}
        )
        opened = await self._opened(source.project, str(moved["session"]["id"]))
        opened.agent, opened.model = source.agent, source.model
        await self._greet(opened)
        return ForkSessionResponse(session_id=opened.session_id, **await self._settings(opened))

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> ListSessionsResponse:
        """Return the sessions of a project, last used first; without a folder those of all."""
        if cwd is not None or self._project is not None:
            projects = [await self._project_of(cwd or "")]
        else:
            projects = await self._link.pages("/projects")
            cursor = None  # one page, for there is no order over several projects
        found: list[SessionInfo] = []
        further: str | None = None
        for project in projects:
            page = await self._link.get(
                f"/projects/{project['id']}/sessions",
                {"limit": PAGE, "cursor": cursor, "kind": "primary"},
            )
            further = page["next_cursor"] if len(projects) == 1 else None
            found += [
                SessionInfo(
                    session_id=one["id"],
                    cwd=project["root"],
                    title=one["title"],
                    updated_at=one["updated_at"],
                )
                for one in page["items"]
            ]
        return ListSessionsResponse(sessions=found, next_cursor=further)

    async def close_session(self, session_id: str, **_: Any) -> None:
        """Let go of a session: its run is ended, what was said stays."""
        opened = self._open.pop(session_id, None)
        if opened is not None:
            await opened.cancel()

    # -- settings ------------------------------------------------------------------------------

    async def set_session_mode(
        self, session_id: str, mode_id: str, **_: Any
    ) -> SetSessionModeResponse:
        """Talk to another agent of the project from now on."""
        opened = self._of(session_id)
        known = [one.id for one in await self._modes(opened)]
        if mode_id not in known:
            raise _no_such("agent", mode_id, known)
        opened.agent = mode_id
        return SetSessionModeResponse()

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **_: Any
    ) -> SetSessionConfigOptionResponse:
        """Use another model from now on."""
        opened = self._of(session_id)
        if config_id != MODEL:
            raise _no_such("option", config_id, [MODEL])
        known = [OWN_MODEL, *(one["alias"] for one in await self._models())]
        if value not in known:
            raise _no_such("model", str(value), known)
        opened.model = None if value == OWN_MODEL else str(value)
        return SetSessionConfigOptionResponse(config_options=[await self._model_option(opened)])

    # -- prompts -------------------------------------------------------------------------------

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> PromptResponse:
        """Send a message, or run a command, and report what becomes of it until it is done."""
        opened = self._of(session_id)
        text = prompt_text(prompt, opened.root)
        if text.startswith("/"):
            said = await run_slash_command(self._link, opened, text)
            if said is not None:
                await opened.tell(update_agent_message_text(said))
                return PromptResponse(stop_reason="end_turn")
        return await opened.say(text)

    async def cancel(self, session_id: str, **_: Any) -> None:
        """End what goes on in a session."""
        opened = self._open.get(session_id)
        if opened is not None:
            await opened.cancel()

    # -- what the protocol leaves open ---------------------------------------------------------

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Refuse methods that are not the protocol's."""
        del params
        raise RequestError.method_not_found(f"_{method}")

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """Pass over notifications that are not the protocol's."""

    # -- own -------------------------------------------------------------------------------------

    async def _project_of(self, cwd: str) -> dict[str, Any]:
        """Return the project that a folder belongs to; load it if its file is there.

        Raises:
            RequestError: the folder belongs to no project, or to another than the command's.
        """
        if self._project is not None:
            return self._project
        if not Path(cwd).is_absolute():
            raise bad_request("cwd is an absolute path.")
        folder = await asyncio.to_thread(Path(cwd).resolve)
        loaded = {one["root"]: one for one in await self._link.pages("/projects")}
        for place in (folder, *folder.parents):
            if str(place) in loaded:
                found: dict[str, Any] = loaded[str(place)]
                return found
            if await asyncio.to_thread((place / PROJECT_FILE).is_file):
                # Loaded as `kaged project load` does: held to reading until somebody agrees.
                made: dict[str, Any] = await self._link.post("/projects", {"root": str(place)})
                return made
        raise refusal(
            "project_not_found",
            f"{folder} belongs to no project.",
            "Run `kaged project init` in it, or in a folder above.",
        )

    async def _opened(self, project: dict[str, Any], session_id: str) -> Conversation:
        if len(self._open) >= MAX_CONVERSATIONS:
            raise refusal(
                "too_many_sessions",
                f"{MAX_CONVERSATIONS} sessions are open.",
                "Close one of them.",
            )
        assert self._editor is not None, "the SDK connects before it hands on requests"
        if self._asker is None:
            raise bad_request("initialize comes first.")
        opened = Conversation(
            self._link,
            self._feed,
            self._editor,
            self._asker,
            project=project,
            session_id=session_id,
            agent=self._agent,
        )
        self._open[session_id] = opened
        return opened

    async def _known(self, cwd: str, session_id: str, *, keep: bool = True) -> Conversation:
        """Open a session of the daemon's. Raises RequestError where there is none of that id."""
        if session_id in self._open:
            return self._open[session_id]
        project = await self._project_of(cwd)
        found = await self._link.get(f"/projects/{project['id']}/sessions/{session_id}")
        opened = await self._opened(project, str(found["id"]))
        if not keep:
            del self._open[opened.session_id]
        return opened

    def _of(self, session_id: str) -> Conversation:
        opened = self._open.get(session_id)
        if opened is None:
            raise refusal(
                "session_not_found",
                f"The session {session_id} is not open here.",
                "Begin one with session/new, or open it with session/load.",
            )
        return opened

    async def _greet(self, opened: Conversation) -> None:
        """Send an editor a session's commands, and whether its project is restricted."""
        scripts = await self._link.get(f"{opened.base}/lua")
        commands = [
            AvailableCommand(
                name=name,
                description=text,
                input=_hint(hint) if hint else None,
            )
            for name, (text, hint) in BUILT_IN.items()
        ]
        commands += [
            AvailableCommand(
                name=str(one["name"]),
                description=str(one.get("description") or f"A command of {one.get('script')}."),
                input=_hint("arguments"),
            )
            for one in scripts["commands"]
            if str(one["name"]) not in BUILT_IN
        ]
        await opened.tell(update_available_commands(commands))
        if opened.project["state"] != "failed" and not opened.project["trusted"]:
            slug = opened.project["slug"]
            told = f"{slug} is restricted to reading. To agree to what it asks for, run"
            await opened.tell(
                update_agent_message_text(f"{told} `kaged project trust {slug}`.\n\n")
            )

    async def _settings(self, opened: Conversation) -> dict[str, Any]:
        modes = await self._modes(opened)
        return {
            "modes": SessionModeState(current_mode_id=opened.agent, available_modes=modes),
            "config_options": [await self._model_option(opened)],
        }

    async def _modes(self, opened: Conversation) -> list[SessionMode]:
        """Return the project's agents: each is a way to work."""
        tree = (await self._link.get(opened.base))["tree"]
        if tree is None:  # the project's files have errors, and no agent is in force
            return [SessionMode(id=opened.agent, name=opened.agent.rpartition(".")[2])]
        return [
            SessionMode(
                id=one["path"],
                name=one["path"].rpartition(".")[2],
                description=one.get("description") or None,
            )
            for one in tree["agents"]
        ]

    async def _models(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._link.get("/models"))["models"]
        return [one for one in found if one["usable"]]

    async def _model_option(self, opened: Conversation) -> SessionConfigOptionSelect:
        choices = [SessionConfigSelectOption(value=OWN_MODEL, name="The agent's own")]
        choices += [
            SessionConfigSelectOption(
                value=one["alias"], name=one["alias"], description=one["model"]
            )
            for one in await self._models()
        ]
        return SessionConfigOptionSelect(
            id=MODEL,
            name="Model",
            category="model",
            type="select",
            current_value=opened.model or OWN_MODEL,
            options=choices,
        )


def _hint(text: str) -> AvailableCommandInput:
    return AvailableCommandInput(UnstructuredCommandInput(hint=text))


def _no_such(kind: str, name: str, known: list[str]) -> RequestError:
    return refusal(
        "invalid_params", f"There is no {kind} {name!r}.", f"Use one of: {', '.join(known)}."
    )
