"""`PageFetcher` on this machine's loopback: where names lead, and how long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Self

import pytest

from fakes.tool_lab import ToolLab, cage
from kaged.base import SystemClock
from kaged.kernel.net import ANYWHERE, NetTarget, parse_target
from kaged.toolbox.web import web_tools
from kaged.toolbox.web.errors import (
    HostUnreachable,
    PageFailed,
    PageMissing,
    PageTooLarge,
    PageTooSlow,
)
from kaged.toolbox.web.fetching import FetchedPage, FetchLimits, PageFetcher
from kaged.toolbox.web.places import read_place
from kaged.tools import ToolCapabilityRefused

Ask = Callable[[str, int], Awaitable[bool]]
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"


class Names:
    """A resolver that knows some names."""

    def __init__(self, **table: str) -> None:
        self.table = {f"{name}.example": address for name, address in table.items()}

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        if host not in self.table:
            raise OSError("no such name")
        return [self.table[host]]


class Answering:
    """A server that says the same to everybody; nothing, and keeps still, if there is nothing."""

    def __init__(self, answer: bytes, *, stays: bool = False) -> None:
        self.answer, self.stays = answer, stays
        self.connections = 0
        self.port = 0
        self._done = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._done.set()
        self._server.close()
        await self._server.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await reader.read(4096)
        writer.write(self.answer)
        if self.stays:
            await self._done.wait()
        writer.close()
        await writer.wait_closed()


async def fetched(
    url: str,
    *grants: str,
    names: Names | None = None,
    limits: FetchLimits | None = None,
    ask: Ask | None = None,
) -> FetchedPage:
    """Fetch a page as a caller with these grants."""
    fetcher = PageFetcher(names or Names(), limits)
    targets: tuple[NetTarget, ...] = tuple(map(parse_target, grants))
    return await fetcher.fetch(read_place(url), targets, ask, lambda *_: None)


async def test_a_granted_name_that_leads_to_this_machine_needs_that_address_too() -> None:
    async with Answering(PLAIN) as server:
        url, names = f"http://inside.example:{server.port}/", Names(inside="127.0.0.1")
        named = f"inside.example:{server.port}"
        with pytest.raises(ToolCapabilityRefused) as refused:
            await fetched(url, named, names=names)
        assert "loopback address 127.0.0.1" in refused.value.message
        assert f"127.0.0.1:{server.port}" in (refused.value.fix or "")
        # Everything public is not this machine either.
        with pytest.raises(ToolCapabilityRefused):
            await fetched(url, ANYWHERE.text, names=names)
        assert server.connections == 0
        page = await fetched(url, named, f"127.0.0.1:{server.port}", names=names)
        assert (page.body, page.by_grants) == (b"hello", True)


async def test_who_is_asked_has_all_the_time_and_the_page_has_not() -> None:
    async with Answering(PLAIN) as server, Answering(b"", stays=True) as silent:
        names, limits = Names(a="127.0.0.1"), FetchLimits(seconds=0.3)
        answered = asyncio.Event()

        async def ask(host: str, port: int) -> bool:
            # Longer than the whole fetch may take.
            asyncio.get_running_loop().call_later(0.5, answered.set)
            await answered.wait()
            return True

        url = f"http://a.example:{server.port}/"
        page = await fetched(url, f"127.0.0.1:{server.port}", names=names, limits=limits, ask=ask)
        assert (page.body, page.by_grants) == (b"hello", False)
        with pytest.raises(PageTooSlow):
            await fetched(
                f"http://localhost:{silent.port}/", f"localhost:{silent.port}", limits=limits
            )


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n", PageMissing),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", PageFailed),
        (b"SSH-2.0 nonsense\r\n\r\n", PageFailed),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", PageFailed),
        (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", PageFailed),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + b"x" * 2000, PageTooLarge),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nplain", PageFailed),
    ],
)
async def test_answers_that_are_no_pages(answer: bytes, error: type[Exception]) -> None:
    async with Answering(answer) as server:
        with pytest.raises(error):
            await fetched(
                f"http://localhost:{server.port}/x",
                f"localhost:{server.port}",
                limits=FetchLimits(bytes=1000),
            )


async def test_a_name_that_nobody_knows_cannot_be_reached() -> None:
    with pytest.raises(HostUnreachable):
        await fetched("https://gone.example/", "gone.example:443")


async def test_a_server_without_a_good_certificate_cannot_be_reached() -> None:
    async with Answering(b"") as server:
        with pytest.raises(HostUnreachable):
            await fetched(f"https://localhost:{server.port}/", f"localhost:{server.port}")


async def test_what_was_allowed_for_one_call_is_asked_about_again_at_the_next(
    tmp_path: Path,
) -> None:
    async with Answering(PLAIN) as server:
        target = f"http://a.example:{server.port}/"
        moved = f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n"
        async with Answering(moved.encode()) as first:
            grants = [f"localhost:{first.port}", f"127.0.0.1:{server.port}"]
            tools = web_tools(Names(a="127.0.0.1"), SystemClock())
            lab = ToolLab(tmp_path, tools, cage(root=tmp_path, net=grants))
            asked: list[tuple[str, int]] = []

            async def ask(host: str, port: int) -> bool:
                asked.append((host, port))
                return True

            args = {"url": f"http://localhost:{first.port}/"}
            for _ in range(2):
                found = await lab.call_with("web.fetch", args, ask_host=ask)
                assert (found["content"], found.get("cached")) == ("hello", None)
            assert asked == [("a.example", server.port)] * 2
            assert (await lab.refusal_with("web.fetch", args)).code == "capability_denied"


async def test_a_caller_without_a_cage_has_the_public_network_and_nothing_near(
    tmp_path: Path,
) -> None:
    async with Answering(PLAIN) as server:
        lab = ToolLab(tmp_path, web_tools(Names(a="127.0.0.1"), SystemClock()))
        for host in ("localhost", "127.0.0.1", "a.example"):
            refused = await lab.refusal("web.fetch", url=f"http://{host}:{server.port}/")
            assert refused.code == "capability_denied"
        assert (await lab.refusal("web.fetch", url="http://b.example/")).code == "web_unreachable"
        assert server.connections == 0
