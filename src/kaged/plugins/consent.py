"""`ConsentService`: a project asks for missing plugins; the operator answers, in two steps.

git source: yes to fetching (name, constraint, address) → quarantine → yes to installing (version,
capabilities). `./path`: only the second. No source: the operator names a directory. A plugin that
another project brought: yes to using it here. A no leaves the project pending (PH-AMB-44).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from kaged.audit import AuditEvent, AuditLog
from kaged.base import Ids, JsonObject, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.pluginwords import PluginSource, SourceKind, parse_source
from kaged.config.semver import VersionRange, parse_range, parse_version
from kaged.inbox import (
    AnsweredBy,
    CheckedAnswer,
    Inbox,
    InboxRequest,
    RequestClosed,
    RequestFilter,
    RequestKind,
    RequestNotFound,
    RequestState,
)
from kaged.kernel.identity import Actor
from kaged.plugins.consent_request import (
    ConsentAnswer,
    ConsentRequest,
    ConsentStep,
    consent_draft,
    parse_consent,
)
from kaged.plugins.declarations import Declaration
from kaged.plugins.errors import consent_missing
from kaged.plugins.installer import PluginInstaller
from kaged.plugins.prompt import SOURCE_NOT_SPECIFIED, InstallPrompt
from kaged.plugins.sources import SourceFetcher, relative_source

MAX_REQUESTS: Final = 500
KINDS: Final = (RequestKind.PLUGIN_CONSENT, RequestKind.PROJECT_CONSENT)


@dataclass(eq=False)
class ConsentService:
    """Asks through the inbox. Nothing is fetched or installed but by an answer."""

    installer: PluginInstaller
    fetcher: SourceFetcher
    inbox: Inbox
    audit: AuditLog
    ids: Ids

    def __post_init__(self) -> None:
        self._on_done: Callable[[str], Awaitable[None]] | None = None
        self._requests: dict[str, ConsentRequest] = {}
        self._fetched: dict[str, tuple[AsyncExitStack, Path]] = {}
        self._turn = asyncio.Lock()
        self.inbox.register(self, *KINDS)

    def connect(self, on_done: Callable[[str], Awaitable[None]]) -> None:
        """Take who is told of a plugin that was installed, or may be used, after a yes."""
        self._on_done = on_done

    # -- looking -------------------------------------------------------------------------------

    def get(self, consent_id: str) -> ConsentRequest:
        """Return a request. Raises `plugin_consent_unknown`."""
        try:
            return self._requests[consent_id]
        except KeyError:
            raise _unknown(consent_id) from None

    def requests(self, project_id: str | None = None) -> tuple[ConsentRequest, ...]:
        """Return the open and the declined requests, of one project or of all."""
        every = self._requests.values()
        return tuple(one for one in every if project_id in {None, one.project_id})

    async def restore(self) -> None:
        """Take back what waited, or was declined, when the daemon ended.

        What was fetched is fetched again.
        """
        for state in (RequestState.PENDING, RequestState.ANSWERED):
            wanted = RequestFilter(kinds=KINDS, state=state)
            found, _ = await self.inbox.rows.page(wanted, MAX_REQUESTS, 0)
            for one in reversed(found):
                declined = one.answer is not None and not one.answer["allowed"]
                if state is RequestState.PENDING or (declined and one.taken_at_ms is None):
                    await self._take_back(one, declined=declined)

    async def _take_back(self, kept: InboxRequest, *, declined: bool) -> None:
        data = cast("dict[str, Any]", kept.subject)
        request = ConsentRequest(
            id=kept.id,
            project_id=str(data["project_id"]),
            project_root=Path(data["project_root"]),
            plugin=str(data["name"]),
            package=str(data["package"]),
            source=str(data["source"]),
            version=data["version"],
            step=ConsentStep(data["step"]),
            declined=declined,
        )
        if request.step is ConsentStep.INSTALL:
            request = replace(request, step=_first_step(request.source))
        self._requests[request.id] = request
        if not declined:
            await self.inbox.ask_again(consent_draft(request))

    # -- asking --------------------------------------------------------------------------------

    async def request(
        self, project_id: str, missing: Iterable[Declaration], *, again: bool = True
    ) -> tuple[ConsentRequest, ...]:
        """Ask for the plugins that a project declares and does not have, once for each.

        Requests of the project for plugins that it no longer misses are forgotten; loading the
        project again after a no asks again, unless `again` is false: a restart is no new question.
        """
        async with self._turn:
            wanted = {d.plugin_name: d for d in reversed(list(missing))}
            for old in self.requests(project_id):
                declaration = wanted.get(old.plugin)
                if declaration is None or (again and old.declined) or _other(old, declaration):
                    await self._forget(old)
                elif not old.declined and old.id not in self._fetched:
                    # What lies on this machine may have changed since it was shown.
                    self._requests[old.id] = await self._look(old)
                    await self.inbox.ask_again(consent_draft(self._requests[old.id]))
            asked = {one.plugin: one for one in self.requests(project_id)}
            for name, declaration in reversed(wanted.items()):
                if name not in asked and len(self._requests) < MAX_REQUESTS:
                    asked[name] = await self._ask(project_id, declaration)
            return tuple(asked.values())

    async def _ask(self, project_id: str, declaration: Declaration) -> ConsentRequest:
        resolved = declaration.resolved
        source = resolved.source.value
        version = resolved.version.value
        request = ConsentRequest(
            id=self.ids.tagged("consent"),
            project_id=project_id,
            project_root=declaration.project_root,
            plugin=declaration.plugin_name,
            package=resolved.package.value,
            source=SOURCE_NOT_SPECIFIED if source is None else source_text(source),
            version=None if version is None else version.text,
            step=ConsentStep.PATH,
        )
        if (self.installer.store.directory / request.plugin).is_dir():
            request = replace(request, step=ConsentStep.USE)
        elif source is not None:
            request = replace(request, step=_first_step(request.source))
        return await self._announce(await self._look(request))

    async def _look(self, request: ConsentRequest) -> ConsentRequest:
        """Read the manifest where that needs no fetching; a bad one is told in the request."""
        try:
            if request.step is ConsentStep.USE:
                prompt = await self.installer.store.prepare_approval(request.plugin)
                return replace(request, prompt=prompt)
            if request.step is ConsentStep.INSTALL:
                source = parse_source(request.source)
                path = await asyncio.to_thread(relative_source, request.project_root, source)
                return await self._prompted(request, path)
        except KagedError as error:
            return replace(request, prompt=None, problem=str(error))
        return request

    async def _prompted(self, request: ConsentRequest, path: Path) -> ConsentRequest:
        prompt = await self.installer.preview(path, source=request.source)
        _require_wanted(request, prompt)
        return replace(request, prompt=prompt, step=ConsentStep.INSTALL, problem="")

    async def _announce(self, request: ConsentRequest) -> ConsentRequest:
        self._requests[request.id] = request
        await self.inbox.ask_again(consent_draft(request))
        data: JsonObject = {
            "name": request.plugin,
            "step": request.step.value,
            "source": request.source,
            "version": request.version,
            "capabilities": list(request.capabilities),
            "consent_id": request.id,
        }
        self.audit.post(AuditEvent("plugin.consent_requested", data))
        return request

    # -- answering -----------------------------------------------------------------------------

    async def answer(
        self,
        consent_id: str,
        *,
        allowed: bool,
        digest: str | None = None,
        path: Path | None = None,
        who: Actor | None = None,
    ) -> ConsentRequest | None:
        """Take the operator's answer; return the next question, None when all is done.

        `digest` is that of the prompt that was shown, for a yes to installing; `path` the directory
        for a plugin without a source. After a no the request stays, declined; it can still be
        answered with yes.

        Raises:
            KagedError: `plugin_consent_unknown`; there is no such request.
            KagedError: `plugin_consent_missing`; the digest is not that of the files.
            KagedError: `plugin_source_unavailable`; fetching failed; the request stays and can be
                answered again.
        """
        async with self._turn:  # an answer before this one is carried out first
            request = self.get(consent_id)
            if request.declined:
                await self.inbox.ask_again(consent_draft(request))
        given = ConsentAnswer(allowed, digest, path)
        by = AnsweredBy("operator") if who is None else AnsweredBy.of(who)
        try:
            await self.inbox.take_answer(consent_id, given, by)
        except (RequestNotFound, RequestClosed) as error:
            raise _unknown(consent_id) from error
        return self._requests.get(consent_id)

    # -- for the inbox ---------------------------------------------------------------------------

    async def check(self, request: InboxRequest, answer: Any) -> CheckedAnswer:
        """Return the answer as it is stored.

        Raises `inbox_answer_invalid`, and `plugin_consent_unknown` before a start is through.
        """
        self.get(request.id)
        given = answer if isinstance(answer, ConsentAnswer) else parse_consent(request, answer)
        path = None if given.path is None else str(given.path)
        return CheckedAnswer({"allowed": given.allowed, "digest": given.digest, "path": path})

    async def on_answer(self, request: InboxRequest, by: AnsweredBy) -> None:
        """Carry an answer out; what cannot be carried out waits for an answer again."""
        if request.state is not RequestState.ANSWERED:
            return
        said = cast("dict[str, Any]", request.answer)
        path = None if said["path"] is None else Path(said["path"])
        given = ConsentAnswer(said["allowed"], said["digest"], path)
        async with self._turn:
            consent = self.get(request.id)
            try:
                done = await self._carry_out(consent, given, by.request_id)
            except BaseException:
                await self.inbox.ask_again(consent_draft(self._requests.get(request.id, consent)))
                raise
        if done and self._on_done is not None:
            await self._on_done(consent.plugin)

    def event(self, request: InboxRequest) -> JsonObject:
        """Return which plugin it is about."""
        return {"plugin": request.subject["name"], "step": request.subject["step"]}

    async def _carry_out(
        self, request: ConsentRequest, given: ConsentAnswer, request_id: str | None
    ) -> bool:
        """Do what an answer allows; return whether there is nothing more to ask."""
        data: JsonObject = {
            "name": request.plugin,
            "step": request.step.value,
            "allowed": given.allowed,
            "source": request.source,
            "consent_id": request.id,
            "capabilities": list(request.capabilities),
        }
        event = AuditEvent("plugin.consent_answered", data, request_id=request_id)
        await self.audit.record(event)
        if not given.allowed:
            await self._release(request.id)
            self._requests[request.id] = replace(request, declined=True)
            return False
        match request.step:
            case ConsentStep.FETCH:
                await self._fetch(request)
                return False
            case ConsentStep.PATH:
                await self._take_path(request, given.path)
                return False
            case ConsentStep.INSTALL:
                await self._install(request, given.digest, request_id)
            case ConsentStep.USE:
                await self._use(request, given.digest)
        await self._forget(request)
        return True

    async def close(self) -> None:
        """Delete what lies in quarantine."""
        async with self._turn:
            for consent_id in list(self._fetched):
                await self._release(consent_id)

    async def _fetch(self, request: ConsentRequest) -> ConsentRequest:
        source = parse_source(request.source)
        stack = AsyncExitStack()
        try:
            fetched = await stack.enter_async_context(
                self.fetcher.fetch(source, _range(request.version), request.project_root)
            )
            asked = await self._prompted(request, fetched.directory)
        except BaseException as error:
            await stack.aclose()
            if isinstance(error, KagedError):
                self._requests[request.id] = replace(request, problem=str(error))
            raise
        self._fetched[request.id] = (stack, fetched.directory)
        return await self._announce(replace(asked, declined=False))

    async def _take_path(self, request: ConsentRequest, path: Path | None) -> ConsentRequest:
        if path is None:
            raise KagedError(
                f"{request.plugin}: {SOURCE_NOT_SPECIFIED}",
                code="plugin_source_unavailable",
                fix="name the directory that holds the plugin",
            )
        asked = await self._prompted(replace(request, source=str(path)), path)
        self._fetched[request.id] = (AsyncExitStack(), path)
        return await self._announce(replace(asked, declined=False))

    async def _install(
        self, request: ConsentRequest, digest: str | None, request_id: str | None
    ) -> None:
        known = self._fetched.get(request.id)
        if known is not None:
            path = known[1]
        else:
            source = parse_source(request.source)
            path = await asyncio.to_thread(relative_source, request.project_root, source)
        if request.prompt is None or digest is None:
            raise consent_missing(
                request.problem or "the answer does not say what was shown",
                "give the digest of the prompt that was answered",
            )
        await self.installer.install(
            path,
            digest,
            source=request.source,
            project_id=request.project_id,
            request_id=request_id,
        )

    async def _use(self, request: ConsentRequest, digest: str | None) -> None:
        shown = request.prompt
        if shown is not None and digest is not None and digest != shown.digest:
            raise consent_missing(
                f"the files of {request.plugin} are not the ones that were shown",
                "look at them again and answer again",
            )
        await self.installer.store.allow_project(request.plugin, request.project_id)

    async def _forget(self, request: ConsentRequest) -> None:
        await self._release(request.id)
        self._requests.pop(request.id, None)
        try:
            await self.inbox.withdraw(request.id, AnsweredBy("daemon"))
        except (RequestNotFound, RequestClosed):
            await self.inbox.rows.take(request.id)  # it has its answer

    async def _release(self, consent_id: str) -> None:
        known = self._fetched.pop(consent_id, None)
        if known is not None:
            await known[0].aclose()


def _unknown(consent_id: str) -> KagedError:
    return KagedError(
        f"there is no consent request {consent_id!r}",
        code="plugin_consent_unknown",
        fix="load the project again",
    )


def source_text(source: PluginSource) -> str:
    """Write a source as project files do."""
    match source.kind:
        case SourceKind.PATH:
            return source.location if source.location.startswith("./") else f"./{source.location}"
        case SourceKind.GITHUB:
            return source.location
        case SourceKind.GIT_HTTPS | SourceKind.GIT_FILE | SourceKind.GIT_HTTP_LOOPBACK:
            return f"git+{source.location}"


def _first_step(source: str) -> ConsentStep:
    # Nothing that lies on this machine needs a yes to be read.
    if source.startswith("./"):
        return ConsentStep.INSTALL
    return ConsentStep.FETCH if "://" in source else ConsentStep.PATH


def _other(request: ConsentRequest, declaration: Declaration) -> bool:
    """Return whether the project file asks for something else by now."""
    resolved = declaration.resolved
    source, version = resolved.source.value, resolved.version.value
    wanted = (resolved.package.value, None if version is None else version.text)
    if (request.package, request.version) != wanted:
        return True
    if source is None:
        # The operator's own path stands in for a source that the project does not name.
        return "://" in request.source or request.source.startswith("./")
    return request.step is not ConsentStep.USE and request.source != source_text(source)


def _range(text: str | None) -> VersionRange | None:
    return None if text is None else parse_range(text)


def _require_wanted(request: ConsentRequest, prompt: InstallPrompt) -> None:
    wanted = _range(request.version)
    if prompt.name != request.plugin:
        raise KagedError(
            f"{request.source} holds the plugin {prompt.name}, not {request.plugin}",
            code="plugin_source_unavailable",
            fix="correct package or source in the project file",
        )
    if wanted is not None and not wanted.matches(parse_version(prompt.version)):
        raise KagedError(
            f"{request.source} holds version {prompt.version}, {wanted.text} is asked for",
            code="plugin_source_unavailable",
            fix="correct version or source in the project file",
        )
