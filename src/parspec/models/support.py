"""Which models can be served correctly; everything else is refused by name when it is loaded."""

from transformers import PreTrainedConfig

from parspec.errors import ModelError

PROVEN_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3"})
"""Model types whose every cache operation is tested; any other is compared with its own attention at load."""

_FIXED_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings that depend on a token's position alone, not on the length of the sequence so far."""


def check_config(config: PreTrainedConfig, name: str, max_model_len: int | None = None) -> int:
    """Refuse a configuration the trunk-and-branch cache cannot serve exactly.

    Args:
        config: The model's configuration.
        name: What to call the model in an error.
        max_model_len: The user's own limit on the context; it can make a sliding window moot.

    Returns:
        The longest context in tokens that can be served.

    Raises:
        ModelError: Names the feature that rules the model out.
    """

    def refuse(feature: str, advice: str = "use a decoder-only model with full attention") -> ModelError:
        return ModelError(f'model "{name}" ({config.model_type}) has {feature}, which parspec cannot serve: {advice}')

    if getattr(config, "is_encoder_decoder", False):
        raise refuse("an encoder")
    text_config = config.get_text_config()
    if text_config is not config:
        raise refuse("inputs other than text")
    positions = next(
        (getattr(config, key) for key in ("max_position_embeddings", "n_positions") if getattr(config, key, None)),
        None,
    )
    if positions is None:
        raise refuse("no stated context length (max_position_embeddings)")
    context: int = min(positions, max_model_len or positions)

    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    others = sorted(layer_types - {"full_attention", "sliding_attention"})
    if others:
        raise refuse(f"{', '.join(others)} layers")
    window = getattr(config, "sliding_window", None)
    uses_window = "sliding_attention" in layer_types or not getattr(config, "layer_types", None)
    if window and uses_window and window < context:
        raise refuse(
            f"sliding-window attention over {window} tokens",
            f"pass max_model_len={window} to use it within its window",
        )
    if getattr(config, "attention_chunk_size", None):
        raise refuse("chunked attention")
    rope = getattr(config, "rope_parameters", None) or {}
    rope_type = rope.get("rope_type", "default")
    if rope_type not in _FIXED_ROPE:
        raise refuse(f"{rope_type} rotary embeddings, which change with the length of the sequence")
    return context


def head_dim(config: PreTrainedConfig) -> int:
    """Dimensions of an attention head, which many configurations leave to be derived."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
