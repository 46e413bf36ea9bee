"""What turns cost and windows hold, where it is published. Loaded with a vendor."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

import genai_prices

from kaged.config.localconfig import ModelPrice
from kaged.models.turn import Usage

MAX_TOKENS: Final = 10**12


def priced(vendor: str, model: str, usage: Usage, own: ModelPrice | None = None) -> Usage:
    """Add the cost: by the operator's own price, else by the published one, else None."""
    if own is not None:
        return replace(usage, cost_usd=_cost(usage, own))
    try:
        found = genai_prices.calc_price(
            genai_prices.Usage(
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cache_read_tokens=min(usage.cached_tokens, usage.input_tokens),
            ),
            model,
            provider_id=vendor,
        )
    except (LookupError, ValueError):
        return usage
    return replace(usage, cost_usd=float(found.total_price))


def _cost(usage: Usage, own: ModelPrice) -> float:
    cached = min(usage.cached_tokens, usage.input_tokens)
    of_cached = own.input if own.cached is None else own.cached
    millions = (
        (usage.input_tokens - cached) * own.input
        + cached * of_cached
        + usage.output_tokens * own.output
    )
    return millions / 1_000_000


@lru_cache(maxsize=64)
def known_context_tokens(vendor: str, model: str) -> int | None:
    """Return how many tokens a model takes; None when it is not known."""
    try:
        found = genai_prices.calc_price(
            genai_prices.Usage(input_tokens=1, output_tokens=1), model, provider_id=vendor
        )
    except (LookupError, ValueError):
        return None
    return found.model.context_window


def counted(number: object) -> int:
    """Read a number of tokens; what is no sensible number counts as none."""
    if isinstance(number, int) and 0 <= number <= MAX_TOKENS:
        return number
    return 0
