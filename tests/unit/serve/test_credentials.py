"""Token file, launch tokens and browser sessions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kaged.base import ManualClock
from kaged.config.token_file import TokenFile, read_token, write_secret
from kaged.serve.http.credentials import (
    MAX_COOKIE_SESSIONS,
    MAX_LAUNCH_TOKENS,
    CookieSessions,
    LaunchTokens,
)
from raising import raises_code

UID = os.getuid()


def test_a_missing_token_file_is_made_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "token"
    opened = TokenFile.open(path, UID)
    assert path.stat().st_mode & 0o777 == 0o600
    assert opened.matches(read_token(path, UID))
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]


def test_the_token_survives_a_restart(tmp_path: Path) -> None:
    TokenFile.open(tmp_path / "token", UID)
    token = read_token(tmp_path / "token", UID)
    assert TokenFile.open(tmp_path / "token", UID).matches(token)


def test_rotating_ends_the_old_token_at_once(tmp_path: Path) -> None:
    opened = TokenFile.open(tmp_path / "token", UID)
    old = read_token(opened.path, UID)
    new = opened.rotate()
    assert opened.matches(new)
    assert not opened.matches(old)
    assert read_token(opened.path, UID) == new
    assert opened.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_token_that_others_can_read_is_not_used(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    TokenFile.open(path, UID)
    path.chmod(mode)
    with raises_code("token_file_unusable") as caught:
        TokenFile.open(path, UID)
    assert "chmod 600" in (caught.value.fix or "")


def test_a_token_of_someone_else_is_not_used(tmp_path: Path) -> None:
    TokenFile.open(tmp_path / "token", UID)
    with raises_code("token_file_unusable"):
        TokenFile.open(tmp_path / "token", UID + 1)


def test_a_link_in_place_of_the_token_is_not_followed(tmp_path: Path) -> None:
    write_secret(tmp_path / "other", "x" * 40)
    (tmp_path / "token").symlink_to(tmp_path / "other")
    with raises_code("token_file_unusable"):
        TokenFile.open(tmp_path / "token", UID)


def test_a_dangling_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "token").symlink_to(tmp_path / "elsewhere")
    with raises_code("token_file_unusable"):
        TokenFile.open(tmp_path / "token", UID)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 40, b"a" * 600, b"a\x00" * 20])
def test_a_file_without_a_usable_token_is_not_used(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(0o600)
    with raises_code("token_file_unusable"):
        TokenFile.open(path, UID)


def test_a_folder_or_pipe_in_place_of_the_token_neither_works_nor_hangs(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(mode=0o700)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("folder", "pipe"):
        with raises_code("token_file_unusable"):
            TokenFile.open(tmp_path / name, UID)


def test_a_token_file_that_cannot_be_made_says_where(tmp_path: Path) -> None:
    with raises_code("token_file_unusable") as caught:
        TokenFile.open(tmp_path / "missing" / "token", UID)
    assert caught.value.data["path"] == str(tmp_path / "missing" / "token")


def test_a_failed_write_leaves_the_old_token_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = TokenFile.open(tmp_path / "token", UID)
    token = read_token(opened.path, UID)

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with raises_code("token_file_unusable", match="No space left"):
        opened.rotate()
    assert opened.matches(token)
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]


def test_a_launch_token_works_once(clock: ManualClock) -> None:
    tokens = LaunchTokens(clock)
    token = tokens.issue().value
    tokens.redeem(token)
    with raises_code("launch_token_invalid"):
        tokens.redeem(token)


def test_a_launch_token_works_for_a_minute(clock: ManualClock) -> None:
    tokens = LaunchTokens(clock)
    early, late = tokens.issue().value, tokens.issue().value
    clock.advance(59.9)
    tokens.redeem(early)
    clock.advance(0.1)
    with raises_code("launch_token_invalid"):
        tokens.redeem(late)


def test_wall_time_jumping_back_does_not_prolong_a_launch_token(clock: ManualClock) -> None:
    tokens = LaunchTokens(clock)
    token = tokens.issue().value
    clock.advance(61)
    clock.set_wall(0)
    with raises_code("launch_token_invalid"):
        tokens.redeem(token)


def test_used_expired_and_made_up_tokens_cannot_be_told_apart(clock: ManualClock) -> None:
    tokens = LaunchTokens(clock)
    used, expired = tokens.issue().value, tokens.issue().value
    tokens.redeem(used)
    clock.advance(61)
    answers: set[str] = set()
    for value in (used, expired, "made-up", "", "\udcff"):
        with raises_code("launch_token_invalid") as caught:
            tokens.redeem(value)
        answers.add(str(caught.value))
    assert len(answers) == 1


def test_launch_tokens_and_sessions_stay_few(clock: ManualClock) -> None:
    tokens, sessions = LaunchTokens(clock), CookieSessions(clock)
    first_token = tokens.issue().value
    first_session = sessions.open()
    for _ in range(MAX_LAUNCH_TOKENS):
        tokens.issue()
    for _ in range(MAX_COOKIE_SESSIONS):
        sessions.open()
    with raises_code("launch_token_invalid"):
        tokens.redeem(first_token)
    assert not sessions.valid(first_session)


def test_secrets_are_not_kept_in_clear(clock: ManualClock) -> None:
    tokens, sessions = LaunchTokens(clock), CookieSessions(clock)
    token, session = tokens.issue().value, sessions.open()
    assert token not in repr(vars(tokens))
    assert session not in repr(vars(sessions))


def test_closing_all_ends_every_session(clock: ManualClock) -> None:
    sessions = CookieSessions(clock)
    values = [sessions.open() for _ in range(3)]
    sessions.close_all()
    assert not any(sessions.valid(value) for value in values)
