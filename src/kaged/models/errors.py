"""What goes wrong with a model: `ModelError` and its kinds, each with a stable code."""

from __future__ import annotations

from typing import ClassVar

from kaged.base import JsonValue, KagedError


class ModelError(KagedError):
    """A model could not be asked, or did not answer.

    `retryable` says whether asking the same again may help; `retry_after_s` how long the vendor
    wants us to wait before that, if it said. What a vendor wrote about it is `vendor_says` in
    `data`: cut short, and without the key.
    """

    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        fix: str | None = None,
        retry_after_s: float | None = None,
        **data: JsonValue,
    ) -> None:
        if retry_after_s is not None:
            data["retry_after_s"] = retry_after_s
        super().__init__(message, code=code, fix=fix, **data)
        self.retry_after_s = retry_after_s


class ModelUnavailable(ModelError):
    """The model cannot be reached, is overloaded, timed out, or broke off in the middle."""

    code = "model_unavailable"
    retryable: ClassVar[bool] = True


class ModelRateLimited(ModelError):
    """The vendor limits the rate of requests."""

    code = "model_rate_limited"
    retryable: ClassVar[bool] = True


class ModelRefused(ModelError):
    """The vendor does not take the question: no access, no credit, not allowed, not understood."""

    code = "model_refused"


class ModelContextExceeded(ModelRefused):
    """The window is larger than what the model takes; a smaller one may be answered."""

    code = "model_context_exceeded"


class IncompleteAnswer(ModelError):
    """The model's last words are no answer: cut off, filtered, or nothing at all."""

    code = "model_answer_cut"


class ModelBadAnswer(ModelError):
    """What came back is no answer: not the protocol, or larger than any answer may be."""

    code = "model_bad_answer"
    retryable: ClassVar[bool] = True
