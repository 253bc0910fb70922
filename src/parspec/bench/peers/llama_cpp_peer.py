"""llama.cpp through the C interface of llama-cpp-python: plain, and speculative with a draft model.

The Python class of llama-cpp-python copies logits and samples in Python; the loops here leave both to llama.cpp, as
its own programs do. The speculative one is that of its ``speculative-simple``: the draft proposes its most probable
tokens, the target samples at every one of them, and tokens are kept as long as the two agree.
"""

import weakref
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from parspec.bench.peers.measure import Generate, needed, serve
from parspec.bench.peers.protocol import PeerSpec

_SEED = 1


def main() -> None:
    """Run the peer."""
    lib = import_module("llama_cpp")
    # Else it logs every tensor it loads. The callback is named, because it must live as long as the library is used.
    silence = lib.llama_log_callback(lambda level, text, data: None)
    lib.llama_log_set(silence, None)
    serve("llama.cpp", lib.__version__, {"Q4_K_M": _plain, "Q4_K_M + draft": _drafted})


class _Model:
    """A model with one sequence in its memory.

    Attributes:
        past: Number of tokens in the memory.
    """

    def __init__(self, path: str, spec: PeerSpec, num_outputs: int) -> None:
        """Load a GGUF file for at most ``num_outputs`` rows of logits at a time."""
        self._lib = lib = import_module("llama_cpp")
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        longest = max(len(prompt.token_ids) for prompt in spec.prompts)
        capacity = longest + spec.max_tokens + num_outputs
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = capacity
        params.n_outputs_max = num_outputs
        params.n_threads = params.n_threads_batch = spec.threads
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context of {capacity} tokens for {path}")
        self._batch = lib.llama_batch_init(capacity, 0, 1)
        self._memory = lib.llama_get_memory(self._context)
        self.past = 0
        weakref.finalize(self, _free, lib, self._model, self._context, self._batch)

    def forward(self, tokens: Sequence[int], num_outputs: int) -> None:
        """Append tokens to the memory; logits of the last ``num_outputs`` of them."""
        batch, size = self._batch, len(tokens)
        batch.n_tokens = size
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = self.past + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i >= size - num_outputs
        if status := self._lib.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode failed with status {status}")
        self.past += size

    def sample(self, sampler: Any, index: int) -> int:
        """A token from the logits of the last pass; the index counts from the end: -1 for its last token."""
        return int(self._lib.llama_sampler_sample(sampler, self._context, self._batch.n_tokens + index))

    def cut(self, length: int) -> None:
        """Forget all but the first tokens."""
        if length < self.past:
            self._lib.llama_memory_seq_rm(self._memory, 0, length, -1)
            self.past = length

    def sampler(self, temperature: float) -> Any:
        """Samples from the whole distribution, the ends of text banned as by llama.cpp's own ``--ignore-eos``."""
        lib = self._lib
        vocabulary = lib.llama_model_get_vocab(self._model)
        size = lib.llama_vocab_n_tokens(vocabulary)
        ends = [token for token in range(size) if lib.llama_vocab_is_eog(vocabulary, token)]
        biases = (lib.llama_logit_bias * len(ends))(*(lib.llama_logit_bias(token, float("-inf")) for token in ends))
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_logit_bias(size, len(ends), biases))
        if temperature > 0:
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_temp(temperature))
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_dist(_SEED))
        else:
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_greedy())
        return chain


def _free(lib: Any, model: Any, context: Any, batch: Any) -> None:
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    lib.llama_model_free(model)


def _plain(spec: PeerSpec) -> Generate:
    target = _Model(needed(spec.target_gguf, "the target as a GGUF file"), spec, 1)
    sampler = target.sampler(spec.temperature)

    def generate(token_ids: Sequence[int], max_tokens: int) -> int:
        target.cut(0)
        pending = list(token_ids)
        for _ in range(max_tokens):
            target.forward(pending, 1)
            pending = [target.sample(sampler, -1)]
        return max_tokens

    return generate


def _drafted(spec: PeerSpec) -> Generate:
    # The target's outputs of a pass: one per drafted token, and one for the token before them.
    target = _Model(needed(spec.target_gguf, "the target as a GGUF file"), spec, spec.num_draft_tokens + 1)
    draft = _Model(needed(spec.draft_gguf, "the draft as a GGUF file"), spec, 1)
    sampler, proposer = target.sampler(spec.temperature), draft.sampler(0.0)

    def generate(token_ids: Sequence[int], max_tokens: int) -> int:
        target.cut(0)
        draft.cut(0)
        tokens = list(token_ids)
        end = len(tokens) + max_tokens
        while len(tokens) < end:
            proposed = _propose(draft, proposer, tokens, min(spec.num_draft_tokens, end - len(tokens) - 1))
            rows = len(proposed) + 1
            target.forward(tokens[target.past :] + proposed, rows)
            for i in range(rows):
                token = target.sample(sampler, i - rows)
                tokens.append(token)
                if i < len(proposed) and token != proposed[i]:
                    break
            # The last token has not been read; what was read behind it was drafted in vain.
            target.cut(len(tokens) - 1)
            draft.cut(len(tokens) - 1)
        return len(tokens) - len(token_ids)

    return generate


def _propose(draft: _Model, proposer: Any, tokens: list[int], count: int) -> list[int]:
    proposed: list[int] = []
    pending = tokens[draft.past :]
    for _ in range(count):
        draft.forward(pending, 1)
        pending = [draft.sample(proposer, -1)]
        proposed += pending
    return proposed


if __name__ == "__main__":
    main()
