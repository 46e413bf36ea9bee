"""The names of the published plugin framework, found by our own finder: `offer_standin`."""

from kaged.pipeline.published.finder import StandinUnavailable, offer_standin, withdraw_standin

__all__ = ["StandinUnavailable", "offer_standin", "withdraw_standin"]
