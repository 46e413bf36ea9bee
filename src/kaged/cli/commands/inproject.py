"""What the commands on a project's work share: which project, and texts from files."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaged.cli.commands.project import find_project
from kaged.cli.context import daemon

if TYPE_CHECKING:
    from kaged.cli.client import DaemonClient

TEXT_LIMIT_BYTES = 1024 * 1024

InProject = Annotated[
    str,
    typer.Option(
        "--project", "-p", help="A loaded project: its id, slug or folder; the current folder."
    ),
]
HERE = "."


class ProjectClient:
    """Speaks to the daemon about one project."""

    def __init__(self, client: DaemonClient, project_id: str) -> None:
        self._client = client
        self._base = f"/projects/{project_id}"

    def get(self, path: str, params: dict[str, Any] | None = None) -> Any:
        """Send a GET request."""
        return self._client.get(f"{self._base}{path}", params)

    def post(self, path: str, body: Any = None) -> Any:
        """Send a POST request."""
        return self._client.post(f"{self._base}{path}", body)

    def put(self, path: str, body: Any) -> Any:
        """Set something."""
        return self._client.put(f"{self._base}{path}", body)

    def patch(self, path: str, body: Any) -> Any:
        """Change parts of something."""
        return self._client.patch(f"{self._base}{path}", body)

    def delete(self, path: str) -> Any:
        """Send a DELETE request."""
        return self._client.delete(f"{self._base}{path}")

    def upload(self, path: str, data: bytes) -> Any:
        """Hand over lines of JSON as they are."""
        return self._client.upload(f"{self._base}{path}", data)

    def stream(self, path: str) -> Iterator[bytes]:
        """Send a GET request and yield the answer piece by piece."""
        return self._client.stream(f"{self._base}{path}")


@contextmanager
def in_project(which: str) -> Generator[ProjectClient]:
    """Yield a client of the daemon for a loaded project."""
    with daemon() as client:
        yield ProjectClient(client, find_project(client, which)["id"])


def text_or_file(text: str | None, file: Path | None) -> str | None:
    """Return a text from the command line, or from a file; `-` is standard input."""
    if text is not None and file is not None:
        raise typer.BadParameter("give the text or the file, not both")
    if file is None:
        return text
    if str(file) == "-":
        data = sys.stdin.buffer.read(TEXT_LIMIT_BYTES + 1)
    else:
        with file.open("rb") as source:
            data = source.read(TEXT_LIMIT_BYTES + 1)
    if len(data) > TEXT_LIMIT_BYTES:
        raise typer.BadParameter(f"{file} has more than {TEXT_LIMIT_BYTES} bytes")
    return data.decode("utf-8")


def pairs_of(given: list[str] | None) -> list[tuple[str, str]]:
    """Read options of the form NAME=VALUE."""
    pairs: list[tuple[str, str]] = []
    for one in given or ():
        name, equals, text = one.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{one!r} is not NAME=VALUE")
        pairs.append((name, text))
    return pairs


def file_of(path: Path) -> dict[str, str]:
    """Read a file as requests carry it."""
    content = base64.b64encode(path.read_bytes()).decode("ascii")
    return {"name": path.name, "content_base64": content}


def plain_value(kind: str | None, text: str) -> Any:
    """Read a value as its type wants it; what does not fit the daemon complains about."""
    if kind not in {"number", "integer", "boolean"}:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
