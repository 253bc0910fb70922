"""OpenVINO GenAI: weights in eight or four bits, without and with a draft in as many."""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from parspec.bench.peers.measure import Generate, needed, serve
from parspec.bench.peers.openvino_convert import converted
from parspec.bench.peers.protocol import PeerSpec


def main() -> None:
    """Run the peer."""
    modes = {
        "int8": partial(_plain, "int8"),
        "int4": partial(_plain, "int4"),
        "int8 + draft": partial(_drafted, "int8"),
        "int4 + draft": partial(_drafted, "int4"),
    }
    serve("openvino", import_module("openvino_genai").get_version(), modes)


def _plain(precision: str, spec: PeerSpec) -> Generate:
    target = converted(Path(needed(spec.target_gguf, "the target as a GGUF file")), precision, Path(spec.work_dir))
    return _generator(spec, target, {}, {})


def _drafted(precision: str, spec: PeerSpec) -> Generate:
    target = converted(Path(needed(spec.target_gguf, "the target as a GGUF file")), precision, Path(spec.work_dir))
    draft = converted(Path(needed(spec.draft_gguf, "the draft as a GGUF file")), precision, Path(spec.work_dir))
    model = import_module("openvino_genai").draft_model(str(draft), "CPU", INFERENCE_NUM_THREADS=spec.threads)
    return _generator(spec, target, {"draft_model": model}, {"num_assistant_tokens": spec.num_draft_tokens})


def _generator(spec: PeerSpec, folder: Path, pipeline: dict[str, Any], generation: dict[str, Any]) -> Generate:
    openvino, genai = import_module("openvino"), import_module("openvino_genai")
    import numpy as np

    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False  # on by default, and a repeat would not read its prompt
    scheduler.max_num_batched_tokens = 2**31 - 1  # as by default: a prompt is read in one pass
    llm = genai.LLMPipeline(
        str(folder), "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=spec.threads, **pipeline
    )
    config = genai.GenerationConfig(**generation)
    config.ignore_eos = True
    config.apply_chat_template = False
    config.do_sample = spec.temperature > 0
    if config.do_sample:
        config.temperature = spec.temperature
        config.top_p = 1.0

    def generate(token_ids: Sequence[int], max_tokens: int) -> int:
        config.max_new_tokens = max_tokens
        prompt = openvino.Tensor(np.array([token_ids], dtype=np.int64))
        return len(llm.generate(prompt, config).tokens[0])

    return generate


if __name__ == "__main__":
    main()
