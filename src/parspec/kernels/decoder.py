"""A whole forward pass of a Llama-family decoder in one call, on the CPU."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parspec.errors import OutOfMemoryError
from parspec.kernels.library import kernels
from parspec.kernels.linear import LinearStruct, PackedLinear, address

_LINEARS = ("query", "key", "value", "output", "gate", "up", "down")
_NORMS = ("input_norm", "attention_norm", "query_norm", "key_norm")


@dataclass(frozen=True)
class DecoderLayer:
    """The weights of one layer; norms are float32, those of queries and keys may be missing."""

    input_norm: Tensor
    attention_norm: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    query: PackedLinear
    key: PackedLinear
    value: PackedLinear
    output: PackedLinear
    gate: PackedLinear
    up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True)
class TokenGroup:
    """One group's tokens in a pass.

    Attributes:
        rows: Rows R; 1 if they go into the trunk.
        num_new: Tokens of each row, T.
        num_logits: Of how many of them, counted from the last, logits are wanted.
        into_trunk: Whether keys and values go into the trunk.
        trunk: ``[2, layers, heads, capacity, dim]`` float32.
        branches: ``[2, layers, particles, heads, capacity, dim]`` float32.
        trunk_length: Positions in use.
        branch_length: Positions in use.
    """

    rows: int
    num_new: int
    num_logits: int
    into_trunk: bool
    trunk: Tensor
    branches: Tensor
    trunk_length: int
    branch_length: int


class _Layer(ctypes.Structure):
    _fields_ = (*((name, ctypes.c_void_p) for name in _NORMS), *((name, LinearStruct) for name in _LINEARS))


class _Decoder(ctypes.Structure):
    _fields_ = (
        ("num_layers", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("num_heads", ctypes.c_int64),
        ("num_key_heads", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("epsilon", ctypes.c_float),
        ("layers", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
        ("head", LinearStruct),
    )


class _Group(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_int64),
        ("num_new", ctypes.c_int64),
        ("num_logits", ctypes.c_int64),
        ("into_trunk", ctypes.c_int64),
        ("particles", ctypes.c_int64),
        ("trunk", ctypes.c_void_p),
        ("branches", ctypes.c_void_p),
        ("trunk_length", ctypes.c_int64),
        ("trunk_capacity", ctypes.c_int64),
        ("branch_length", ctypes.c_int64),
        ("branch_capacity", ctypes.c_int64),
    )


class Decoder:
    """The weights of a decoder, laid out for `decode`.

    Args:
        layers: Its layers.
        norm: ``[hidden]`` float32, the last norm.
        head: The vocabulary head.
        num_heads: Query heads.
        num_key_heads: Key/value heads, a divisor of num_heads.
        dim: Dimensions of a head, a multiple of 8.
        epsilon: Added to the mean square in all norms.
    """

    def __init__(
        self,
        layers: Sequence[DecoderLayer],
        norm: Tensor,
        head: PackedLinear,
        *,
        num_heads: int,
        num_key_heads: int,
        dim: int,
        epsilon: float,
    ) -> None:
        assert dim % 8 == 0
        assert num_heads % num_key_heads == 0
        self.hidden, self.dim, self.num_outputs = len(norm), dim, head.num_outputs
        self._kept = (layers, norm, head)  # what the structures below point to
        self._layers = (_Layer * len(layers))(
            *(
                _Layer(
                    *(address(getattr(layer, name)) for name in _NORMS),
                    *(getattr(layer, name).struct for name in _LINEARS),
                )
                for layer in layers
            )
        )
        self._struct = _Decoder(
            len(layers),
            self.hidden,
            num_heads,
            num_key_heads,
            dim,
            epsilon,
            ctypes.addressof(self._layers),
            norm.data_ptr(),
            head.struct,
        )

    def decode(self, groups: Sequence[TokenGroup], embeddings: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Run the tokens of all groups through the model and write their keys and values into the caches.

        Args:
            groups: Whose tokens follow each other in the arguments below.
            embeddings: ``[M, hidden]`` float32, overwritten.
            cosine: ``[M, dim]`` float32 of the rotary embedding at the tokens' positions; sine likewise.
            sine: See cosine.

        Returns:
            Logits ``[wanted tokens, vocabulary]`` float32, in the tokens' order.

        Raises:
            OutOfMemoryError: There was no memory for intermediate results.
        """
        x, cosine, sine = (part.float().contiguous() for part in (embeddings, cosine, sine))
        wanted = sum(group.rows * group.num_logits for group in groups)
        logits = torch.empty(wanted, self.num_outputs)
        structs = (_Group * len(groups))(
            *(
                _Group(
                    group.rows,
                    group.num_new,
                    group.num_logits,
                    group.into_trunk,
                    group.branches.shape[2],
                    group.trunk.data_ptr(),
                    group.branches.data_ptr(),
                    group.trunk_length,
                    group.trunk.shape[-2],
                    group.branch_length,
                    group.branches.shape[-2],
                )
                for group in groups
            )
        )
        failed = kernels().parspec_decode(
            ctypes.addressof(self._struct),
            ctypes.addressof(structs),
            len(groups),
            x.data_ptr(),
            cosine.data_ptr(),
            sine.data_ptr(),
            logits.data_ptr(),
            torch.get_num_threads(),
        )
        if failed:
            raise OutOfMemoryError("no memory for a forward pass: use fewer particles or a shorter prompt")
        return logits
