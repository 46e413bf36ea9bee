from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kaged.cage.net.dial import Dialler, NotDialled
from kaged.cage.net.handshake import ProxyOutcome
from kaged.cage.net.limits import GateLimits
from kaged.kernel.net import parse_target

METADATA = "169.254.169.254"


class Table:
    """A resolver that answers from a table and remembers the questions."""

    def __init__(self, **answers: Sequence[str]) -> None:
        self.answers = {key.replace("_", "."): value for key, value in answers.items()}
        self.asked = list[str]()

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.answers:
            raise OSError("no such name")
        return self.answers[host]


async def dial(table: Table, grants: list[str], host: str, port: int) -> NotDialled:
    targets = tuple(parse_target(text) for text in grants)
    found = await Dialler(targets, table, GateLimits(resolve_s=5)).dial(host, port)
    assert isinstance(found, NotDialled)
    return found


@pytest.mark.parametrize(
    "host", ["evil.test", "evilapi.test", "api.test.evil.test", "test", "9.9.9.9"]
)
async def test_an_ungranted_host_is_denied_before_any_lookup(host: str) -> None:
    table = Table(evil_test=["9.9.9.9"])
    found = await dial(table, ["api.test:443"], host, 443)
    assert (found.outcome, found.rule) == (ProxyOutcome.DENIED, "net.host")
    assert table.asked == []


@pytest.mark.parametrize(
    "host",
    [
        "0x7f.1",
        "2130706433",
        "127.1",
        "0177.0.0.1",
        "0x7f000001",
        "127.0.0.1.",
        "a b",
        "",
        "[::1",
        "a" * 300,
    ],
)
async def test_what_is_no_host_is_denied_even_when_everything_is_granted(host: str) -> None:
    table = Table()
    found = await dial(table, ["*"], host, 80)
    assert found.outcome is ProxyOutcome.DENIED
    assert table.asked == []


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.0.9",
        METADATA,
        "10.0.0.5",
        "192.168.1.1",
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "::1",
        "::",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "fe80::1",
        "fd00:ec2::254",
    ],
)
@pytest.mark.parametrize("grants", [["api.test:443"], ["api.test:*"], ["*"]])
async def test_a_name_that_leads_to_a_special_address_is_denied(
    address: str, grants: list[str]
) -> None:
    found = await dial(Table(api_test=[address]), grants, "api.test", 443)
    assert (found.outcome, found.rule) == (ProxyOutcome.DENIED, "net.address")


@pytest.mark.parametrize("answer", ["fe80::1%eth0", "not an address", ""])
async def test_what_a_resolver_answers_must_be_an_address(answer: str) -> None:
    found = await dial(Table(api_test=[answer]), ["*"], "api.test", 443)
    assert found.outcome is ProxyOutcome.UNKNOWN_HOST


async def test_localhost_is_never_looked_up_and_never_covered_by_everything() -> None:
    table = Table(localhost=["9.9.9.9"])
    found = await dial(table, ["*"], "localhost", 80)
    assert found.outcome is ProxyOutcome.DENIED
    assert table.asked == []


async def test_a_name_nobody_knows_is_unknown() -> None:
    assert (
        await dial(Table(), ["api.test:443"], "api.test", 443)
    ).outcome is ProxyOutcome.UNKNOWN_HOST
    empty = Table(api_test=[])
    assert (
        await dial(empty, ["api.test:443"], "api.test", 443)
    ).outcome is ProxyOutcome.UNKNOWN_HOST


async def test_a_lookup_that_hangs_is_given_up_and_frees_its_place() -> None:
    class Hanging:
        async def resolve(self, host: str, port: int) -> Sequence[str]:
            await asyncio.Event().wait()
            return []

    dialler = Dialler(
        (parse_target("api.test:443"),), Hanging(), GateLimits(resolve_s=0.01, lookups=1)
    )
    both = await asyncio.gather(dialler.dial("api.test", 443), dialler.dial("api.test", 443))
    assert [one.outcome for one in both if isinstance(one, NotDialled)] == [
        ProxyOutcome.TIMED_OUT
    ] * 2


async def test_lookups_of_one_cage_wait_for_each_other_beyond_the_limit() -> None:
    running = most = 0

    class Counting:
        async def resolve(self, host: str, port: int) -> Sequence[str]:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return []

    dialler = Dialler((parse_target("*"),), Counting(), GateLimits(lookups=3))
    await asyncio.gather(*(dialler.dial(f"h{number}.test", 1) for number in range(20)))
    assert most == 3
