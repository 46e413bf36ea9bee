from __future__ import annotations

import copy
import pickle

import pytest

from kaged.pipeline import GlobalContext, PluginContext, UserContext
from kaged.pipeline.contexts import lend, returned


def test_the_content_type_of_a_request_is_short_and_printable() -> None:
    assert GlobalContext("r", content_type="text/plain").content_type == "text/plain"
    with pytest.raises(ValueError, match="longer"):
        GlobalContext("r", content_type="x" * 201)
    with pytest.raises(ValueError, match="printed"):
        GlobalContext("r", content_type="a\nb")


def lent_context(shared: GlobalContext, with_user: bool) -> PluginContext:
    context = object.__new__(PluginContext)
    lend(context, (shared, with_user))
    return context


def test_a_plugin_works_on_its_own_copy_of_the_shared_context() -> None:
    shared = GlobalContext(
        "r",
        user={"email": "a@example.com"},
        user_context=UserContext(user_id="a", groups=["g"]),
        tenant_id="t",
        server_id="s",
        state={"a": 1},
        metadata={"b": 2},
    )
    context = lent_context(shared, True)
    assert isinstance(returned(context), tuple)
    own = context.global_context
    assert own == shared
    assert own is not shared
    assert returned(context) is own
    own.state["new"] = 1
    own.user["email"] = "changed"  # pyright: ignore[reportIndexIssue, reportOptionalSubscript] - a dict here
    assert own.user_context is not None
    own.user_context.groups.append("changed")
    assert shared.state == {"a": 1}
    assert shared.user == {"email": "a@example.com"}
    assert shared.user_context == UserContext(user_id="a", groups=["g"])


def test_without_the_right_to_see_the_subject_user_and_identity_are_gone() -> None:
    shared = GlobalContext("r", user="alice", user_context=UserContext(user_id="alice"))
    context = lent_context(shared, False)
    assert (context.global_context.user, context.user_context) == (None, None)
    assert (context.user_email, context.user_groups) == (None, [])
    assert "alice" not in repr(context)
    assert "alice" not in repr(context.model_dump())
    assert b"alice" not in pickle.dumps(context)
    assert not [name for name in dir(context) if "shared" in name]


def test_the_users_address_comes_from_the_identity_or_the_user() -> None:
    assert PluginContext(GlobalContext("r", user="a@b.c")).user_email == "a@b.c"
    assert PluginContext(GlobalContext("r", user={"email": "a@b.c"})).user_email == "a@b.c"
    assert PluginContext(GlobalContext("r", user={"email": 5})).user_email is None
    identity = UserContext(user_id="u", email="x@y.z", groups=["g"])
    context = PluginContext(GlobalContext("r", user="a@b.c", user_context=identity))
    assert (context.user_email, context.user_groups) == ("x@y.z", ["g"])
    assert context.user_context is identity


async def test_a_context_keeps_state_until_it_is_cleaned_up() -> None:
    context = PluginContext(GlobalContext("r"))
    assert context.is_empty()
    context.set_state("k", 1)
    assert context.get_state("k") == 1
    assert context.get_state("none", "default") == "default"
    assert not context.is_empty()
    await context.cleanup()
    assert context.is_empty()


def test_contexts_copy_pickle_and_compare_by_value() -> None:
    context = PluginContext(GlobalContext("r", tenant_id="t"), {"a": 1}, {"b": 2})
    for twin in (copy.copy(context), pickle.loads(pickle.dumps(context)), context.model_copy()):
        assert twin == context
    assert context != GlobalContext("r")
    assert context.model_dump()["global_context"]["tenant_id"] == "t"
    assert repr(context).startswith("PluginContext(state=")
    changed = GlobalContext("r").model_copy(update={"tenant_id": "other"}, deep=True)
    assert changed.tenant_id == "other"


def test_only_a_global_context_can_take_the_place_of_one() -> None:
    context = PluginContext(GlobalContext("r"))
    context.global_context = GlobalContext("s")
    assert context.global_context.request_id == "s"
    with pytest.raises(TypeError):
        setattr(context, "global_context", "r")  # noqa: B010 - past the type checker, on purpose
    lend(context, (GlobalContext("t"), False))
    assert context.global_context.request_id == "t"
