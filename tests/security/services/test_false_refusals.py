"""How often outputs are refused that hold no secret: measured on texts that people wrote.

The texts are the modules of Python's standard library and the pages of this project, as outputs of
a service that knows 140 secrets of seven kinds, weak ones among them.
"""

from __future__ import annotations

import random
import string
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from kaged.services.sanitize import OutputRefused, harden
from kaged.services.secret_search import CallSecrets

ROOT = Path(__file__).parents[3]
LETTERS = string.ascii_letters + string.digits
WORDS = [
    *("summer", "winter", "orange", "monday", "castle", "dragon", "purple", "silver", "coffee"),
    *("garden", "river", "sunshine", "football", "princess", "shadow", "flower", "guitar"),
]
TEXTS_AT_LEAST = 500
LIMIT = 0.01


def texts() -> Iterator[tuple[str, str]]:
    library = Path(sysconfig.get_path("stdlib"))
    places = [*library.glob("*.py"), *library.glob("*/*.py"), *ROOT.glob("docs/**/*.md")]
    for path in sorted(places):
        if path.stat().st_size < 200_000 and "site-packages" not in path.parts:
            yield str(path), path.read_text(encoding="utf-8", errors="replace")


def secrets() -> dict[str, list[str]]:
    """Return twenty secrets of each kind, always the same."""
    draw = random.Random(1138)

    def made(alphabet: str, size: int) -> list[str]:
        return ["".join(draw.choices(alphabet, k=size)) for _ in range(20)]

    return {
        "token": made(LETTERS, 40),
        "app password": made(string.ascii_lowercase, 16),
        "random": made(LETTERS + "!$%&+/-_", 8),
        "short": made(LETTERS, 6),
        "pin": made(string.digits, 6),
        "word and digits": [
            f"{draw.choice(WORDS).title()}{draw.randrange(100, 2030)}" for _ in "x" * 20
        ],
        "phrase": [" ".join(draw.sample(WORDS, 4)) for _ in "x" * 20],
    }


def test_fewer_than_one_in_a_hundred_texts_is_refused_without_a_secret_in_it() -> None:
    known = CallSecrets()
    planted = [one for kind in secrets().values() for one in kind]
    known.learn(*planted)
    looked, refused = 0, list[str]()
    for name, text in texts():
        looked += 1
        try:
            harden({"text": text}, secrets=known)
        except OutputRefused as error:
            if not any(one.lower() in text.lower() for one in planted):
                refused.append(f"{name}: {error.rule}")
    assert looked >= TEXTS_AT_LEAST
    assert len(refused) <= looked * LIMIT, refused


@pytest.mark.parametrize("kind", secrets())
def test_the_same_texts_are_refused_with_one_in_it(kind: str) -> None:
    """What makes the measurement mean something."""
    known = CallSecrets()
    known.learn(*secrets()[kind])
    [(_, text), *_] = texts()
    for one in secrets()[kind]:
        with pytest.raises(OutputRefused):
            harden({"text": text.replace(" ", f" {one.upper()} ", 1)}, secrets=known)
