"""What a forward pass costs on this machine, by the number of tokens in it, and what that makes of each method.

The one place that predicts speed: `method="auto"` asks it, nothing else does.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from parspec.models.cache import GroupCache
from parspec.models.interface import Forward, LanguageModel

_SIZES = (1, 8, 32)
_CONTEXT = 32


@dataclass(frozen=True)
class PassCost:
    """Seconds of a pass, piecewise linear in its tokens.

    Attributes:
        tokens: Sizes measured, ascending, at least two.
        seconds: Their times.
    """

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    def __call__(self, tokens: int) -> float:
        """Seconds of a pass over so many tokens; beyond the largest size measured, along the last slope."""
        upper = next((i for i, size in enumerate(self.tokens) if size >= tokens), len(self.tokens) - 1)
        upper = max(upper, 1)
        x0, x1 = self.tokens[upper - 1 : upper + 1]
        y0, y1 = self.seconds[upper - 1 : upper + 1]
        return max(y0 if tokens > x0 else 0.0, y0 + (y1 - y0) * (tokens - x0) / (x1 - x0))


@dataclass(frozen=True)
class CostModel:
    """The cost of passes of both models, and of the cycles made of them.

    Attributes:
        target: Of the model aimed at.
        draft: Of the model that proposes.
    """

    target: PassCost
    draft: PassCost

    def cycle(self, rows: int, num_draft_tokens: int) -> float:
        """Seconds of a cycle that drafts so many tokens for each of so many rows and scores them."""
        return num_draft_tokens * self.draft(rows) + self.target(rows * (num_draft_tokens + 1))

    def speculative(self, requests: int, num_draft_tokens: int, acceptance: float) -> float:
        """Tokens per second of one of several requests decoding losslessly; 0 draft tokens is plain decoding.

        Args:
            requests: Requests that share the passes.
            num_draft_tokens: K.
            acceptance: Probability that a drafted token is accepted, taken as independent (arXiv 2211.17192, eq. 1).
        """
        k = num_draft_tokens
        expected = k + 1.0 if acceptance >= 1 else (1 - acceptance ** (k + 1)) / (1 - acceptance)
        return expected / self.cycle(requests, k)

    def smc(self, requests: int, num_particles: int, num_draft_tokens: int) -> float:
        """Tokens per second of one of several requests decoding by SMC without a cut."""
        return (num_draft_tokens + 1) / self.cycle(requests * num_particles, num_draft_tokens)


def measure_costs(target: LanguageModel, draft: LanguageModel) -> CostModel:
    """Time both models on passes of a few sizes; takes about as long as twenty tokens of plain decoding."""
    return CostModel(_measure(target), _measure(draft))


def _measure(model: LanguageModel) -> PassCost:
    seconds = []
    for size in _SIZES:
        cache = GroupCache(model.cache_shape, size, _CONTEXT, 1)
        prompt = torch.zeros(1, _CONTEXT, dtype=torch.int64, device=model.cache_shape.device)
        tokens = torch.zeros(size, 1, dtype=torch.int64, device=model.cache_shape.device)
        if size == _SIZES[0]:
            model.forward([Forward(model, cache, prompt, 0, into_trunk=True)])  # also warms the model up
        else:
            cache.advance(_CONTEXT, into_trunk=True)  # what the trunk holds does not change the time
            cache.trunk.zero_()

        def step(cache: GroupCache = cache, tokens: torch.Tensor = tokens) -> None:
            model.forward([Forward(model, cache, tokens, 1)])
            cache.truncate(_CONTEXT)

        seconds.append(min(_timed(step), _timed(step)))
    # More tokens never take less time; noise may say otherwise.
    for i in range(1, len(seconds)):
        seconds[i] = max(seconds[i], seconds[i - 1])
    return PassCost(_SIZES, tuple(seconds))


def _timed(run: Callable[[], None]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start
