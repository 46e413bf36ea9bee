"""Plugins that misuse refusals: raise odd ones, blame others, change them later."""

from __future__ import annotations

from typing import Any

import pytest

from kaged.kernel.decision import CapabilityDenied
from kaged.kernel.describe import require
from kaged.pipeline import (
    ControlExecutionStatus,
    DelegationHop,
    Extensions,
    HttpExtension,
    Plugin,
    PluginError,
    PluginResult,
    PluginViolation,
    PluginViolationError,
    ToolMetadata,
)
from kaged.pipeline.hooked_call import HookedCall
from kaged.pipeline.origin import CallOrigin
from unit.pipeline.lab import Lab, entry
from unit.pipeline.material import full_extensions

TOOL = ToolMetadata(name="db.query")


class BlamesOthers(PluginViolation):
    """Gives the host a copy under another plugin's name."""

    __slots__ = ()

    def for_host(self, plugin_name: str) -> PluginViolation:
        made = PluginViolation("r", "d", "c")
        made.plugin_name = "innocent"
        return made


class Explodes(PluginViolation):
    """Raises when its reason is read."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name == "reason":
            raise ZeroDivisionError
        return super().__getattribute__(name)


class OddRefusal(PluginViolationError):
    """A refusal whose words are traps."""

    @property
    def violation(self) -> Any:
        raise ZeroDivisionError

    @violation.setter
    def violation(self, value: Any) -> None:
        pass


def returning(violation: Any) -> type[Plugin]:
    class Denies(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            return PluginResult(continue_processing=False, violation=violation)

    return Denies


def raising(error: BaseException) -> type[Plugin]:
    class Raises(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
            raise error

    return Raises


async def test_a_violation_of_its_own_class_blames_nobody_else() -> None:
    lab = await Lab.of(entry(returning(BlamesOthers("r", "d", "c")), name="guilty"))
    result = await lab.call()
    assert result.violation is not None
    assert type(result.violation) is PluginViolation
    assert result.violation.plugin_name == "guilty"
    lab = await Lab.of(
        entry(raising(PluginViolationError("x", BlamesOthers("r", "d", "c"))), name="guilty")
    )
    with pytest.raises(PluginViolationError) as caught:
        await lab.call()
    assert caught.value.violation is not None
    assert caught.value.violation.plugin_name == "guilty"


async def test_a_violation_that_cannot_be_read_does_not_open_the_way() -> None:
    lab = await Lab.of(entry(returning(Explodes("r", "d", "c"))))
    with pytest.raises(PluginError):
        await lab.call()


@pytest.mark.parametrize(
    "error",
    [
        PluginViolationError("odd", {"reason": 7}),  # pyright: ignore[reportArgumentType] - a lie
        PluginViolationError("odd", "text"),  # pyright: ignore[reportArgumentType] - a lie
        PluginViolationError("odd", Explodes("r", "d", "c")),
        PluginViolationError(7),  # pyright: ignore[reportArgumentType] - a lie
        PluginViolationError("odd", None),
        OddRefusal("odd"),
    ],
)
@pytest.mark.parametrize("on_error", ["fail", "ignore", "disable"])
async def test_an_odd_refusal_is_a_refusal_of_the_host(error: BaseException, on_error: str) -> None:
    lab = await Lab.of(entry(raising(error), name="odd-one", on_error=on_error))
    with pytest.raises(PluginViolationError) as caught:
        await lab.call()
    assert type(caught.value) is PluginViolationError
    assert caught.value.violation is None
    assert isinstance(caught.value.message, str)
    assert caught.value.executions is not None
    (record,) = caught.value.executions
    assert (record.plugin_name, record.effective_allow) == ("odd-one", False)
    assert record.status is ControlExecutionStatus.COMPLETED
    # As the daemon sees it: a decision, not an exception of the plugin's making.
    passed = await HookedCall(lab.pipeline, CallOrigin("r", 0)).before_tool("t", {}, TOOL)
    assert not passed.decision.allowed
    assert "odd-one" in passed.decision.detail
    with pytest.raises(CapabilityDenied):
        require(passed.decision, passed.refusal)


async def test_words_changed_after_the_refusal_change_nothing() -> None:
    details: dict[str, Any] = {"rows": [1]}
    violation = PluginViolation("first", "d", "c", details)
    lab = await Lab.of(entry(returning(violation)))
    result = await lab.call()
    violation.reason = "second"
    details["rows"].append(2)
    details["more"] = 1
    assert result.violation is not None
    assert (result.violation.reason, result.violation.details) == ("first", {"rows": [1]})
    assert result.executions[0].reason == "first"


async def test_a_reader_that_writes_in_place_and_hands_its_view_back_changes_nothing() -> None:
    class InPlace(Plugin):
        async def tool_pre_invoke(
            self, payload: Any, context: Any, extensions: Extensions
        ) -> PluginResult[Any]:
            assert extensions.http is not None
            assert extensions.security is not None
            assert extensions.security.subject is not None
            dict.update(extensions.http.headers, evil="1")
            dict.update(extensions.security.subject.claims, evil="1")
            object.__setattr__(extensions.security, "labels", frozenset({"evil"}))
            object.__setattr__(extensions, "request", None)
            return PluginResult(modified_extensions=extensions)

    original = full_extensions()
    lab = await Lab.of(entry(InPlace, "read_headers", "read_claims", "read_labels"))
    result = await lab.call(extensions=original)
    assert result.modified_extensions is None
    assert original == full_extensions()
    # Its copies come back as the very objects that it got: unchanged, whatever it did to them.
    assert result.executions[0].discarded == ()


async def test_a_writer_that_writes_in_place_and_hands_its_view_back_changes_nothing() -> None:
    class InPlace(Plugin):
        async def tool_pre_invoke(
            self, payload: Any, context: Any, extensions: Extensions
        ) -> PluginResult[Any]:
            assert extensions.http is not None
            assert extensions.security is not None
            assert extensions.delegation is not None
            dict.update(extensions.http.headers, evil="1")
            object.__setattr__(extensions.security, "labels", frozenset({"evil"}))
            object.__setattr__(extensions.delegation, "chain", ())
            return PluginResult(modified_extensions=extensions)

    original = full_extensions()
    lab = await Lab.of(entry(InPlace, "write_headers", "append_labels", "append_delegation"))
    result = await lab.call(extensions=original)
    assert result.modified_extensions is None
    assert original == full_extensions()


async def test_what_was_written_in_place_does_not_come_in_with_a_new_object_either() -> None:
    class Around(Plugin):
        async def tool_pre_invoke(
            self, payload: Any, context: Any, extensions: Extensions
        ) -> PluginResult[Any]:
            security, delegation = extensions.security, extensions.delegation
            assert security is not None
            assert security.subject is not None
            assert delegation is not None
            dict.update(security.subject.claims, evil="1")
            object.__setattr__(security, "classification", "evil")
            object.__setattr__(delegation.chain[0], "subject_id", "evil")
            return PluginResult(
                modified_extensions=extensions.model_copy(
                    update={
                        "security": security.model_copy(
                            update={"labels": security.labels | {"new"}}
                        ),
                        "delegation": delegation.with_new_hop(
                            DelegationHop(subject_id="next", subject_type="agent")
                        ),
                    }
                )
            )

    original = full_extensions()
    lab = await Lab.of(entry(Around, "read_claims", "append_labels", "append_delegation"))
    merged = (await lab.call(extensions=original)).modified_extensions
    assert original == full_extensions()
    assert merged is not None
    assert merged.security is not None
    assert original.security is not None
    assert merged.security == original.security.model_copy(
        update={"labels": original.security.labels | {"new"}}
    )
    assert merged.delegation is not None
    assert original.delegation is not None
    assert merged.delegation.chain[:-1] == original.delegation.chain
    assert merged.delegation.chain[-1].subject_id == "next"


async def test_an_accepted_edit_is_out_of_its_makers_hands() -> None:
    headers = {"a": "1"}
    nested: dict[str, Any] = {"list": [1]}
    slot = HttpExtension(headers=headers)

    class Keeps(Plugin):
        async def tool_pre_invoke(
            self, payload: Any, context: Any, extensions: Extensions
        ) -> PluginResult[Any]:
            return PluginResult(
                modified_extensions=extensions.model_copy(
                    update={"http": slot, "custom": {"nested": nested}}
                )
            )

    lab = await Lab.of(entry(Keeps, "write_headers"))
    result = await lab.call(extensions=full_extensions())
    headers["evil"] = "1"
    dict.update(slot.headers, evil="1")
    object.__setattr__(slot, "headers", {"evil": "1"})
    nested["list"].append("evil")
    merged = result.modified_extensions
    assert merged is not None
    assert merged.http is not None
    assert merged.http.headers == {"a": "1"}
    assert merged.custom == {"nested": {"list": [1]}}
