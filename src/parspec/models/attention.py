"""Attention that reports its log-sum-exp, and the exact merge of two disjoint sets of keys.

Softmax attention over the union of two disjoint key sets A and B is a convex combination of the attentions
over each: with ``l = logsumexp(scores)`` of each part,

    out = sigmoid(l_A - l_B) * out_A + sigmoid(l_B - l_A) * out_B

(the identity FlashAttention uses between blocks, arXiv 2205.14135, section 3.1). It lets all particles of a
group attend to their common trunk in one batch against a single copy of its keys and values.
"""

import torch
from torch import Tensor


def attention_with_lse(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Softmax attention and the log-sum-exp of its scores.

    Args:
        query: ``[B, H, Q, D]``.
        key: ``[B, H, L, D]`` with L >= 1.
        value: ``[B, H, L, D]``.
        scale: Factor on the scores.
        mask: ``[Q, L]`` float32, added to the scaled scores (0 or -inf); None lets every query see every key.

    Returns:
        The output ``[B, H, Q, D]`` in query's dtype and the log-sum-exp ``[B, H, Q]`` in float32.
    """
    if query.device.type == "cpu":
        # The kernel behind scaled_dot_product_attention, called by name because only it hands out the log-sum-exp.
        cast = None if mask is None else mask.to(query.dtype)[None, None]
        output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, False, attn_mask=cast, scale=scale
        )
        return output, lse
    scores = (query.float() @ key.float().mT) * scale
    if mask is not None:
        scores = scores + mask
    lse = scores.logsumexp(-1)
    probabilities = (scores - lse[..., None]).exp()
    return (probabilities @ value.float()).to(query.dtype), lse


def merge(output_a: Tensor, lse_a: Tensor, output_b: Tensor, lse_b: Tensor) -> Tensor:
    """Combine attentions over two disjoint key sets into the attention over their union.

    Args:
        output_a: ``[..., D]`` attention over the first set; output_b likewise over the second.
        lse_a: ``[...]`` log-sum-exp of the first set's scores; lse_b likewise.
        output_b: See output_a.
        lse_b: See lse_a.

    Returns:
        ``[..., D]`` in output_a's dtype.
    """
    share_a = torch.sigmoid(lse_a - lse_b)[..., None].to(output_a.dtype)
    return torch.lerp(output_b, output_a, share_a)


def causal_mask(num_new: int, length: int, repeats: int, device: torch.device) -> Tensor | None:
    """Additive mask by which each of the last num_new positions sees itself and everything before it.

    Args:
        num_new: Positions that ask.
        length: Keys in all; the last num_new of them belong to the asking positions.
        repeats: Query heads a key head serves; their queries are laid out head after head.
        device: Where the mask lives.

    Returns:
        ``[repeats * num_new, length]`` float32, or None where a single position sees everything.
    """
    if num_new == 1:
        return None
    hidden = torch.ones(num_new, length, dtype=torch.bool, device=device).triu(length - num_new + 1)
    mask = torch.zeros(num_new, length, device=device).masked_fill_(hidden, -torch.inf)
    return mask.repeat(repeats, 1)
