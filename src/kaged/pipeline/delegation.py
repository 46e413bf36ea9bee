"""Merge of the delegation slot: hops may be added behind the chain, and nothing else."""

from __future__ import annotations

import math
from datetime import datetime
from types import NoneType
from typing import Any

from pydantic import ValidationError

from kaged.pipeline.discards import UNCHANGED, DiscardedChange, TookAway, discard
from kaged.pipeline.isolation import (
    NotIsolable,
    exact_text,
    isolate_data,
    model_dict,
    new_frozen,
    same_value,
)
from kaged.pipeline.slots import DelegationExtension, DelegationHop, Extensions
from kaged.pipeline.tiers import Rights, SlotName

MAX_HOPS = 256


def merge_delegation(
    original: Extensions,
    returned: object,
    shown: object,
    rights: Rights,
    discarded: list[DiscardedChange],
) -> object:
    """Return the delegation slot with what a plugin added to it; `UNCHANGED` if that is nothing.

    `shown` is the copy of the slot that the plugin was given, None if it looked at none.

    Raises:
        TookAway: the chain shrank, or a hop of it was changed.
    """
    if not isinstance(returned, DelegationExtension):
        return discard(discarded, SlotName.DELEGATION, "not a DelegationExtension")
    delegation = original.delegation
    if not rights.append_delegation:
        if not same_value(returned, delegation if rights.delegation else None):
            discard(discarded, SlotName.DELEGATION, "append_delegation is not granted")
        return UNCHANGED
    state = model_dict(returned)
    before = () if delegation is None else delegation.chain
    chain = _grown_chain(before, state.get("chain"), shown)
    actor = exact_text(state.get("actor_subject_id"))
    age = _parse_age(state.get("age_seconds"))
    bad_actor = actor is None and state.get("actor_subject_id") is not None
    if chain is None or age is None or bad_actor:
        return discard(
            discarded, SlotName.DELEGATION, "not a chain of hops with an actor and an age"
        )
    # Equal chain, actor and age is no change, whatever is claimed about the derived rest.
    if delegation is not None and (len(chain), actor, age) == (
        len(before),
        delegation.actor_subject_id,
        delegation.age_seconds,
    ):
        return UNCHANGED
    origin = None if delegation is None else delegation.origin_subject_id
    values: dict[str, Any] = {
        "chain": chain,
        "depth": len(chain),
        "origin_subject_id": origin or (chain[0].subject_id if chain else None),
        "actor_subject_id": actor,
        "delegated": bool(chain),
        "age_seconds": age,
    }
    return new_frozen(DelegationExtension, values)


def _grown_chain(
    before: tuple[DelegationHop, ...], returned: object, shown: object
) -> tuple[DelegationHop, ...] | None:
    """Return the chain before with the new hops behind it; None when the return is no chain."""
    if isinstance(returned, tuple):
        hops: list[object] = list(tuple.__iter__(returned))
    elif isinstance(returned, list):
        hops = list(list.__iter__(returned))
    else:
        return None
    if len(hops) < len(before):
        detail = f"the chain shrank from {len(before)} to {len(hops)} hops"
        raise TookAway(SlotName.DELEGATION, detail)
    copies = _shown_hops(shown, before)
    for kept, hop, copy in zip(before, hops, copies, strict=False):
        if hop is not copy and not same_value(hop, kept):
            raise TookAway(SlotName.DELEGATION, "existing hops were modified")
    if len(hops) > MAX_HOPS:
        return None
    chain = list(before)
    for hop in hops[len(before) :]:
        parsed = _parse_hop(hop)
        if parsed is None:
            return None
        chain.append(parsed)
    return tuple(chain)


def _shown_hops(shown: object, before: tuple[DelegationHop, ...]) -> tuple[object, ...]:
    """Return the copies of the hops that the plugin was given, or else the hops themselves.

    A hop that comes back as the very copy is the old one; tampering with the copy changes nothing,
    because it is never kept.
    """
    if isinstance(shown, DelegationExtension):
        chain = model_dict(shown).get("chain")
        if type(chain) is tuple and len(chain) == len(before):
            return chain
    return before


def _parse_hop(value: object) -> DelegationHop | None:
    if not isinstance(value, DelegationHop):
        return None
    state = model_dict(value).copy()
    if _is_exact_hop(state):
        return new_frozen(DelegationHop, state)
    try:
        return DelegationHop.model_validate(isolate_data(state))
    except (ValidationError, NotIsolable):
        return None


def _is_exact_hop(state: dict[str, Any]) -> bool:
    """Return whether these are the values of a hop as validation would leave them; mostly so."""
    if len(state) != len(_HOP_TYPES):
        return False
    for name, types in _HOP_TYPES.items():
        if type(state.get(name, state)) not in types:
            return False
    return all(type(scope) is str for scope in state["scopes_granted"])


def _parse_age(value: object) -> float | None:
    if not isinstance(value, (int, float)):
        return None
    age = float.__float__(value) if isinstance(value, float) else float(int.__int__(value))
    return age if math.isfinite(age) and age >= 0 else None


_HOP_TYPES: dict[str, tuple[type, ...]] = {
    "subject_id": (str,),
    "subject_type": (str,),
    "audience": (str, NoneType),
    "scopes_granted": (tuple,),
    "timestamp": (datetime,),
    "ttl_seconds": (int, NoneType),
    "strategy": (str, NoneType),
    "from_cache": (bool,),
}
