"""`SKILL.md` files as people write them: read, warned about, or refused with line and reason."""

from __future__ import annotations

import pytest

from kaged.config.providers import SkillSection
from kaged.config.skill_file import SkillFileInvalid, SkillMetadata, parse_skill_file
from kaged.config.skill_settings import policy_of_skill, skill_env
from kaged.kernel.skill_policy import decide_skill_use


def refusal(text: str, name: str = "mail") -> tuple[int | None, str]:
    with pytest.raises(SkillFileInvalid) as caught:
        parse_skill_file(text, name)
    first = caught.value.problems[0]
    return first.line, first.message


def test_a_skill_is_read_with_its_instructions_and_unknown_keys_are_kept() -> None:
    text = (
        "---\nname: mail\ndescription: >\n  Reads\n  mail.\nlicense: MIT\n"
        "allowed-tools: Bash Read\n"
        "metadata: {author: ann, version: '1.0'}\ncapabilities: [gog.email]\n---\n\n# Mail\n\nGo.\n"
    )
    found = parse_skill_file(text, "mail")
    assert found.description == "Reads mail."
    assert found.instructions == "# Mail\n\nGo."
    assert found.front["metadata"] == {"author": "ann", "version": "1.0"}
    assert found.front["allowed-tools"] == "Bash Read"
    assert [one.text for one in found.metadata.capabilities or ()] == ["gog.email"]
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("# No front\n", 1, "no front matter"),
        ("---\nname: mail\n", 1, "no end"),
        ("---\n---\nText\n", 2, "empty"),
        ("---\n- a\n- b\n---\n", 2, "not a map"),
        ("---\nname: mail\n---\n", None, "description is missing"),
        ("---\nname: mail\ndescription: ''\n---\n", 3, "must be a text"),
        ("---\ndescription: [a]\n---\n", 2, "must be a text"),
        ("---\ndescription: a\nfoo: [1\n---\n", 3, "not valid YAML"),
        ("---\ndescription: a\ndescription: b\n---\n", 3, "twice"),
        ("---\ndescription: a\naccess: {users: [x]}\n---\n", 3, "chat_types only"),
        ("---\ndescription: a\n\nsensitive: perhaps\n---\n", 4, "true or false"),
        ("---\ndescription: a\ncapabilities: [gog.email, email]\n---\n", 3, "not a capability id"),
        ("---\ndescription: a\ncapabilities: gog.email\n---\n", 3, "must be a list"),
        ("---\ndescription: a\ncapabilities: [gog.email, {id: x}]\n---\n", 3, "not a capability"),
        ("---\ndescription: a\nfoo: [1, 2\nbar: *x\n---\n", 4, "not valid YAML"),
        ('---\ndescription: "half \\ud83d of it"\n---\n', 2, "half a character"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_its_line(
    text: str, line: int | None, words: str
) -> None:
    found_line, message = refusal(text)
    assert words in message
    assert found_line == line


def test_a_folder_name_that_no_skill_can_have_is_refused() -> None:
    for name in ("a b", "../x", "-x", "x" * 65, ""):
        assert "name" in refusal("---\ndescription: a\n---\n", name)[1]


def test_what_published_skills_get_wrong_is_a_warning() -> None:
    text = f"---\nname: Mail Skill\ndescription: Use it when: mail comes. {'x' * 1100}\n---\nGo.\n"
    found = parse_skill_file(text, "mail")
    assert found.name == "mail"
    assert found.description.startswith("Use it when: mail comes.")
    said = [(one.line, one.message) for one in found.warnings]
    assert [line for line, _ in said] == [3, 3, 2]
    assert "quoted" in said[0][1]
    assert "characters" in said[1][1]
    assert "folder" in said[2][1]
    bare = parse_skill_file("---\r\ndescription: a\r\n---\r\nGo.\r\n", "mail")
    assert [one.message for one in bare.warnings] == ["name is missing; the folder's is used"]


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("argument-hint: [what] [where]", "argument-hint", "[what] [where]"),
        ("argument-hint: [day:YYYY] <who>", "argument-hint", "[day:YYYY] <who>"),
        ("note: **Bold** words", "note", "**Bold** words"),
        ("owner: @somebody", "owner", "@somebody"),
        ("run: `make all`", "run", "`make all`"),
    ],
)
def test_a_value_that_yaml_keeps_to_itself_is_read_as_text(line: str, key: str, value: str) -> None:
    found = parse_skill_file(f"---\nname: mail\ndescription: a\n{line}\n---\n", "mail")
    assert found.front[key] == value
    assert [(one.line, "quoted" in one.message) for one in found.warnings] == [(4, True)]


def test_characters_in_two_halves_are_one_as_in_json() -> None:
    text = '---\nname: mail\ndescription: a\nmetadata: {"emoji": "\\ud83d\\udcb0!"}\n---\n'
    found = parse_skill_file(text, "mail")
    assert found.front["metadata"] == {"emoji": "\U0001f4b0!"}
    assert found.warnings == ()


@pytest.mark.parametrize("value", ["[web-search, code]", "[{id: a.b, description: c}]", "{a: b}"])
def test_capabilities_of_other_hosts_are_kept_and_give_nothing(value: str) -> None:
    found = parse_skill_file(
        f"---\nname: mail\ndescription: a\ncapabilities: {value}\n---\n", "mail"
    )
    assert found.metadata.capabilities is None
    assert found.front["capabilities"]
    [warning] = found.warnings
    assert (warning.line, "ignored" in warning.message) == (4, True)


def test_a_secret_variable_is_not_given_and_the_author_is_told() -> None:
    text = "---\nname: mail\ndescription: a\nenv: [MAIL_API_KEY, EDITOR]\n---\n"
    found = parse_skill_file(text, "mail")
    [warning] = found.warnings
    assert (warning.line, warning.fix) == (4, "use a capability: the host keeps the credential")
    assert "MAIL_API_KEY" in warning.message
    assert "EDITOR" not in warning.message
    assert found.metadata.ignored == ("env",)


def test_an_unquoted_colon_does_not_hide_another_mistake() -> None:
    assert refusal("---\ndescription: Use it: so\nfoo: [1\n---\n")[0] in {2, 3}


def test_the_operators_settings_count_before_the_skills_own_file() -> None:
    settings = {
        "defaults": SkillSection(allow_chat_ids=("c-1",)),
        "free": SkillSection(allow_chat_ids=()),
        "off": SkillSection(enabled=False),
        "zone": SkillSection(extras={"time-zone": "UTC", "limit": 3}),
    }
    mail = policy_of_skill(SkillMetadata("mail", sensitive=True), settings)
    assert decide_skill_use(mail, "private", "c-1").allowed
    assert decide_skill_use(mail, "Private", "c-1").allowed
    assert not decide_skill_use(mail, "private", "c-2").allowed
    assert not decide_skill_use(mail, "group", "c-1").allowed
    assert not decide_skill_use(mail, None, "c-1").allowed
    assert not decide_skill_use(mail, "private", None).allowed
    free = policy_of_skill(SkillMetadata("free"), settings)
    assert decide_skill_use(free, None, None).allowed
    assert not decide_skill_use(policy_of_skill(SkillMetadata("off"), settings), "x", "c-1").allowed
    assert skill_env("zone", settings) == {"TIME_ZONE": "UTC", "LIMIT": "3"}
    assert skill_env("other", settings) == {}
