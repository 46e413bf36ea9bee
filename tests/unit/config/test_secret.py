from __future__ import annotations

import copy
import json
import pickle

import pytest

from kaged.config import Secret


def test_a_secret_shows_in_no_kind_of_text() -> None:
    secret = Secret("hunter2")
    texts = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret:>20}",
        f"{[secret]}",
        "".join(map(str, [secret])),
    ]
    assert not any("hunter2" in text for text in texts)
    assert secret.reveal() == "hunter2"


def test_a_secret_is_not_written_by_serialisers() -> None:
    for write in (pickle.dumps, json.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            write(Secret("hunter2"))


def test_secrets_compare_by_value_and_hash_without_telling() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert Secret({"k": 1}) == Secret({"k": 1})
    assert hash(Secret("a")) == hash(Secret("b"))
    assert not Secret("")
    assert Secret("x")


def test_a_secret_has_no_attribute_that_a_dump_would_find() -> None:
    assert not hasattr(Secret("hunter2"), "__dict__")
    assert not hasattr(Secret("hunter2"), "value")
