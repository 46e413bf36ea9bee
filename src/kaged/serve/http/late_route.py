"""`LateRoute`: a route that is matched from the start and built when it is first used.

FastAPI builds for each route a tree of its dependencies and a validator for every parameter and
answer: some milliseconds and a hundred kilobytes each, for a hundred routes of which a daemon
serves a handful. Who may call, how often and how much, is decided by the layers in front of the
routes; what is built late is only how a request is read. The OpenAPI document builds all of them,
and so do the tests that draw it: a route that cannot be built is found there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi.routing import APIRoute
from starlette.routing import compile_path, get_name


class LateRoute(APIRoute):
    """A route of FastAPI that has what matching needs; asking for anything else builds the rest."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.path = path
        self.endpoint = endpoint
        self.name = options.get("name") or get_name(endpoint)
        self.methods = {method.upper() for method in options.get("methods") or ("GET",)}
        self.include_in_schema = options.get("include_in_schema", True)
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self._options: dict[str, Any] | None = options

    def __getattr__(self, name: str) -> Any:
        # Python asks here for what is not there. Nothing waits in between, so that requests of one
        # event loop never meet a route that is half built.
        options = self.__dict__.get("_options")
        if options is None:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        self._options = None
        try:
            super().__init__(self.path, self.endpoint, **options)
        except BaseException:
            self._options = options  # the next one is told the same, not that something is missing
            raise
        return getattr(self, name)
