"""transformers: plain generation, and assisted generation with the draft as assistant."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from parspec.bench.peers.measure import Generate, serve
from parspec.bench.peers.protocol import PeerSpec


def main() -> None:
    """Run the peer."""
    version = import_module("transformers").__version__
    serve("transformers", version, {"generate": _plain, "assisted": _assisted})


def _plain(spec: PeerSpec) -> Generate:
    return _generator(spec, _model(spec.target, spec), {})


def _assisted(spec: PeerSpec) -> Generate:
    target, draft = _model(spec.target, spec), _model(spec.draft, spec)
    # Where the length of a draft is configured. Its confidence threshold, which ends a draft early, stays as it is
    # shipped: it is part of the method.
    draft.generation_config.num_assistant_tokens = spec.num_draft_tokens
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    return _generator(spec, target, {"assistant_model": draft})


def _model(folder: str, spec: PeerSpec) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(spec.threads)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, spec.dtype), local_files_only=True)
    return model.eval().to(device)


def _generator(spec: PeerSpec, model: Any, options: dict[str, Any]) -> Generate:
    import torch

    if spec.temperature > 0:
        sampling = {"do_sample": True, "temperature": spec.temperature, "top_k": 0, "top_p": 1.0}
    else:
        sampling = {"do_sample": False}

    def generate(token_ids: Sequence[int], max_tokens: int) -> int:
        prompt = torch.tensor([token_ids], device=model.device)
        with torch.inference_mode():
            # A minimum as high as the maximum bans the end of text.
            result = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=max_tokens,
                min_new_tokens=max_tokens,
                **sampling,
                **options,
            )
        return int(result.shape[1]) - len(token_ids)

    return generate


if __name__ == "__main__":
    main()
