"""Mail from anybody on earth: whatever it holds, reading it ends in text or in a refusal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.services.errors import CapabilityInvalidInput
from kaged.services.providers.letters import Draft, describe_head, read_letter, write_letter
from kaged.services.providers.mailbox import FetchedMessage, Login, decode_name, encode_name, quoted


def fetched(raw: bytes) -> FetchedMessage:
    return FetchedMessage(1, len(raw), (), raw)


@given(st.binary(max_size=2000))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    shown = read_letter(fetched(raw), 1000)
    assert isinstance(shown["text"], str)
    assert len(shown["text"]) <= 1000


@given(st.text(max_size=60), st.sampled_from(["Subject", "From", "Date", "Content-Type"]))
def test_no_header_makes_a_second_line(text: str, name: str) -> None:
    raw = f"{name}: {text}\r\n\r\nx".encode("utf-8", "replace")
    shown = describe_head(fetched(raw))
    assert str(shown["subject"]).isprintable()
    assert str(shown["from"]).isprintable()


def test_a_message_of_a_thousand_parts_within_each_other_is_refused_or_read() -> None:
    raw = b"".join(
        b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (n, n)
        for n in range(3000)
    )
    try:
        read_letter(fetched(raw), 100)
    except CapabilityInvalidInput:
        return


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Type: text/plain; charset=nonsense",
        b"Content-Type: text/html; charset=utf-7",
        b"Content-Transfer-Encoding: base64",
        b"Subject: =?utf-8?b?////?= =?nonsense?q?x?=",
        b"Date: Fri, 99 Foo 99999 99:99:99 +9999",
    ],
)
def test_odd_headers_are_read_all_the_same(headers: bytes) -> None:
    assert read_letter(fetched(headers + b"\r\n\r\n<p>x"), 100)["uid"] == 1


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=50))
def test_folder_names_come_back_as_they_went(name: str) -> None:
    try:
        written = encode_name(name)
    except CapabilityInvalidInput:
        assert not name.isprintable()
        return
    assert written.isascii()
    assert decode_name(written) == name


@given(st.text(max_size=40))
def test_a_quoted_text_is_one_word_of_a_command(text: str) -> None:
    try:
        word = quoted(text)
    except CapabilityInvalidInput:
        return
    assert word[0] == word[-1] == '"'
    assert "\r" not in word
    assert "\n" not in word
    assert '"' not in word[1:-1].replace("\\\\", "").replace('\\"', "")


@given(st.text(max_size=80), st.text(max_size=80), st.text(max_size=200))
def test_a_letter_has_the_headers_we_wrote_and_no_others(to: str, subject: str, text: str) -> None:
    try:
        letter = write_letter(
            Draft((to,), subject, text), "ann@example.org", now_ms=1_700_000_000_000, key=None
        )
    except CapabilityInvalidInput:
        return
    raw = letter.as_bytes().decode("ascii", "replace")
    head = raw.partition("\r\n\r\n")[0]
    names = {
        line.partition(":")[0] for line in head.split("\r\n") if not line.startswith((" ", "\t"))
    }
    assert names <= {
        *("From", "To", "Subject", "Date", "Message-ID", "MIME-Version"),
        *("Content-Type", "Content-Transfer-Encoding"),
    }


def test_a_login_never_shows_its_secret() -> None:
    assert "hunter2" not in repr(Login("ann", "hunter2", "hunter2"))
