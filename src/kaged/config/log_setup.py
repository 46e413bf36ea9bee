"""The daemon's log: structlog for everybody, uvicorn and the standard library included.

Every line goes through the same redaction as the audit trail before it is written anywhere.
"""

from __future__ import annotations

import logging
import os
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaged.audit.credentials import REDACTED, is_secret_key, mask_secrets
from kaged.base import SystemClock
from kaged.base.log import load_structlog
from kaged.config.coresections import LogFormat, LogLevel
from kaged.config.log_folding import LogFolding

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

MAX_VALUE_CHARS = 4000
MAX_DEPTH = 6
MAX_ENTRIES = 100
LOG_FILE_BYTES = 10 * 1024 * 1024
LOG_FILES_KEPT = 4


def configure_logging(
    level: LogLevel, form: LogFormat = LogFormat.AUTO, log_file: Path | None = None
) -> None:
    """Send all log lines of this process to standard error, or to a file that is rotated.

    `auto` writes for people on a terminal and JSON lines everywhere else.

    Raises:
        OSError: the file cannot be written.
    """
    structlog = load_structlog()
    people = log_file is None and sys.stderr.isatty()
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        structlog.processors.format_exc_info,
        redact,
    ]
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=people and not os.environ.get("NO_COLOR"))
        if form is LogFormat.TEXT or (form is LogFormat.AUTO and people)
        else structlog.processors.JSONRenderer(sort_keys=True, default=repr)
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            LogFolding(SystemClock()),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler() if log_file is None else _rotating(log_file)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    for old in root.handlers:
        old.close()
    root.handlers[:] = [handler]
    root.setLevel(level.value.upper())
    # uvicorn tells of each connection at info level; our own request lines say more.
    for noisy in ("uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
    for noisy in ("asyncio", "httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(max(logging.INFO, root.level))


def _rotating(path: Path) -> logging.Handler:
    # Others have no business in the log; the handler itself would go by the umask.
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600))
    return RotatingFileHandler(
        path, maxBytes=LOG_FILE_BYTES, backupCount=LOG_FILES_KEPT, encoding="utf-8"
    )


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Take secrets out of a log line: by the name of the key, by the shape of the text."""
    return {key: _clean(key, value, 0) for key, value in event.items()}


def _clean(key: str, value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if is_secret_key(key):
        return REDACTED
    if isinstance(value, str):
        text = mask_secrets(value)
        return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"
    if depth >= MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        entries = list(value.items())[:MAX_ENTRIES]
        return {str(name): _clean(str(name), inner, depth + 1) for name, inner in entries}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(key, inner, depth + 1) for inner in list(value)[:MAX_ENTRIES]]
    # Objects are shown by their type: a repr may hold anything.
    return value if key.startswith("_") else f"<{type(value).__name__}>"
