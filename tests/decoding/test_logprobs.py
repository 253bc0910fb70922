"""Scored texts have the log-probabilities of a plain forward pass."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from parspec import LLM, InvalidRequestError, SamplingParams
from parspec.decoding.prefill import CHUNK
from tests.support.models import Pair, tiny_pair

__all__ = ["tiny_pair"]


@pytest.mark.parametrize("length", [2, 3, CHUNK, CHUNK + 1, CHUNK + 2, 3 * CHUNK])
def test_equals_a_plain_forward_pass(tiny_pair: Pair, length: int) -> None:
    llm = LLM(str(tiny_pair.target), str(tiny_pair.draft), dtype="float32")
    size = llm.engine.vocab_size
    tokens = torch.randint(size, (length,), generator=torch.Generator().manual_seed(length))
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(tiny_pair.target)(tokens[None]).logits[0, :, :size]
    expected = logits.float().log_softmax(-1)
    scored = llm.score([{"prompt_token_ids": tokens.tolist()}], num_top=3)[0]
    assert [one.token_id for one in scored] == tokens[1:].tolist()
    for place, one in enumerate(scored):
        assert one.log_prob == pytest.approx(float(expected[place, tokens[place + 1]]), abs=1e-4)
        top = expected[place].topk(3)
        assert [value for _, value in one.top] == pytest.approx(top.values.tolist(), abs=1e-4)
    assert llm.engine.scheduler.reserved == 0


def test_bad_texts_are_refused(tiny_pair: Pair) -> None:
    llm = LLM(str(tiny_pair.target))
    for ids, words in (([1], "fewer than two"), ([1, 10**6], "vocabulary"), ([1] * 600, "at most")):
        with pytest.raises(InvalidRequestError, match=words):
            llm.score([{"prompt_token_ids": ids}])
    with pytest.raises(InvalidRequestError, match="num_top"):
        llm.score("Hello", num_top=-1)


@pytest.mark.parametrize("method", ["smc", "speculative", "autoregressive"])
def test_prompt_and_answer_together_are_the_scored_text(tiny_pair: Pair, method: str) -> None:
    """Prompts longer than a chunk; what is read in pieces is continued as what is read at once."""
    llm = LLM(str(tiny_pair.target), str(tiny_pair.draft), dtype="float32", method=method)
    prompt = torch.randint(5, 200, (2 * CHUNK + 7,), generator=torch.Generator().manual_seed(1)).tolist()
    plain = SamplingParams(max_tokens=12, seed=3, temperature=0.9)
    asked = SamplingParams(max_tokens=12, seed=3, temperature=0.9, logprobs=2, prompt_logprobs=2)
    output = llm.generate([{"prompt_token_ids": prompt}], asked)[0]
    assert output.token_ids == llm.generate([{"prompt_token_ids": prompt}], plain)[0].token_ids
    scored = llm.score([{"prompt_token_ids": prompt + output.token_ids}], num_top=2)[0]
    recorded = [*output.prompt_log_probs, *output.log_probs]
    assert [one.token_id for one in recorded] == [one.token_id for one in scored]
    assert [one.log_prob for one in recorded] == pytest.approx([one.log_prob for one in scored], abs=1e-4)
    chunks = list(llm.stream({"prompt_token_ids": prompt}, asked))
    assert [one for chunk in chunks for one in chunk.log_probs] == output.log_probs
