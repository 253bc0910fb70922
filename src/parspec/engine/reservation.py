"""How much memory a request needs while it runs: its caches and the logits of its largest pass."""

from dataclasses import dataclass

import torch

from parspec.models.cache import GroupCache
from parspec.models.interface import LanguageModel
from parspec.sampling.params import MethodParams

_LOGITS_COPIES = 3
"""Arrays of the size of a pass's float32 logits that exist at once: logits, log-probabilities, one temporary."""


@dataclass(frozen=True)
class Reservation:
    """Sizes of one request's caches, fixed before it runs.

    Attributes:
        num_rows: Particles, or chains.
        trunk_capacity: Positions of the trunk.
        branch_capacity: Positions of each branch.
        cache_bytes: Bytes of the caches.
        num_bytes: Bytes held while the request runs, logits included.
    """

    num_rows: int
    trunk_capacity: int
    branch_capacity: int
    cache_bytes: int
    num_bytes: int

    @classmethod
    def of(
        cls,
        prompt_length: int,
        max_tokens: int,
        method: MethodParams,
        target: LanguageModel,
        draft: LanguageModel | None,
        num_logits: int = 1,
    ) -> "Reservation":
        """Size the caches of a request.

        Args:
            prompt_length: Tokens of the prompt.
            max_tokens: Most tokens of the answer.
            method: Method parameters.
            target: The model aimed at.
            draft: The model that proposes, if the method uses one.
            num_logits: Logits wanted at once of the prompt.
        """
        num_rows, num_positions, branch = 1, 1, 0
        if draft is not None:
            num_rows, num_positions = method.rows, min(method.num_draft_tokens + 1, max_tokens)
            # Tokens that are not final yet, at most commit_lag of them, and the block behind them.
            open_tokens = max_tokens
            if method.method in ("smc", "auto") and method.max_open_tokens is not None:
                open_tokens = min(method.max_open_tokens, max_tokens)
            elif method.method == "speculative":
                open_tokens = 0
            branch = min(open_tokens + num_positions, max_tokens)
        trunk = prompt_length + max_tokens
        caches = [model.cache_shape for model in (target, draft) if model is not None]
        cache_bytes = sum(GroupCache.bytes_needed(shape, num_rows, trunk, branch) for shape in caches)
        logits_bytes = (
            _LOGITS_COPIES * max(num_rows * num_positions, num_logits) * target.vocab_size * torch.float32.itemsize
        )
        return cls(num_rows, trunk, branch, cache_bytes, cache_bytes + logits_bytes)

    def cache_for(self, model: LanguageModel) -> GroupCache:
        """Allocate the request's cache under one model."""
        return GroupCache(model.cache_shape, self.num_rows, self.trunk_capacity, self.branch_capacity)
