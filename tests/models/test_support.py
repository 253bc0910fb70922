"""What cannot be served exactly is refused by name when it is loaded."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    JambaConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen2Config,
    T5Config,
)

from parspec.errors import ModelError
from parspec.models.cache import GroupCache
from parspec.models.interface import Forward
from parspec.models.support import check_config
from parspec.models.transformers_model import ATTENTION, TransformersModel


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MistralConfig(sliding_window=64), "mistral.*sliding-window attention over 64 tokens.*max_model_len=64"),
        (
            Qwen2Config(use_sliding_window=True, sliding_window=64, max_window_layers=2),
            "qwen2.*sliding-window attention over 64",
        ),
        (JambaConfig(), "jamba.* layers"),
        (MambaConfig(), "mamba.*no stated context length"),
        (T5Config(), "t5.*encoder"),
        (
            LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
            "llama.*dynamic rotary embeddings",
        ),
    ],
)
def test_refused_by_name(config, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        check_config(config, "some/model")


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(),
        MistralConfig(sliding_window=None),
        Qwen2Config(),
        LlamaConfig(
            rope_parameters={
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 1024,
                "rope_theta": 5e5,
            }
        ),
    ],
)
def test_served(config) -> None:
    assert check_config(config, "some/model") == config.max_position_embeddings


def test_a_sliding_window_is_served_within_itself() -> None:
    assert check_config(MistralConfig(sliding_window=64), "some/model", max_model_len=64) == 64


def test_soft_capped_attention_is_found_out_at_load() -> None:
    config = Gemma2Config(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
        sliding_window=64,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION).eval()
    with pytest.raises(ModelError, match="softcap"):
        TransformersModel(model, "some/model", 64, torch.float32)


def test_an_unfamiliar_model_is_served_after_its_check() -> None:
    """GPT-2: learned positions, fused projections; not in the list of proven families."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=0)
    plain = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    config = GPT2Config(**config.to_dict())
    ours = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION).eval()
    ours.load_state_dict(plain.state_dict())
    model = TransformersModel(ours, "some/model", 64, torch.float32)
    cache = GroupCache(model.cache_shape, 3, 10, 5)
    prompt, block = torch.randint(40, (1, 6)), torch.randint(40, (3, 4))
    model.forward([Forward(model, cache, prompt, 1, into_trunk=True)])
    logits = model.forward([Forward(model, cache, block, 4)])[0]
    with torch.no_grad():
        expected = plain(input_ids=torch.cat([prompt.expand(3, -1), block], 1)).logits[:, -4:]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
