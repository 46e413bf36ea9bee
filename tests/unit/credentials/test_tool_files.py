"""Files of tools with a placeholder: their text, and that Git and npm could read it."""

from __future__ import annotations

import configparser

from kaged.config.credentials_section import (
    CredentialFile,
    CredentialSection,
    CredentialShown,
    parse_destination,
)
from kaged.credentials.tool_files import INSIDE, ShownCredential, tool_files

MARK, OTHER = "kgd_" + "a" * 32, "kgd_" + "b" * 32


def shown(kind: CredentialFile, *hosts: str, mark: str = MARK, **more: object) -> ShownCredential:
    section = CredentialSection(
        hosts=tuple(map(parse_destination, hosts)),
        shown=CredentialShown(files=(kind,)),
        **more,  # type: ignore[arg-type]
    )
    return ShownCredential(section, mark)


def text(*held: ShownCredential) -> str:
    files, _ = tool_files(held, scratch_home=False)
    (file,) = files
    return file.content.decode()


def test_two_credentials_share_one_file_of_a_kind() -> None:
    netrc = text(
        shown(CredentialFile.NETRC, "a.example", "a.example:8443", user="ann"),
        shown(CredentialFile.NETRC, "b.example", mark=OTHER),
    )
    assert netrc == (
        f"machine a.example login ann password {MARK}\n"
        f"machine b.example login x-access-token password {OTHER}\n"
    )


def test_a_port_that_is_the_schemes_own_is_left_out() -> None:
    npmrc = text(shown(CredentialFile.NPMRC, "a.example", "a.example:99", "http://[::1]"))
    assert npmrc.splitlines() == [
        f"//a.example/:_authToken={MARK}",
        f"//a.example:99/:_authToken={MARK}",
        f"//[::1]/:_authToken={MARK}",
    ]


def test_pip_has_one_index_and_the_others_beside_it() -> None:
    conf = configparser.ConfigParser(interpolation=None)
    conf.read_string(
        text(
            shown(CredentialFile.PIP, "a.example", paths=("/pypi/simple/**",)),
            shown(CredentialFile.PIP, "b.example", mark=OTHER),
        )
    )
    assert conf["global"]["index-url"] == f"https://x-access-token:{MARK}@a.example/pypi/simple/"
    more = conf["global"]["extra-index-url"].split()
    assert more == [f"https://x-access-token:{OTHER}@b.example/simple/"]


def test_tools_find_their_file_by_a_variable_and_netrc_in_a_home_made_anew() -> None:
    held = [shown(CredentialFile.NETRC, "a.example")]
    kept, variables = tool_files(held, scratch_home=False)
    assert [one.path for one in kept] == [f"{INSIDE}/netrc"]
    assert dict(variables) == {"NETRC": f"{INSIDE}/netrc"}
    fresh, _ = tool_files(held, scratch_home=True)
    assert [one.path for one in fresh] == [f"{INSIDE}/netrc", "/tmp/.netrc"]
