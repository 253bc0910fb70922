"""From the options to a loaded pair of models."""

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from parspec.cli.console import note
from parspec.cli.options import ModelOptions
from parspec.errors import InvalidRequestError, ModelError

if TYPE_CHECKING:
    from parspec.llm import LLM
    from parspec.sampling.params import SamplingParams


def load(
    options: ModelOptions,
    sampling: "SamplingParams",
    *,
    keep_draft: bool = False,
    max_model_len: int | None = None,
    cache_memory: float | None = None,
) -> "LLM":
    """Say what is going to run, then load it.

    Args:
        options: Which models, and where.
        sampling: Its method parameters become the defaults; the method decides whether a draft is needed.
        keep_draft: Load the draft in any case, for requests with a method of their own.
        max_model_len: As for `LLM`.
        cache_memory: As for `LLM`.

    Raises:
        ModelError: A model cannot be found, read or served, or has no tokenizer.
        InvalidRequestError: The parameters do not go together.
    """
    from parspec.llm import LLM
    from parspec.models.device import choose_device, choose_dtype, choose_quantization
    from parspec.models.locate import resolve_pair
    from parspec.sampling.params import MethodParams

    target, draft = resolve_pair(options.target, options.draft)
    preset = (sampling.preset or "balanced") if sampling.method is None else sampling.preset
    params = MethodParams(method=sampling.method or "auto", preset=preset).override(
        replace(sampling, method=None, preset=None)
    )
    method = params.method
    if method == "autoregressive" and not keep_draft:
        draft = None  # it would only take time and memory
    elif draft is None and method not in ("autoregressive", "auto"):
        raise InvalidRequestError(f'method "{method}" needs a draft model: name one with --draft')
    device = choose_device(options.device)
    dtype = str(choose_dtype(options.dtype, device)).removeprefix("torch.")
    how = f"method {'autoregressive' if method == 'auto' and draft is None else method}"
    if method == "auto" and draft is not None:
        how += f" ({params.preset})" if params.preset is not None else ""
        how += f" of at most {params.rows} particles and {params.num_draft_tokens} draft tokens"
    elif draft is not None and method != "autoregressive":
        how += f" with {params.rows} particles" if method == "smc" else f" with {params.rows} draft chains"
        how += f" and {params.num_draft_tokens} draft tokens"
    quantization, draft_quantization = (
        choose_quantization(None if name == "none" else name, device)
        for name in (options.quantization, options.draft_quantization)
    )
    weights = f"weights {quantization or 'as stored'}"
    if draft is not None:
        weights += f", of the draft {draft_quantization or 'as stored'}"
    note(f"target {target}, draft {draft or 'none'}, {how}, {dtype} on {device}, {weights}")

    start = time.perf_counter()
    llm = LLM(
        target,
        draft,
        device=options.device,
        dtype=options.dtype,
        quantization=quantization,
        draft_quantization=draft_quantization,
        cache_dir=options.cache_dir,
        max_model_len=max_model_len,
        cache_memory=cache_memory,
        **asdict(params),
    )
    if llm.tokenizer is None:
        raise ModelError(
            f'model "{target}" has no tokenizer: '
            "put its tokenizer files into the folder, or "
            "use the Python interface with token ids"
        )
    note(f"loaded in {time.perf_counter() - start:.1f} s")
    return llm
