"""vLLM: plain generation, and speculative decoding with a draft model."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from parspec.bench.peers.measure import Generate, serve
from parspec.bench.peers.protocol import PeerSpec


def main() -> None:
    """Run the peer."""
    version = import_module("vllm").__version__
    serve("vllm", version, {"generate": _plain, "draft model": _drafted})


def _plain(spec: PeerSpec) -> Generate:
    return _generator(spec, {})


def _drafted(spec: PeerSpec) -> Generate:
    speculation = {"method": "draft_model", "model": spec.draft, "num_speculative_tokens": spec.num_draft_tokens}
    return _generator(spec, {"speculative_config": speculation})


def _generator(spec: PeerSpec, options: dict[str, Any]) -> Generate:
    vllm = import_module("vllm")
    longest = max(len(prompt.token_ids) for prompt in spec.prompts)
    llm = vllm.LLM(
        model=spec.target,
        dtype=spec.dtype,
        max_model_len=longest + spec.max_tokens + spec.num_draft_tokens + 1,
        max_num_seqs=1,
        enable_prefix_caching=False,  # else a repeat would not read its prompt
        skip_tokenizer_init=True,
        seed=0,
        **options,
    )

    def generate(token_ids: Sequence[int], max_tokens: int) -> int:
        params = vllm.SamplingParams(
            temperature=spec.temperature, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        outputs = llm.generate({"prompt_token_ids": list(token_ids)}, params, use_tqdm=False)
        return len(outputs[0].outputs[0].token_ids)

    return generate


if __name__ == "__main__":
    main()
