"""What a front end may say about the person and the chat it asks for, and who may say it."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from kaged.base import ManualClock
from kaged.config.coresections import AuthMode
from kaged.config.token_file import TokenFile, read_token
from kaged.kernel.identity import Actor, PersonFacts, VouchedBy
from kaged.serve.http.access import AccessRequest, AccessRules, Credentials, require_actor
from kaged.serve.http.connection import PeerConnection
from kaged.serve.http.credentials import CookieSessions
from raising import raises_code

UID = 1000
RULES = AccessRules(
    AuthMode.SECURE, UID, "ada", trusted_proxies=(ipaddress.ip_network("10.0.0.0/8"),)
)


class Listener:
    """Lets requests in that carry the operator's bearer token."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        import os

        path = folder / "token"
        self._credentials = Credentials(TokenFile.open(path, os.getuid()), CookieSessions(clock))
        self._bearer = f"Bearer {read_token(path, os.getuid())}".encode()

    def knock(self, address: str = "10.1.2.3", **said: str) -> Actor:
        headers = [(b"host", b"127.0.0.1:7777"), (b"authorization", self._bearer)]
        headers += [
            (f"x-kaged-{name.replace('_', '-')}".encode(), value.encode("latin-1"))
            for name, value in said.items()
        ]
        knock = AccessRequest("POST", "/api/v1/x", headers, PeerConnection("tcp", address=address))
        return require_actor(RULES, self._credentials, knock)


@pytest.fixture
def early_app(tmp_path: Path, clock: ManualClock) -> Listener:
    return Listener(tmp_path, clock)


def test_a_trusted_front_end_names_person_and_chat(early_app: Listener) -> None:
    caller = early_app.knock(user_id="ann", chat_type="Group", chat_id="-100:7")
    assert caller == Actor(
        "ann",
        VouchedBy.BEARER,
        "group",
        "-100:7",
        "10.0.0.0/8",
        is_person=True,
        facts=PersonFacts("ann"),
    )
    assert (caller.chat, caller.if_known) == ("10.0.0.0/8 -100:7", caller)


def test_without_a_chat_there_is_none(early_app: Listener) -> None:
    assert early_app.knock(user_id="ann") == Actor(
        "ann",
        VouchedBy.BEARER,
        provider="10.0.0.0/8",
        is_person=True,
        facts=PersonFacts("ann"),
    )


def test_a_front_end_with_a_name_has_people_and_chats_of_its_own(early_app: Listener) -> None:
    caller = early_app.knock(user_id="ann", chat_type="group", chat_id="7", front_end="matrix")
    assert (caller.person_id, caller.provider) == ("from:matrix:ann", "matrix")
    assert caller.chat == "matrix 7"
    assert caller.facts == PersonFacts("from:matrix:ann")


@pytest.mark.parametrize("name", ["kaged", "Matrix", "9x", "a b", "a" * 33, "10.0.0.0/8"])
def test_a_front_ends_name_that_is_none_is_refused(early_app: Listener, name: str) -> None:
    with raises_code("access_denied"):
        early_app.knock(user_id="ann", front_end=name)


@pytest.mark.parametrize("user_id", ["from:matrix:ann", "service:x", "team:a:b"])
def test_nobody_is_named_as_somebody_of_another_kind(early_app: Listener, user_id: str) -> None:
    for front_end in ("", "matrix"):
        with raises_code("access_denied"):
            early_app.knock(user_id=user_id, front_end=front_end)


def test_an_id_that_is_too_long_with_its_front_end_is_refused(early_app: Listener) -> None:
    assert early_app.knock(user_id="a" * 128).person_id == "a" * 128
    with raises_code("access_denied"):
        early_app.knock(user_id="a" * 128, front_end="matrix")


def test_chat_headers_without_a_person_are_the_operators_own_request(early_app: Listener) -> None:
    caller = early_app.knock(chat_type="group", chat_id="7")
    assert caller == Actor("ada", VouchedBy.BEARER, "private", None, "kaged")


@pytest.mark.parametrize("address", ["127.0.0.1", "11.0.0.1", "::1"])
def test_the_same_headers_from_anywhere_else_change_nothing(
    early_app: Listener, address: str
) -> None:
    caller = early_app.knock(address, user_id="ann", chat_type="private", chat_id="7")
    assert caller == Actor.operator("ada", VouchedBy.BEARER)


@pytest.mark.parametrize(
    "said",
    [
        {"user_id": "ann bob"},
        {"user_id": ""},
        {"user_id": "ann", "chat_type": "pri vate"},
        {"user_id": "ann", "chat_type": "x" * 33},
        {"user_id": "ann", "chat_id": "a b"},
        {"user_id": "ann", "chat_id": "x" * 129},
        {"user_id": "ann", "chat_id": "ä"},
    ],
)
def test_what_is_no_id_is_refused(early_app: Listener, said: dict[str, str]) -> None:
    with raises_code("access_denied"):
        early_app.knock(**said)


def test_nobody_acts_for_anybody_in_insecure_mode() -> None:
    assert Actor.operator(None, VouchedBy.INSECURE).if_known is None
    assert Actor.operator(None, VouchedBy.UNIX).if_known is None
