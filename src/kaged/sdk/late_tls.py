"""`import_asyncio`: the event loop without TLS, which is loaded when somebody uses it.

Python's event loop imports `ssl` whether anybody uses TLS or not, and OpenSSL takes four megabytes
of a plugin that waits for its next call. What stands in their place has their names, and becomes
the real module with the first look into it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, Final

LATE: Final = ("ssl", "asyncio.sslproto")


class _Late(ModuleType):
    """Stands for a module that nobody has looked into; whoever holds it need not know."""

    def __getattr__(self, name: str) -> Any:
        known = sys.modules.get(self.__name__)
        if known is self:
            del sys.modules[self.__name__]
            known = importlib.import_module(self.__name__)
        self.__dict__.update(vars(known or importlib.import_module(self.__name__)))
        if name not in self.__dict__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return self.__dict__[name]


def import_asyncio() -> None:
    """Load asyncio, if it is not there yet, and leave TLS for later."""
    if "asyncio" in sys.modules:
        return
    late = [name for name in LATE if name not in sys.modules]
    for name in late:
        sys.modules[name] = _Late(name)
    try:
        importlib.import_module("asyncio")
    finally:
        for name in late:
            # Who imports it from now on gets the real one.
            if isinstance(sys.modules.get(name), _Late):
                del sys.modules[name]
