"""The pass in one call against the same weights run through transformers' modules."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from parspec.kernels.linear import available
from parspec.models.cache import GroupCache
from parspec.models.interface import Forward
from parspec.models.transformers_model import ATTENTION, TransformersModel

pytestmark = pytest.mark.skipif(not available(), reason="this machine has no kernels")
VOCAB = 61
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
}
CONFIGS: dict[str, Callable[[], object]] = {
    "llama, one key head": lambda: LlamaConfig(**SIZES, num_attention_heads=6, num_key_value_heads=1, head_dim=8),
    "llama, head of 40": lambda: LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=4, head_dim=40),
    "llama 3 rope": lambda: LlamaConfig(
        **SIZES,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "qwen2": lambda: Qwen2Config(**SIZES, num_attention_heads=6, num_key_value_heads=2),
    "qwen3": lambda: Qwen3Config(**SIZES, num_attention_heads=6, num_key_value_heads=3, head_dim=32),
    "mistral": lambda: MistralConfig(**SIZES, num_attention_heads=6, num_key_value_heads=2, sliding_window=None),
}


def make_model(name: str, dtype: torch.dtype, quantization: str | None) -> TransformersModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation=ATTENTION, dtype=dtype).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    made = TransformersModel(model, name, 4096, torch.float32, quantization)
    assert made._native is not None
    return made


class Both:
    """Runs every request twice: natively on one set of caches, through the modules on another."""

    def __init__(self, model: TransformersModel, sizes: list[int]) -> None:
        self.model, self.native = model, model._native
        self.caches = [[GroupCache(model.cache_shape, n, 1500, 40) for n in sizes] for _ in range(2)]

    def forward(self, *asked: tuple[int, torch.Tensor, int, bool], tolerance: float = 2e-4) -> None:
        results = []
        for native, caches in zip((self.native, None), self.caches, strict=True):
            self.model._native = native
            results.append(self.model.forward([Forward(self.model, caches[g], *rest) for g, *rest in asked]))
        self.model._native = self.native
        for ours, theirs in zip(*results, strict=True):
            assert ours.shape == theirs.shape
            assert torch.isfinite(ours).all()
            if ours.numel():
                assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CONFIGS)
def test_equals_the_modules(name: str, dtype: torch.dtype, quantization: str | None) -> None:
    both = Both(make_model(name, dtype, quantization), [5, 2])
    generator = torch.Generator().manual_seed(1)

    def draw(rows: int, count: int) -> torch.Tensor:
        return torch.randint(VOCAB, (rows, count), generator=generator)

    # int8 layers round activations: a difference in the last bit may move one by a step.
    tolerance = 2e-4 if quantization is None else 5e-3
    both.forward((0, draw(1, 150), 3, True), (1, draw(1, 1), 0, True), tolerance=tolerance)
    both.forward((0, draw(5, 1), 1, False), (1, draw(2, 9), 9, False), tolerance=tolerance)
    both.forward((0, draw(3, 7), 7, False), (1, draw(1, 1), 1, False), tolerance=tolerance)


MODEL = make_model("qwen2", torch.float32, None) if available() else None


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 4), st.integers(1, 8)), min_size=1, max_size=4),
    st.integers(1, 40),
    st.integers(0, 2**32),
)
def test_any_sequence_of_passes(passes: list[tuple[int, int, int]], prompt: int, seed: int) -> None:
    assert MODEL is not None
    generator = torch.Generator().manual_seed(seed)
    both = Both(MODEL, [4, 4])
    for group in range(2):
        both.forward((group, torch.randint(VOCAB, (1, prompt + group), generator=generator), 1, True))
    # Rows only ever become fewer: a particle that has missed a pass has finished.
    for group, rows, count in sorted(passes, key=lambda entry: -entry[1]):
        both.forward((group, torch.randint(VOCAB, (rows, count), generator=generator), count, False))


@pytest.mark.parametrize(("length", "wanted"), [(511, 1), (512, 0), (513, 1), (1100, 3), (1300, 600)])
def test_long_prompts_run_in_stretches(length: int, wanted: int) -> None:
    assert MODEL is not None
    both = Both(MODEL, [2])
    both.forward((0, torch.randint(VOCAB, (1, length)), wanted, True))
    both.forward((0, torch.randint(VOCAB, (2, 3)), 3, False))
