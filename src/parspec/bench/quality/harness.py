"""lm-eval's view of parspec: the model class ``parspec``.

Importing this module registers it. ``python -m parspec.bench.quality.harness`` is lm-eval's own command line with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import lm_eval.models  # noqa: F401 - registers lm-eval's own, which it leaves out once there is another
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from parspec.bench.quality.tasks import chat_text
from parspec.errors import InvalidRequestError
from parspec.llm import LLM
from parspec.sampling.params import SamplingParams

_NEUTRAL = ("batch_size", "max_batch_size")
"""Arguments lm-eval passes on its own; the engine batches by itself."""
_READ = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@register_model("parspec")
class ParspecLM(TemplateLM):  # type: ignore[misc]
    """Any task of lm-eval, answered by parspec.

    Args:
        pretrained: As `LLM`'s model.
        max_gen_toks: Most tokens of an answer where the task does not say.
        seed: Of the first answer; the following ones count on.
        **arguments: Further arguments of `LLM`, method parameters included. Temperature and truncation come from the
            task; given here, they replace the task's.

    Raises:
        ParspecError: As for `LLM`.
    """

    def __init__(self, pretrained: str, max_gen_toks: int = 512, seed: int = 0, **arguments: Any) -> None:
        super().__init__()
        self._sampling = {name: arguments.pop(name) for name in _READ if name in arguments}
        llm_arguments = {name: value for name, value in arguments.items() if name not in _NEUTRAL and value is not None}
        self.llm = LLM(pretrained, **llm_arguments)
        self.tokenizer = self.llm.tokenizer
        if self.tokenizer is None:
            raise InvalidRequestError(f'model "{pretrained}" has no tokenizer: lm-eval needs one')
        self._max_gen_toks, self._seed = max_gen_toks, seed

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text; the first text read by itself follows it."""
        return int(self.tokenizer.eos_token_id)

    @property
    def tokenizer_name(self) -> str:
        """For lm-eval's cache of prompts."""
        return self.llm.engine.target.name.replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Lay a conversation out; without a generation prompt the last message is to be continued."""
        return chat_text(self.tokenizer, chat_history, add_generation_prompt)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids of a text."""
        return list(self.tokenizer(string, add_special_tokens=bool(add_special_tokens))["input_ids"])

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers to lm-eval's requests, in their order."""
        prompts = [{"prompt_token_ids": self.tok_encode(request.args[0])} for request in requests]
        params = [self._params(request.args[1], self._seed + index) for index, request in enumerate(requests)]
        self._seed += len(requests)
        return [output.text for output in self.llm.generate(prompts, params)]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-probabilities of whole texts, read in windows as long as the context."""
        totals = []
        for request in requests:
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.llm.engine.target.context - 1,
                context_len=1,
            )
            parts = [make_disjoint_window(window) for window in windows]
            scored = self._loglikelihood_tokens([(("", ""), context, read) for context, read in parts])
            totals.append(sum(log_prob for log_prob, _ in scored))
        return totals

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **unused: Any
    ) -> list[tuple[float, bool]]:
        texts = [{"prompt_token_ids": context + continuation} for _, context, continuation in requests]
        results = []
        for (_, _, continuation), entries in zip(requests, self.llm.score(texts, num_top=1), strict=True):
            read = entries[-len(continuation) :]
            greedy = all(entry.token_id == entry.top[0][0] for entry in read)
            results.append((sum(entry.log_prob for entry in read), greedy))
        return results

    def _params(self, generation: Mapping[str, Any], seed: int) -> SamplingParams:
        """What a task says about an answer, in lm-eval's (that is, transformers') terms."""
        values: dict[str, Any] = {name: generation[name] for name in _READ if generation.get(name) is not None}
        if not generation.get("do_sample", "temperature" in values):
            values = {"temperature": 0.0}
        until = generation.get("until") or ()
        return SamplingParams(
            **{**values, **self._sampling},
            stop=until,
            max_tokens=generation.get("max_gen_toks", self._max_gen_toks),
            seed=seed,
        )


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
