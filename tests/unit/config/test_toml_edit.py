from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaged.base import JsonValue
from kaged.config import ConfigFileInvalid, EditRefused
from kaged.config.tomledit import TomlEdit

SAMPLE = """\
# my settings
[plugins]
enabled = [ "a", 'b' ]   # started

[plugins.capabilities]
rewind = ["exec"]        # careful

# secrets below
[plugins."@k/x"]
token = "t"
"""


def edited(path: tuple[str, ...], value: JsonValue, text: str = SAMPLE) -> str:
    edit = TomlEdit(text, "f.toml")
    edit.set(path, value)
    return edit.text


def test_setting_a_key_keeps_comments_order_and_the_rest() -> None:
    assert edited(("plugins", "enabled"), ["a"]) == SAMPLE.replace("[ \"a\", 'b' ]", '["a"]')
    assert edited(("plugins", "@k/x", "token"), "u") == SAMPLE.replace('"t"', '"u"')


def test_a_new_section_goes_behind_what_is_there() -> None:
    edit = TomlEdit(SAMPLE, "f.toml")
    edit.set(("plugins", "y", "installed"), "1.0.0")
    edit.set(("plugins", "y", "local"), True)
    assert edit.text.startswith(SAMPLE)
    assert edit.text[len(SAMPLE) :].strip() == '[plugins.y]\ninstalled = "1.0.0"\nlocal = true'


def test_deleting_a_section_takes_only_it_away() -> None:
    edit = TomlEdit(SAMPLE, "f.toml")
    edit.delete(("plugins", "@k/x"))
    edit.delete(("plugins", "@k/x"))
    edit.delete(("nothing", "here"))
    assert edit.text == SAMPLE.replace('[plugins."@k/x"]\ntoken = "t"\n', "")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("plugins", "enabled", "x"), 1),
        (("plugins", "new"), None),
        (("plugins", "new"), [1, {"a": None}]),
        ((), 1),
    ],
)
def test_what_toml_cannot_say_is_refused(path: tuple[str, ...], value: JsonValue) -> None:
    edit = TomlEdit(SAMPLE, "f.toml")
    with pytest.raises(EditRefused):
        edit.set(path, value)
    assert edit.text == SAMPLE


def test_values_can_be_read_back() -> None:
    edit = TomlEdit(SAMPLE, "f.toml")
    assert edit.get(("plugins", "enabled")) == ["a", "b"]
    for path in (("nope",), ("plugins", "enabled", "x")):
        with pytest.raises(KeyError):
            edit.get(path)


def test_a_broken_text_cannot_be_opened() -> None:
    with pytest.raises(ConfigFileInvalid):
        TomlEdit("a = 1\na = 2\n", "f.toml")


names = st.text("abcdef-_", min_size=1, max_size=4)
values = st.sampled_from(["1", '"text # no comment"', "'lit'", "[ 1,  2 ]", "true", "{ x = 1 }"])


@st.composite
def toml_texts(draw: st.DrawFn) -> str:
    lines = ["# head"]
    for name in draw(st.lists(names, min_size=1, max_size=3, unique=True)):
        lines += ["", f"[{name}]   # {name}"]
        for key in draw(st.lists(names, min_size=1, max_size=3, unique=True)):
            lines.append(f"{key}  =  {draw(values)}  # note {key}")
    return "\n".join(lines) + "\n# end\n"


new_values = st.one_of(
    st.booleans(),
    st.integers(-1000, 1000),
    st.text("ab\"'\\\n é#", max_size=6),
    st.lists(st.text("xyz", max_size=3), max_size=3),
)


@settings(deadline=None)
@given(toml_texts(), st.data(), new_values)
def test_editing_one_key_keeps_every_other_byte(
    text: str, data: st.DataObject, value: JsonValue
) -> None:
    table = data.draw(st.sampled_from(list(tomllib.loads(text))))
    key = data.draw(st.sampled_from(list(tomllib.loads(text)[table])))
    edit = TomlEdit(text, "f.toml")
    edit.set((table, key), value)
    assert edit.get((table, key)) == value
    # The one line of the key may differ, between its `=` and its comment; nothing else does.
    section = text.index(f"[{table}]   #")
    at = text.index(f"\n{key}  =  ", section) + len(f"\n{key}  =  ")
    note = text.index(f"  # note {key}", at)
    assert edit.text.startswith(text[:at])
    assert edit.text.endswith(text[note:])


AROUND = """\
# of mcp
[mcp.servers.a]
command = ["x"] # inside
text = '''
[daemon]
'''

# of a's cage
[mcp.servers.a.cage]
net = []

# of the daemon
[daemon]
bind = "off"
"""


@pytest.mark.parametrize("name", ["a", '"a b"', "'a.b'"])
def test_a_section_is_cut_out_and_what_is_around_it_stays(name: str) -> None:
    text = AROUND.replace("servers.a", f"servers.{name}").replace("[daemon]\n'''", "x\n'''")
    edit = TomlEdit(text, "f")
    edit.cut(("mcp", "servers", name.strip("\"'")))
    assert tomllib.loads(edit.text) == {"daemon": {"bind": "off"}}
    for comment in ("# of mcp\n", "# of the daemon\n[daemon]\n"):
        assert comment in edit.text
    assert "inside" not in edit.text


def test_a_cut_goes_by_what_the_text_says_and_not_by_what_it_looks_like() -> None:
    # A line of a text that looks like a header would let the daemon's section go or stay wrongly.
    with pytest.raises(EditRefused):
        TomlEdit(AROUND, "f").cut(("mcp", "servers", "a"))
    edit = TomlEdit("[mcp.servers]\na = { command = 'x' }\nb = { command = 'y' }\n", "f")
    edit.cut(("mcp", "servers", "a"))
    edit.cut(("mcp", "servers", "none"))
    assert tomllib.loads(edit.text) == {"mcp": {"servers": {"b": {"command": "y"}}}}


def test_the_second_of_two_sections_is_cut_and_the_first_stays() -> None:
    first = "[mcp.servers.a]\ncommand = ['x']\n"
    edit = TomlEdit(first + "# two\n[[mcp.servers.b.fs]]\nmode = 'ro'\n[mcp.servers.bb]\n", "f")
    edit.cut(("mcp", "servers", "b"))
    assert edit.text == first + "# two\n[mcp.servers.bb]\n"
