"""`LspServer`: one life of one language server, from `initialize` to its last byte."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, Self

from kaged.base import Clock, JsonObject, JsonValue, KagedError
from kaged.base.file_stamp import Stamp
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.cage import ExitReport, Spawner, Uncaged, UncagedRequest
from kaged.peer import (
    Connection,
    ConnectionLimits,
    PeerGone,
    PeerProcess,
    PeerStalled,
    PeerTimeout,
)
from kaged.toolbox.lsp.errors import LspRequestFailed
from kaged.toolbox.lsp.handshake import Capabilities, initialize_params
from kaged.toolbox.lsp.loading import Loading
from kaged.toolbox.lsp.positions import Encoding, SourceText, to_uri
from kaged.toolbox.lsp.published import PublishedDiagnostics
from kaged.tools.errors import ToolError
from kaged.wire.content_length import ContentLengthFramer
from kaged.wire.correlator import Ignored
from kaged.wire.errors import RpcError
from kaged.wire.messages import MessageId, Notification, Refused, Request, Response

REQUEST_LIMIT_S: Final = 30.0  # AT-LSP-21
EXIT_GRACE_S: Final = 1.0
MESSAGE_LIMIT_BYTES: Final = 64 * 1024 * 1024
MESSAGE_VALUES: Final = 500_000  # the symbols of a whole workspace have ten times a guest's share
MAX_OPEN_FILES: Final = 500
_LOG_LINE_CHARS: Final = 500
_METHOD_NOT_FOUND: Final = -32601
_REQUEST_CANCELLED: Final = {-32800, -32801, -32802}  # cancelled, content modified, server busy

_log = get_logger(__name__)


@dataclass(slots=True)
class OpenFile:
    """A file as the server has it: its number of changes, its text, what it was on disk."""

    uri: str
    path: str
    version: int
    source: SourceText
    stamp: Stamp | None = None  # of the content that was sent, where that can be relied on
    shown_after: int = 0  # the newest pushed list when this text was sent: older ones do not count
    saved_version: int = 0  # the version that the server was last told to be on disk
    rechecked: int = 0  # the server's number of changes when its list was last waited for
    sent: int = 0  # the server's number of changes when this text was sent


class LspConnection(Connection):
    """A conversation in which a question that was given up is cancelled."""

    def _say_cancel(self, call_id: int) -> None:
        with contextlib.suppress(PeerGone, PeerStalled):
            self.notify("$/cancelRequest", {"id": call_id})


class LspServer:
    """A running language server.

    Made by `start`. `on_end` hears once that the process has ended without being asked to.
    """

    def __init__(
        self,
        language: str,
        root: str,
        clock: Clock,
        on_end: Callable[[LspServer, ExitReport], None],
    ) -> None:
        self.language = language
        self.capabilities = Capabilities()
        self.published = PublishedDiagnostics(clock)
        # How often a file's text changed, and the newest list of problems by then.
        self.changes = 0
        self.changed_after = 0
        self.loading = Loading()
        self.files: OrderedDict[str, OpenFile] = OrderedDict()
        self.started_s = clock.monotonic_s()
        self.used_s = self.started_s
        self._root = root
        self._command: tuple[str, ...] = ()
        self._clock = clock
        self._on_end = on_end
        self._waiting = 0
        self._told = 0  # how often it was told something, and how much of that it had surely read
        self._read = 0
        self._stopping = False
        self._ended = False
        self._peer: PeerProcess | None = None
        self._connection = LspConnection(
            self,
            name=f"the {language} language server",
            framer=ContentLengthFramer(limit_bytes=MESSAGE_LIMIT_BYTES),
            clock=clock,
            limits=ConnectionLimits(write_buffer_bytes=MESSAGE_LIMIT_BYTES, values=MESSAGE_VALUES),
        )

    @classmethod
    async def start(
        cls,
        spawner: Spawner,
        language: str,
        command: tuple[str, ...],
        root: str,
        environ: Mapping[str, str],
        *,
        clock: Clock,
        on_end: Callable[[LspServer, ExitReport], None],
        limit_s: float = REQUEST_LIMIT_S,
    ) -> Self:
        """Start a server and shake hands. Its program is started as it is, without a shell.

        Raises:
            ToolError: `lsp_server_unavailable`; it did not start, or ended during the handshake.
            ToolError: `lsp_timeout`; it did not answer `initialize` in time.
        """
        server = cls(language, root, clock, on_end)
        server._command = command
        request = UncagedRequest(
            f"language server {language}",
            Uncaged("language servers work on the whole project for all of its agents"),
            command,
            cwd=root,
            env=tuple(environ.items()),
        )
        try:
            server._peer = await PeerProcess.start(
                spawner, request, server._connection, server._stderr
            )
        except KagedError as error:
            raise ToolError(
                f"the {language} language server did not start: {error.message}",
                code="lsp_server_unavailable",
                detail={"language": language, "command": list(command)},
            ) from error
        try:
            await server._shake_hands(limit_s)
        except BaseException:
            await server.kill()
            raise
        return server

    async def _shake_hands(self, limit_s: float) -> None:
        params = initialize_params(self._root, self.language, self._command)
        answer = await self.request("initialize", params, limit_s)
        self.capabilities.take(answer)
        info = self.capabilities.server_info
        name = info.get("name") if isinstance(info, dict) else None
        self.loading.server_named(name if isinstance(name, str) else "", self._command)
        self.notify("initialized", {})
        self.notify("workspace/didChangeConfiguration", {"settings": {}})

    # -- what it is ----------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether it can be talked to."""
        return not self._ended and self._connection.is_open

    @property
    def pid(self) -> int | None:
        """Its process number."""
        return None if self._peer is None else self._peer.process.pid

    @property
    def encoding(self) -> Encoding:
        """The units in which it counts columns."""
        return self.capabilities.encoding

    @property
    def busy(self) -> bool:
        """Whether a request is on its way or waits for its turn."""
        return self._waiting > 0

    # -- asking --------------------------------------------------------------------------------

    async def request(
        self, method: str, params: JsonObject | None, limit_s: float = REQUEST_LIMIT_S
    ) -> JsonValue:
        """Ask. The bridge sees to it that one question at a time is on its way.

        Raises:
            ToolError: `lsp_timeout`; no answer in time; the server is ended.
            ToolError: `lsp_server_unavailable`; it ended, or does not read.
            LspRequestFailed: it answered with an error; it goes on running.
        """
        self._waiting += 1
        try:
            return await self._ask(method, params, limit_s)
        finally:
            self._waiting -= 1
            self.used_s = self._clock.monotonic_s()

    async def _ask(self, method: str, params: JsonObject | None, limit_s: float) -> JsonValue:
        told = self._told
        try:
            answer = await self._connection.request(method, params, limit_s, cancel=True)
        except PeerTimeout as error:
            await self.kill()
            raise ToolError(
                f"the {self.language} language server did not answer {method} "
                f"within {limit_s:g} seconds and was ended",
                code="lsp_timeout",
                fix="try again: it starts anew at the next call; where a project needs longer, the "
                "operator raises request_timeout_seconds in [lsp]",
                detail={"language": self.language, "method": method},
            ) from error
        except (PeerGone, PeerStalled) as error:
            await self.kill()
            raise ToolError(
                f"the {self.language} language server ended before it answered {method}",
                code="lsp_server_unavailable",
                fix="try again: it starts anew at the next call",
                detail={"language": self.language, "stderr": self.last_stderr()},
            ) from error
        except RpcError as error:
            self._read = max(self._read, told)
            raise LspRequestFailed(
                f"the {self.language} language server refused {method}: {error.message}",
                detail={"code": error.number, "message": error.message, "method": method},
            ) from error
        self._read = max(self._read, told)
        return answer

    def notify(self, method: str, params: JsonObject) -> None:
        """Send the server a notification. One that is gone gets none; the next one gets all."""
        self._told += 1
        with contextlib.suppress(PeerGone, PeerStalled):
            self._connection.notify(method, params)

    async def catch_up(self, uri: str, limit_s: float) -> None:
        """Wait until it has read all that it was told; raises as `request` does.

        Messages are read in their order, so an answer to a small question is enough; that it is a
        refusal does not matter.
        """
        if self._read < self._told:
            with contextlib.suppress(LspRequestFailed):
                asked: JsonObject = {"textDocument": {"uri": uri}}
                await self.request("textDocument/documentSymbol", asked, limit_s)

    # -- files ---------------------------------------------------------------------------------

    def show(self, path: str, language_id: str, text: str, stamp: Stamp | None = None) -> OpenFile:
        """Make sure that the server has this text of a file: open it, change it, or nothing."""
        known = self.files.get(path)
        if known is not None:
            self.files.move_to_end(path)
            known.stamp = stamp
            if known.source.text != text:
                known.version += 1
                known.source = SourceText(text)
                known.shown_after = self.changed_after = self.published.serial
                self.changes += 1
                known.sent = self.changes
                self.notify(
                    "textDocument/didChange",
                    {
                        "textDocument": {"uri": known.uri, "version": known.version},
                        "contentChanges": [{"text": text}],
                    },
                )
            return known
        while len(self.files) >= MAX_OPEN_FILES:
            self.hide(next(iter(self.files)))
        opened = OpenFile(to_uri(path), path, 1, SourceText(text), stamp, self.published.serial)
        opened.sent = self.changes
        self.files[path] = opened
        self.notify(
            "textDocument/didOpen",
            {
                "textDocument": {
                    "uri": opened.uri,
                    "languageId": language_id,
                    "version": opened.version,
                    "text": text,
                }
            },
        )
        return opened

    def saved(self, file: OpenFile) -> None:
        """Notify a server that asked for it that a file was written; once for each version."""
        if self.capabilities.wants_save and file.saved_version != file.version:
            file.saved_version = file.version
            self.notify(
                "textDocument/didSave",
                {"textDocument": {"uri": file.uri}, "text": file.source.text},
            )

    def others_changed(self, events: list[JsonValue]) -> None:
        """Notify of files on disk that it has not open; earlier lists may be out of date."""
        self.changed_after = self.published.serial
        self.changes += 1
        self.notify("workspace/didChangeWatchedFiles", {"changes": events})

    def hide(self, path: str) -> None:
        """Close a file that the server has open."""
        known = self.files.pop(path, None)
        if known is not None:
            self.notify("textDocument/didClose", {"textDocument": {"uri": known.uri}})
            self.published.forget(known.uri)

    # -- ending --------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Wait for its end, whatever leads to it, and tell of it. Run once, by the pool."""
        if self._peer is not None:
            report = await self._peer.wait()
            await self._connection.close()
            self._tell_end(report)

    async def stop(self) -> None:
        """Shut down as the protocol has it, and kill what does not end."""
        self._stopping = True
        if self._peer is None:
            return
        peer = self._peer

        async def ask() -> None:
            await self._connection.request("shutdown", None, EXIT_GRACE_S)
            self._connection.notify("exit", {})

        await peer.process.stop(2 * EXIT_GRACE_S, ask, term_grace_s=EXIT_GRACE_S)
        await self._close(peer)

    async def kill(self) -> None:
        """End it at once; counts as its own failure."""
        if self._peer is not None and not self._ended:
            self._peer.process.kill()
            await self._close(self._peer)

    def last_stderr(self) -> list[JsonValue]:
        """Return the last lines that it wrote to stderr."""
        return [] if self._peer is None else list(self._peer.stderr.lines[-10:])

    async def _close(self, peer: PeerProcess) -> None:
        await peer.close()
        self._tell_end(await peer.wait())

    def _tell_end(self, report: ExitReport) -> None:
        if not self._ended:
            self._ended = True
            self.loading.ended()
            self.published.ended()
            if not self._stopping:
                self._on_end(self, report)

    def _stderr(self, line: str) -> None:
        _log.debug("lsp.stderr", language=self.language, line=line[:_LOG_LINE_CHARS])

    # -- Owner: what the server asks and tells ---------------------------------------------------

    async def answer(self, request: Request) -> JsonValue:
        """Answer a request of the server's at once; unanswered ones stall it."""
        params: JsonValue = request.params
        match request.method:
            case "workspace/configuration":
                items = params.get("items") if isinstance(params, dict) else None
                return [None for _ in items] if isinstance(items, list) else []
            case "client/registerCapability":
                self.capabilities.register(params)
                self.published.nudge()
            case "client/unregisterCapability":
                self.capabilities.unregister(params)
            case "window/workDoneProgress/create":
                return None  # `asked` has noted it
            case "workspace/workspaceFolders":
                return [{"uri": to_uri(self._root), "name": self._root.rpartition("/")[2]}]
            case "workspace/applyEdit":
                # Only edits that a tool asked for, and has checked, are ever made.
                return {"applied": False, "failureReason": "edits are made by tools only"}
            case "window/showDocument":
                return {"success": False}
            case "window/showMessageRequest":
                return None
            case method if method.endswith("/refresh"):
                return None
            case method:
                raise RpcError(f"method not found: {method[:100]}", number=_METHOD_NOT_FOUND)
        return None

    def asked(self, request: Request) -> None:
        """Note a progress in its place: some servers begin and end it before they hear from us."""
        if request.method == "window/workDoneProgress/create":
            self.loading.created(request.params)

    def notified(self, notification: Notification) -> None:
        """Called for each notification of the server."""
        params: JsonValue = notification.params
        match notification.method:
            case "textDocument/publishDiagnostics":
                self.published.take(params)
            case "$/progress":
                self.loading.progressed(params)
            case "window/logMessage" | "window/showMessage":
                text = params.get("message") if isinstance(params, dict) else None
                if isinstance(text, str):
                    self.loading.logged(text)
                    _log.debug("lsp.log", language=self.language, line=text[:_LOG_LINE_CHARS])
            case "experimental/serverStatus":
                self.loading.status(params)
            case _:
                return

    def refused(self, refused: Refused) -> None:
        """Called for input that is no message; what came before and after it still counts."""
        _log.debug("lsp.message_invalid", language=self.language, what=type(refused).__name__)

    def ignored(self, response: Response, why: Ignored) -> None:
        """Called when an answer arrives that no caller waits for any more."""
        _log.debug("lsp.late_answer", language=self.language, id=response.id, why=why.value)

    def out_of_step(self, message_id: MessageId) -> None:
        """Accept any ids: the protocol does not say how a server counts."""

    def broke(self, error: KagedError) -> None:
        """End a server whose conversation cannot go on."""
        if not self._stopping:
            _log.warning("lsp.connection_broken", language=self.language, error=error.message)
        if self._peer is not None:
            self._peer.process.kill()

    def closed(self) -> None:
        """Called when its output ended: it is gone, or as good as gone."""
        if self._peer is not None:
            self._peer.process.kill()


def is_passing(error: LspRequestFailed) -> bool:
    """Return whether a refusal is one of those that go away by asking again."""
    code = error.detail.get("code") if isinstance(error.detail, dict) else None
    return code in _REQUEST_CANCELLED
