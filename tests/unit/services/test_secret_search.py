"""Known secrets are found however a service writes them, and ordinary texts are left alone."""

from __future__ import annotations

import html
import json
import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encodings_of_secrets import encodings
from kaged.services.sanitize import OutputRefused, harden
from kaged.services.secret_search import WITHHELD, CallSecrets, SecretForms
from requirements import requirement

SECRETS = (
    "ya29.a0AfH6SMBx_k3-Zq9w8e7r6t5y4u3i2o1p0aQWErtyUIOPasdfGHJklzxCVbnm",
    'rt/9f8e+7d6c"5b4a\\3928<Q&W>',
    "correct horse battery",
    "hunter2",
    "s3cr3t",
    "Pässwörter-2026",
    "ÉcoleDÉté-Ñandú!",
    "100%de&x<y",
    "xb&&\\;",
    "a%2Fb%41c&amp;d",
    "x\\u0041bc-1138",
)
NAMES = list(encodings("any secret"))


def known(*texts: str) -> CallSecrets:
    return CallSecrets(SecretForms.of(texts))


def test_there_are_forty_encodings_and_more() -> None:
    assert len(NAMES) >= 40


@requirement("SC-SEC-04")
@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("name", NAMES)
def test_a_secret_is_found_in_an_output_and_in_an_error(secret: str, name: str) -> None:
    written = encodings(secret)[name]
    for output in ({"note": f"see {written}, please"}, {"rows": [{written: 1}]}):
        with pytest.raises(OutputRefused):
            harden(output, secrets=known("another-one-0815", secret))
    said = known(secret).scrub(f"the service said: {written}!")
    assert written not in said
    assert not known(secret).found_in_text(said)


ALPHABETS = (
    string.ascii_letters + string.digits,
    string.ascii_letters + "0123456789+/=-_. ",
    string.ascii_letters + "!\"$'()*,:;<>?@[]^`{|}~",
    "äöüÄÖÜßéÉñÑçøåabcDEF 中文😀",
)
OUTER: tuple[Callable[[str], str], ...] = (
    lambda text: text,
    lambda text: json.dumps({"inner": text}),
    lambda text: quote(text, safe=""),
    html.escape,
)


@requirement("SC-SEC-04")
@given(
    secret=st.sampled_from(ALPHABETS)
    .flatmap(lambda letters: st.text(letters, min_size=6, max_size=48))
    .filter(lambda text: text == text.strip()),
    outer=st.sampled_from(OUTER),
    plain=st.booleans(),
)
def test_any_secret_is_found_in_any_encoding_within_another(
    secret: str, outer: Callable[[str], str], plain: bool
) -> None:
    secrets = known("another-one-0815", secret)
    for name, written in encodings(secret).items():
        text = json.dumps({"x": f"before {outer(written)} after"}, ensure_ascii=plain)
        assert secrets.found_in(text.encode()), (name, text)


def test_a_line_of_mail_that_begins_like_an_escape_is_none() -> None:
    """JSON in JSON has two backslashes before each break, and an `x` may come right after it."""
    secret = "x5fab0815-x5fab1138"
    text = json.dumps({"x": json.dumps({"y": "\n".join((secret[:10], secret[10:]))})})
    assert "\\\\nx5f" in text
    assert known(secret).found_in(text.encode())


def test_the_second_secret_is_found_and_one_that_is_learned_later() -> None:
    secrets = known("first-secret", "second-secret")
    assert secrets.found_in_text("a SECOND-secret")
    assert not secrets.found_in_text("third-secret")
    secrets.learn("third-secret")
    assert secrets.found_in_text("third-secret")
    assert secrets.found_in_text("first-secret")


def test_an_error_keeps_its_words_around_a_plain_secret() -> None:
    secrets = known("rt-0123456789abcdef")
    said = secrets.scrub("token RT-0123456789ABCDEF is over; and rt-0123456789abcdef too")
    assert said == "token [redacted] is over; and [redacted] too"
    assert secrets.scrub("token %72t-0123456789abcdef is over") == WITHHELD
    assert secrets.scrub("nothing here") == "nothing here"


def test_a_secret_is_taken_out_before_an_error_is_cut() -> None:
    secret = "rt-" + "0123456789abcdef" * 8
    said = known(secret).scrub("x" * 250 + " " + secret)
    assert said.endswith("[redacted]")
    assert "rt-0123" not in said


def test_a_secret_of_which_folding_leaves_nothing_is_found_as_it_is() -> None:
    secret = "\\\\\\\\\\ab"
    assert known(secret).found_in_text(secret.encode().hex())
    assert known(secret).found_in(msgspec.json.encode({"x": f"a{secret}b"}))
    assert not known(secret).found_in(msgspec.json.encode({"x": "ab"}))


def test_what_is_too_short_to_be_told_from_words_is_not_looked_for() -> None:
    assert not known("abcde").found_in_text("abcde")


def ordinary(seed: int) -> dict[str, Any]:
    """Return an output as mailboxes, calendars and APIs give them, with links, ids and markup."""
    draw = random.Random(seed)
    words = [
        "the",
        "a",
        "meeting",
        "invoice",
        "project",
        "report",
        "battery",
        "station",
        "horse",
        "secret",
        "password",
        "token",
        "hunter",
        "Monday",
        "lunch",
        "budget",
        "review",
        "please",
        "regards",
        "Grüße",
        "thanks",
        "draft",
        "final",
        "version",
        "update",
    ]

    def text(count: int) -> str:
        return " ".join(draw.choices(words, k=count))

    def opaque(size: int) -> str:
        return "".join(draw.choices(f"{string.ascii_letters}{string.digits}-_", k=size))

    rows = [
        {
            "id": opaque(16),
            "subject": text(6),
            "from": f"{draw.choice(words)}@example.org",
            "body": "\n".join(text(12) for _ in range(4)) + f"\n<p>{text(3)} &amp; {text(2)}</p>",
            "link": f"https://x.example/e?id={opaque(40)}&q={text(2).replace(' ', '%20')}",
            "attachment": opaque(200),
            "etag": f'"{draw.getrandbits(64):x}"',
            "raw": json.dumps({"path": f"C:\\new\\{draw.choice(words)}", "n": draw.random()}),
        }
        for _ in range(draw.randint(1, 60))
    ]
    return {"messages": rows, "next_page_token": opaque(24)}


def test_ordinary_outputs_are_not_refused() -> None:
    """Mailboxes, and the pages of this repository: at most 1 % may be taken for a leak."""
    secrets = known(*SECRETS)
    root = Path(__file__).parents[3]
    pages = [*root.glob("docs/**/*.md"), *root.glob("src/**/*.py"), *root.glob("changes/*.md")]
    outputs = [ordinary(seed) for seed in range(300)]
    outputs += [{"text": one.read_text(encoding="utf-8")} for one in pages]
    refused = 0
    for output in outputs:
        try:
            harden(output, secrets=secrets)
        except OutputRefused:
            refused += 1
    assert len(outputs) > 800
    assert refused <= len(outputs) // 100, refused
