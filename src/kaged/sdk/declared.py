"""`DeclaredPlugin`: what an author has declared, before anything runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kaged.sdk.log import Log

T = TypeVar("T")


class DeclaredPlugin(ABC):
    """What an author has declared, as far as a greeting and a conversation need to know it."""

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version
        self.handlers: dict[str, Callable[..., Any]] = {}
        self.notifications: list[str] = []
        self.capabilities_used: list[str] = []
        self.on_config_update: Callable[..., Any] | None = None
        self.on_shutdown: Callable[..., Any] | None = None
        self.on_project_activated: Callable[..., Any] | None = None
        self.on_project_deactivated: Callable[..., Any] | None = None
        self.log = Log()

    @abstractmethod
    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the plugin's loop and wait for it in another thread."""
