"""`FallbackModel`: asks the next alias while one is out of order."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from kaged.models.errors import ModelBadAnswer, ModelError, ModelRateLimited, ModelUnavailable
from kaged.models.provided import ProjectModel
from kaged.models.retrying import RetryingModel
from kaged.models.turn import ModelEvent, ModelRequest, TurnRetried

_OUT_OF_ORDER = (ModelUnavailable, ModelRateLimited, ModelBadAnswer)


class FallbackModel:
    """Several models behind one alias, in the order in which they are asked.

    A model that refuses a question is not stepped over: what it refuses, no other should be tried
    with behind the operator's back.
    """

    def __init__(self, models: Sequence[RetryingModel | ProjectModel]) -> None:
        assert models, "a fallback needs a model to fall back from"
        self._models = tuple(models)
        self.alias = models[0].alias

    @property
    def context_tokens(self) -> int:
        """How many tokens fit into the smallest of the windows."""
        return min(model.context_tokens for model in self._models)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """Ask the first that is in order.

        Raises:
            ModelError: the last one's error.
        """
        for number, model in enumerate(self._models, start=1):
            try:
                async with aclosing(model.stream(request)) as events:
                    async for event in events:
                        yield event
            except _OUT_OF_ORDER as error:
                if number == len(self._models):
                    raise
                yield TurnRetried(self._reason(error, number), number, 0.0)
            else:
                return

    def _reason(self, error: ModelError, number: int) -> str:
        following = self._models[number].alias
        return f"{error.code}: {error.message} Asking {following} instead."
