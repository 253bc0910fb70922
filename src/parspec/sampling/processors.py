"""From a model's logits to the distribution a request samples from, and draws from it.

The same function serves target and draft: what a token was drawn from is exactly what its weight or
acceptance probability is computed with.
"""

import math

import torch
from torch import Generator, Tensor

from parspec.errors import ParspecError
from parspec.kernels import logits as kernels
from parspec.sampling.params import SamplingParams

_CANDIDATES = 512
"""Most probable tokens looked at first for top_p; sorting the whole vocabulary costs far more."""
_TINY = torch.finfo(torch.float32).tiny
"""Numbers below would turn into 0 as float32 and make NaN of 0 / 0 and of 0 * -inf."""


def process(logits: Tensor, params: SamplingParams) -> Tensor:
    """Apply temperature, min_p, top_k and top_p, in this order (vLLM's), and normalise.

    Ties with the last token kept are kept too, so that the result depends on the logits alone.

    Args:
        logits: ``[..., V]``, any float format; -inf marks ids that must not be drawn.
        params: The request's parameters.

    Returns:
        ``[..., V]`` float32 log-probabilities, -inf where a token is ruled out.

    Raises:
        ParspecError: A row has NaN, +inf, or nothing but -inf.
    """
    logits = logits.float()
    greedy = params.temperature == 0
    log_probs, largest = (logits, logits.amax(-1, keepdim=True)) if greedy else _log_softmax(logits, params.temperature)
    _check_finite(largest)
    if greedy:
        chosen = torch.full_like(logits, -torch.inf)
        return chosen.scatter_(-1, logits.argmax(-1, keepdim=True), 0.0)
    floor = torch.full_like(largest, -torch.inf)
    if params.min_p > 0:
        floor = log_probs.amax(-1, keepdim=True) + math.log(params.min_p)
    if 0 < params.top_k < logits.shape[-1]:
        floor = torch.maximum(floor, log_probs.topk(params.top_k, dim=-1).values[..., -1:])
    if params.top_p < 1:
        filtered = params.min_p > 0 or params.top_k > 0
        kept_mass = _mass_above(log_probs, floor) if filtered else torch.ones_like(floor)
        floor = torch.maximum(floor, _nucleus_floor(log_probs, params.top_p * kept_mass))
    elif params.min_p == 0 and params.top_k == 0:
        return log_probs
    return _log_softmax(log_probs.masked_fill(log_probs < floor, -torch.inf), 1.0)[0]


def log_probs_at(logits: Tensor, tokens: Tensor, params: SamplingParams) -> Tensor:
    """``process(logits, params)`` at one token of each row, without the rest where that can be had.

    Args:
        logits: ``[..., V]``.
        tokens: ``[...]`` int64.
        params: The request's parameters.

    Returns:
        ``[...]`` float32.

    Raises:
        ParspecError: As for `process`.
    """
    truncated = params.min_p > 0 or params.top_k > 0 or params.top_p < 1
    scale = 1 / max(params.temperature, _TINY)
    if params.temperature == 0 or truncated or not math.isfinite(scale) or not kernels.serves(logits):
        return process(logits, params).gather(-1, tokens[..., None])[..., 0]
    log_probs, largest = kernels.log_softmax_at(logits, scale, tokens)
    _check_finite(largest)
    return log_probs


def _check_finite(largest: Tensor) -> None:
    if not torch.isfinite(largest).all():
        raise ParspecError("the model produced NaN or infinite logits: try dtype float32, or fetch the weights again")


def _log_softmax(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """``log_softmax(logits / temperature)`` and the largest logit ``[..., 1]`` of each row."""
    temperature = max(temperature, _TINY)
    if kernels.serves(logits) and math.isfinite(1 / temperature):
        return kernels.log_softmax(logits, 1 / temperature)
    largest = logits.amax(-1, keepdim=True)
    # Shifted first: a tiny temperature would otherwise overflow.
    return ((logits - largest) / temperature if temperature != 1 else logits).log_softmax(-1), largest


def _mass_above(log_probs: Tensor, floor: Tensor) -> Tensor:
    """Probability ``[..., 1]`` of the tokens at or above the floor."""
    return log_probs.masked_fill(log_probs < floor, -torch.inf).exp().sum(-1, keepdim=True)


def _nucleus_floor(log_probs: Tensor, mass: Tensor) -> Tensor:
    """Log-probability ``[..., 1]`` of the last token of the smallest most probable set with this mass."""
    if kernels.serves(log_probs):
        return kernels.nucleus_floor(log_probs, mass)
    rows, wanted = log_probs.reshape(-1, log_probs.shape[-1]), mass.reshape(-1, 1)
    floor = torch.empty_like(wanted)
    todo = torch.arange(len(rows), device=rows.device)
    count = min(_CANDIDATES, rows.shape[-1])
    while len(todo):
        # The first look, often the only one, is at all rows: no need to copy them.
        top = (rows if len(todo) == len(rows) else rows[todo]).topk(count, dim=-1).values
        reached = top.exp().cumsum(-1) >= wanted[todo]
        whole = count == rows.shape[-1]
        # Rounding may leave the whole vocabulary short of the mass: then nothing is dropped.
        index = torch.where(reached.any(-1), reached.int().argmax(-1), count - 1)
        done = reached.any(-1) | whole
        floor[todo[done]] = top.gather(-1, index[:, None])[done]
        todo = todo[~done]
        count = min(count * 16, rows.shape[-1])
    return floor.reshape(mass.shape)


def power(log_probs: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """The distribution ``p ** alpha / Z`` and ``log Z``, ``Z = sum p ** alpha``.

    Args:
        log_probs: ``[..., V]`` normalised.
        alpha: The power; 1 changes nothing.

    Returns:
        Log-probabilities ``[..., V]`` and log Z ``[...]``.
    """
    if alpha == 1:
        return log_probs, log_probs.new_zeros(log_probs.shape[:-1])
    raised = max(alpha, _TINY) * log_probs
    # log_softmax has log Z subtracted; logsumexp would give it too, ten times slower on a large vocabulary.
    normalised = raised.log_softmax(-1)
    return normalised, raised.amax(-1) - normalised.amax(-1)


def sample(log_probs: Tensor, generator: Generator) -> Tensor:
    """Draw a token per row by inverting the cumulative distribution: one uniform a row.

    Args:
        log_probs: ``[..., V]``; need not be normalised exactly.
        generator: On the same device.

    Returns:
        ``[...]`` int64; never a token of probability 0.
    """
    device = log_probs.device
    # float64 uniforms where the device has them: 24 bits would leave rare tokens of a large vocabulary out.
    real = torch.float32 if device.type == "mps" else torch.float64
    uniforms = torch.rand((*log_probs.shape[:-1], 1), generator=generator, device=device, dtype=real)
    if kernels.serves(log_probs):
        return kernels.draw(log_probs, uniforms[..., 0])
    cumulative = log_probs.exp().cumsum(-1)
    points = (uniforms * cumulative[..., -1:]).to(cumulative.dtype)
    # right=True: the first index whose cumulative sum exceeds the point, which has positive probability.
    tokens = torch.searchsorted(cumulative, points, right=True)
    # Rounded up to the total itself, a point lies behind the last token of positive probability.
    last = torch.searchsorted(cumulative, cumulative[..., -1:].contiguous(), right=False)
    return torch.minimum(tokens, last)[..., 0]
