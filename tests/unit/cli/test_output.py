"""One result, three forms; and nothing that comes from outside speaks to the terminal."""

from __future__ import annotations

import io
import json

import pytest

from kaged.base import KagedError
from kaged.cli.output import Output, error_json, harmless, one_line


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _output(*, as_json: bool = False, terminal: bool = False) -> tuple[Output, io.StringIO]:
    stream = _Terminal() if terminal else io.StringIO()
    return Output(as_json=as_json, stdout=stream, stderr=stream), stream


ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202eevil"


def test_escapes_and_direction_marks_are_spelt_out() -> None:
    shown = harmless(ATTACK)
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in shown)
    assert "\u202e" not in shown
    assert "evil" in shown


def test_a_cell_is_one_line_without_tabs() -> None:
    assert one_line("a\tb\nc\u2028d") == "a b c d"


@pytest.mark.parametrize("terminal", [False, True])
def test_no_form_lets_an_escape_through(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    output, stream = _output(terminal=terminal)
    output.line(ATTACK)
    output.note(ATTACK)
    output.table(["a"], [[ATTACK], ["[bold red]x[/]"]])
    output.fields({"k": ATTACK})
    output.error("code", ATTACK, ATTACK, {})
    assert "\x1b" not in stream.getvalue()
    assert "\x07" not in stream.getvalue()
    assert "[bold red]x[/]" in stream.getvalue()


def test_json_is_pure_ascii_and_the_only_thing_on_the_stream() -> None:
    output, stream = _output(as_json=True)
    output.result({"x": ATTACK, "é": 1})
    output.line("not this")
    output.table(["a"], [["nor this"]])
    output.fields({"nor": "this"})
    assert json.loads(stream.getvalue()) == {"x": ATTACK, "é": 1}
    assert stream.getvalue().isascii()
    assert "\x1b" not in stream.getvalue()


def test_a_pipe_gets_tab_separated_lines_without_a_head() -> None:
    output, stream = _output()
    output.table(["name", "state"], [["a\tb", None], ["c", 5]])
    assert stream.getvalue() == "a b\t\nc\t5\n"


def test_a_terminal_gets_a_table_with_a_head() -> None:
    output, stream = _output(terminal=True)
    output.table(["name"], [["sample"]])
    assert "name" in stream.getvalue()
    assert "sample" in stream.getvalue()


def test_no_color_means_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    output, stream = _output(terminal=True)
    output.table(["status"], [["fail"]])
    output.error("x", "message", None, {})
    assert "\x1b[31m" not in stream.getvalue()


def test_an_error_shows_code_and_fix() -> None:
    output, stream = _output()
    output.error("port_in_use", "Taken.", "Choose another.", {})
    assert stream.getvalue() == "error: Taken. [port_in_use]\n  fix: Choose another.\n"


def test_an_error_as_json_has_the_daemons_shape() -> None:
    output, stream = _output(as_json=True)
    error = KagedError("No.", fix="Do that.", pid=5)
    output.error(error.code, error.message, error.fix, error_json(error))
    assert json.loads(stream.getvalue()) == {
        "error": {
            "code": "internal",
            "message": "No.",
            "data": {"pid": 5, "fix": "Do that."},
            "request_id": None,
        }
    }
