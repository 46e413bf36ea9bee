"""Kind `caged`: a plugin class in a worker process of its own, inside a cage.

The worker sees no network and no files but its code, and of every call only the filtered view. It
is started when the plugin is loaded, and again by the next call after it died.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

import kaged
from kaged.base import JsonObject, JsonValue, KagedError, Tasks
from kaged.base.installed import library_folders
from kaged.base.log import get_logger
from kaged.cage import CageKind, CageRequest, HostMount, Spawner
from kaged.peer import Connection, PeerProcess
from kaged.pipeline.binding import HookCall, HookNotBound
from kaged.pipeline.cage_reach import CageReach
from kaged.pipeline.contexts import PluginContext
from kaged.pipeline.errors import not_loaded
from kaged.pipeline.kinds import StartedPlugin
from kaged.pipeline.payloads.registry import HookRegistry
from kaged.pipeline.remote import decode_answer, encode_call
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.slots import Extensions
from kaged.wire.correlator import Ignored
from kaged.wire.errors import RpcError
from kaged.wire.messages import MessageId, Notification, Refused, Request, Response

LOAD_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 3600.0
"""Beyond any plugin's own timeout, which the runner keeps."""
PING_TIMEOUT_S = 2.0
SHUTDOWN_TIMEOUT_S = 3.0

_ROOT = "/opt/kaged"
_log = get_logger(__name__)


class CageGrants(CageReach):
    """What a caged plugin gets beside its code: nothing, unless it is written down here."""

    env: dict[str, str] = Field(default_factory=dict)


class CagedKind:
    """Starts caged plugins: `kind: caged` with `config.class_name`.

    `config.cage` may grant paths (`read`, `write`), destinations (`net`), variables (`env`) and
    memory; the rest of `config` is the plugin's own.
    """

    def __init__(self, spawner: Spawner, *, python: str | None = None) -> None:
        self._spawner = spawner
        self._python = python or os.path.realpath(sys.executable)

    async def start(self, config: PluginConfig) -> StartedPlugin:
        """Start a worker and load the class in it. Raises `pipeline_plugin_not_loaded`."""
        options = dict(config.config or {})
        class_name = options.pop("class_name", None)
        if not isinstance(class_name, str) or "." not in class_name:
            raise not_loaded("kind caged needs config.class_name, a dotted class path", "config")
        try:
            grants = CageGrants.model_validate(options.pop("cage", None) or {})
            policy = grants.policy(grants.env)
        except (ValidationError, KagedError) as error:
            raise not_loaded(f"config.cage is wrong: {error}", "config") from error
        request = CageRequest(
            name=f"pipeline:{config.name}",
            policy=policy,
            command=(self._python, "-m", "kaged.pipeline.worker"),
            kind=CageKind.PLUGIN,
            env=(("PYTHONPATH", f"{_ROOT}/plugin:{_ROOT}/lib:{_ROOT}/site"), ("LANG", "C.UTF-8")),
            fixed_env=(("PYTHONDONTWRITEBYTECODE", "1"), ("PYTHONNOUSERSITE", "1")),
            mounts=(*_host_mounts(), _plugin_mount(class_name)),
        )
        plain = config.model_copy(update={"config": options}).model_dump(mode="json")
        plugin = CagedPlugin(self._spawner, request, class_name, plain, config)
        await plugin.open()
        return plugin


class CagedPlugin:
    """One caged plugin: its worker, and how to get another when it dies."""

    def __init__(
        self,
        spawner: Spawner,
        request: CageRequest,
        class_name: str,
        plain_config: JsonObject,
        config: PluginConfig,
    ) -> None:
        self._spawner = spawner
        self._request = request
        self._class_name = class_name
        self._plain_config = plain_config
        self._name = config.name
        self._hooks = frozenset(config.hooks)
        self._tasks = Tasks(f"pipeline {config.name}", self._task_failed)
        self._worker: PeerProcess | None = None
        self._starting: asyncio.Task[PeerProcess] | None = None

    async def open(self) -> None:
        """Start the first worker. Raises `pipeline_plugin_not_loaded`."""
        try:
            self._worker = await self._start_worker()
        except KagedError as error:
            message = f"plugin {self._name!r} refused to start: {error.message}"
            raise not_loaded(message, "config", error.fix) from error

    def bind(self, hook: str) -> HookCall:
        """Return what to call for a hook; the worker has checked its method when it was loaded."""
        if hook not in self._hooks:
            raise HookNotBound(f"plugin {self._name!r} lists no hook {hook!r}", hook=hook)
        kind = HookRegistry().kind(hook)

        async def call(
            payload: Any, context: PluginContext, extensions: Extensions | None
        ) -> PluginResult[Any]:
            params = encode_call(hook, payload, context, extensions)
            answer = await self._ask(params)
            return decode_answer(answer, kind, context, extensions)

        return call

    async def shutdown(self) -> None:
        """End the worker: ask, then signal."""
        worker, self._worker = self._worker, None
        starting, self._starting = self._starting, None
        await self._tasks.close()
        if starting is not None and not starting.cancelled() and starting.exception() is None:
            worker = starting.result()  # started, and nobody waited for it any more
        if worker is not None:
            await worker.stop(("shutdown", {}), SHUTDOWN_TIMEOUT_S)

    async def _ask(self, params: JsonObject) -> JsonValue:
        worker = await self._ready()
        answered = False
        try:
            answer = await worker.connection.request("invoke", params, CALL_TIMEOUT_S, cancel=True)
            answered = True
        except RpcError as error:
            answered = True
            raise KagedError(
                f"the worker did not take the call: {error.message}", code="plugin_worker_gone"
            ) from error
        finally:
            if not answered and worker is self._worker:
                if worker.connection.is_open:
                    # Given up on, by a timeout or the caller: is it slow, or stuck for everybody?
                    self._tasks.start(self._check(worker), "check")
                else:
                    self._worker = None
                    self._tasks.start(worker.close(), "end")
        return answer

    async def _check(self, worker: PeerProcess) -> None:
        """End a worker that does not even answer a ping; the next call starts another."""
        try:
            await worker.connection.request("ping", {}, PING_TIMEOUT_S)
        except KagedError:
            if worker is self._worker:
                self._worker = None
            await worker.close()

    async def _ready(self) -> PeerProcess:
        worker = self._worker
        if worker is not None and worker.connection.is_open:
            return worker
        if worker is not None:
            self._worker = None
            await worker.close()
        starting = self._starting
        if starting is None:
            starting = self._starting = self._tasks.start(self._start_worker(), "start")
        try:
            # Who waits may give up sooner than a worker starts; the next one finds it started.
            started = await asyncio.shield(starting)
        except KagedError as error:
            raise KagedError(
                f"no new worker: {error.message}", code="plugin_worker_gone"
            ) from error
        finally:
            if starting.done() and self._starting is starting:
                self._starting = None
        self._worker = started
        return started

    async def _start_worker(self) -> PeerProcess:
        owner = _CagedOwner(self._name)
        connection = Connection(owner, name=f"pipeline plugin {self._name}")
        worker = await PeerProcess.start(self._spawner, self._request, connection, owner.printed)
        try:
            await connection.request(
                "load",
                {"class_name": self._class_name, "config": self._plain_config},
                LOAD_TIMEOUT_S,
            )
        except BaseException:
            await worker.close()
            raise
        return worker

    def _task_failed(self, name: str, error: BaseException) -> None:
        _log.warning("pipeline.worker_task_failed", plugin=self._name, task=name, error=repr(error))


class _CagedOwner:
    """Hears what a worker does unasked: it has nothing to ask, so it is only noted."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def answer(self, request: Request) -> JsonValue:
        raise RpcError("pipeline plugins cannot ask the host", number=-32601)

    def asked(self, request: Request) -> None:
        """Called for a request as it arrives; `answer` refuses it."""

    def notified(self, notification: Notification) -> None:
        """Called for each notification; all are ignored."""

    def ignored(self, response: Response, why: Ignored) -> None:
        """Called when an answer arrives after its caller has given up."""

    def out_of_step(self, message_id: MessageId) -> None:
        """Called for request ids out of order; its requests are refused anyway."""

    def printed(self, line: str) -> None:
        _log.info("pipeline.plugin_output", plugin=self._name, line=line)

    def refused(self, refused: Refused) -> None:
        _log.warning("pipeline.worker_message_invalid", plugin=self._name)

    def broke(self, error: KagedError) -> None:
        _log.warning("pipeline.worker_broken", plugin=self._name, error=error.message)

    def closed(self) -> None:
        _log.info("pipeline.worker_ended", plugin=self._name)


def _host_mounts() -> tuple[HostMount, ...]:
    """Return our own package and the installed libraries: code, read-only."""
    package = Path(kaged.__file__).parent
    mounts = [HostMount(str(package), f"{_ROOT}/lib/kaged")]
    mounts += [
        HostMount(folder, f"{_ROOT}/site{'' if number == 0 else number}")
        for number, folder in enumerate(library_folders())
    ]
    return tuple(mounts)


def _plugin_mount(class_name: str) -> HostMount:
    """Return the top-level package of the plugin, found without importing it."""
    top = class_name.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError) as error:
        raise not_loaded(f"package {top!r} cannot be found: {error}", "config") from error
    if spec is None:
        fix = "install it, or put its folder into plugin_dirs"
        raise not_loaded(f"package {top!r} is not installed", "config", fix)
    folders = list(spec.submodule_search_locations or ())
    if folders:
        return HostMount(os.path.realpath(folders[0]), f"{_ROOT}/plugin/{top}")
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise not_loaded(f"{top!r} is not a plugin package", "config")
    return HostMount(os.path.realpath(spec.origin), f"{_ROOT}/plugin/{top}.py")
