"""What turns cost and windows hold, where it is published. Loaded with a vendor."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import genai_prices

from kaged.models.turn import Usage

MAX_TOKENS: Final = 10**12


def priced(vendor: str, model: str, usage: Usage) -> Usage:
    """Add the cost; it stays None when the price is unknown."""
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
    return Usage(
        usage.input_tokens, usage.output_tokens, usage.cached_tokens, float(found.total_price)
    )


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
