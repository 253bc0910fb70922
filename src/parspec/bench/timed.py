"""A model that keeps account of the time its forward passes take."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from parspec.models.cache import CacheShape
from parspec.models.interface import Forward, LanguageModel


@dataclass
class Clock:
    """Seconds and passes of one model.

    Attributes:
        prefill: Seconds in passes that read a prompt.
        seconds: Seconds in all other passes.
        passes: How many others there were.
    """

    prefill: float = 0.0
    seconds: float = 0.0
    passes: int = 0


class TimedModel:
    """A `LanguageModel` that passes everything on and times it.

    Args:
        model: The model that does the work.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.clock = Clock()

    @property
    def cache_shape(self) -> CacheShape:
        """The model's."""
        return self.model.cache_shape

    @property
    def vocab_size(self) -> int:
        """The model's."""
        return self.model.vocab_size

    @property
    def max_positions(self) -> int:
        """The model's."""
        return self.model.max_positions

    def forward(self, requests: Sequence[Forward]) -> list[Tensor]:
        """Run the requests and add the time they take to the clock."""
        prefill = any(request.cache.length == 0 for request in requests)
        start = time.perf_counter()
        logits = self.model.forward(requests)
        seconds = time.perf_counter() - start
        if prefill:
            self.clock.prefill += seconds
        else:
            self.clock.seconds += seconds
            self.clock.passes += 1
        return logits
