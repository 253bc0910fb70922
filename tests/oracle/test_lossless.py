"""Autoregressive and speculative decoding draw exactly from the target: chi-square against the enumerated truth."""

from copy import deepcopy

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from parspec.engine.cost import CostModel, PassCost
from parspec.kernels.linear import quantise
from parspec.models.loader import LoadedModel
from parspec.models.transformers_model import ATTENTION, TransformersModel
from parspec.sampling.params import SamplingParams
from tests.support.exact import chi_square_p_value, enumerate_answers, table_logits, total_variation
from tests.support.table_model import TableModel, loaded

DRAWS, SIGNIFICANCE, LENGTH = 20_000, 1e-4, 4
TARGET = TableModel.random(vocab_size=4, length=6, seed=0)
DRAFTS = {
    "well matched": TARGET.perturbed(seed=1, size=0.3),
    "badly matched": TableModel.random(4, 6, seed=2),
}
TRUTH = enumerate_answers(table_logits(TARGET), SamplingParams(), LENGTH, [0])


def test_the_enumeration_is_complete() -> None:
    assert sum(TRUTH.values()) == pytest.approx(1.0, abs=1e-6)


def test_autoregressive_is_exact(draw, measured) -> None:
    outputs = draw(loaded(TARGET), None, DRAWS, method="autoregressive", max_tokens=LENGTH)
    p = chi_square_p_value([tuple(o.token_ids) for o in outputs], TRUTH)
    measured(f"autoregressive: chi-square p = {p:.3f} over {DRAWS} draws")
    assert p > SIGNIFICANCE


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("matched", DRAFTS)
def test_speculative_is_exact(draw, matched: str, chains: int, measured) -> None:
    outputs = draw(
        loaded(TARGET),
        loaded(DRAFTS[matched]),
        DRAWS,
        method="speculative",
        num_particles=chains,
        num_draft_tokens=3,
        max_tokens=LENGTH,
    )
    p = chi_square_p_value([tuple(o.token_ids) for o in outputs], TRUTH)
    kept = sum(o.metrics.num_kept for o in outputs) / sum(o.metrics.num_drafted for o in outputs)
    measured(f"speculative, {matched}, {chains} chains: chi-square p = {p:.3f}, {kept:.0%} of drafted tokens kept")
    assert p > SIGNIFICANCE


def test_speculative_is_exact_for_processed_distributions(draw, measured) -> None:
    """The draft's processed distribution, not its raw one, must stand in the acceptance ratio."""
    sampling = {"temperature": 0.6, "top_k": 3, "top_p": 0.9, "min_p": 0.02}
    truth = enumerate_answers(table_logits(TARGET), SamplingParams(**sampling), LENGTH, [0])
    outputs = draw(
        loaded(TARGET),
        loaded(DRAFTS["badly matched"]),
        DRAWS,
        method="speculative",
        num_particles=2,
        num_draft_tokens=3,
        max_tokens=LENGTH,
        **sampling,
    )
    p = chi_square_p_value([tuple(o.token_ids) for o in outputs], truth)
    measured(f"speculative with temperature, top-k, top-p and min-p: chi-square p = {p:.3f}")
    assert p > SIGNIFICANCE


def test_auto_is_exact_while_it_stays_lossless(draw, measured) -> None:
    """The number of drafted tokens changes with load and acceptance, from many to none; the distribution does not."""
    costs = CostModel(PassCost((1, 250, 1000), (1.0, 1.2, 4.0)), PassCost((1, 250), (0.05, 0.05)))
    outputs = draw(
        loaded(TARGET),
        loaded(DRAFTS["badly matched"]),
        DRAWS,
        method="auto",
        num_particles=1,
        max_tokens=LENGTH,
        costs=costs,
    )
    assert {o.method for o in outputs} == {"speculative"}
    drafted = {o.metrics.num_drafted for o in outputs}
    p = chi_square_p_value([tuple(o.token_ids) for o in outputs], TRUTH)
    measured(f"auto: chi-square p = {p:.3f}; {min(drafted)} to {max(drafted)} tokens drafted a request")
    assert min(drafted) < max(drafted)
    assert p > SIGNIFICANCE


def tiny_llama(seed: int, quantization: str | None = None, noise: float = 0.0) -> tuple[LoadedModel, torch.nn.Module]:
    """A random transformer of 6 tokens behind the real cache, and the same as transformers runs it.

    Of a quantised model the second has the weights the first has been rounded to.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=6,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        bos_token_id=1,
        eos_token_id=0,
    )
    plain = AutoModelForCausalLM.from_config(deepcopy(config), attn_implementation="eager").eval()
    torch.nn.init.normal_(plain.model.embed_tokens.weight, std=1.0)
    torch.nn.init.normal_(plain.lm_head.weight, std=0.5)
    plain.lm_head.weight.data += noise * torch.randn(plain.lm_head.weight.shape)
    ours = AutoModelForCausalLM.from_config(deepcopy(config), attn_implementation=ATTENTION).eval()
    ours.load_state_dict(plain.state_dict())
    if quantization is not None:
        for module in plain.modules():
            if isinstance(module, torch.nn.Linear):
                levels, scale = quantise(module.weight.detach())
                module.weight.data = levels * scale[:, None]
    model = TransformersModel(ours, "tiny", 32, torch.float32, quantization)
    return LoadedModel("tiny", model, None, (0,)), plain


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("method", ["autoregressive", "speculative"])
def test_exact_on_a_transformer(draw, method: str, quantization: str | None, measured) -> None:
    """The same on a real transformer: its attention, cache, kernels and batching are part of what is tested."""
    (target, plain), (draft, _) = tiny_llama(0, quantization), tiny_llama(1, "int8")

    def next_logits(prefix: tuple[int, ...]) -> torch.Tensor:
        with torch.no_grad():
            return plain(input_ids=torch.tensor([[1, 2, *prefix]])).logits[0, -1]

    truth = enumerate_answers(next_logits, SamplingParams(), 3, [0])
    outputs = draw(
        target, draft, DRAWS, prompt=[1, 2], method=method, num_particles=2, num_draft_tokens=2, max_tokens=3
    )
    p = chi_square_p_value([tuple(o.token_ids) for o in outputs], truth)
    measured(f"{method} on a transformer, weights {quantization}: chi-square p = {p:.3f} over {len(truth)} answers")
    assert p > SIGNIFICANCE


def test_smc_approaches_a_quantised_transformer(draw, measured) -> None:
    """Both models on int8 weights: the distance to the quantised target's own distribution falls with N."""
    (target, plain), (draft, _) = tiny_llama(0, "int8"), tiny_llama(0, "int8", noise=0.2)

    def next_logits(prefix: tuple[int, ...]) -> torch.Tensor:
        with torch.no_grad():
            return plain(input_ids=torch.tensor([[1, 2, *prefix]])).logits[0, -1]

    truth = enumerate_answers(next_logits, SamplingParams(), 3, [0])
    distances = []
    for particles, runs in ((2, 3000), (16, 1000)):
        outputs = draw(
            target, draft, runs, prompt=[1, 2], method="smc", num_particles=particles, num_draft_tokens=2, max_tokens=3
        )
        mean: dict[tuple[int, ...], float] = {}
        for output in outputs:
            for particle in output.posterior.particles:
                answer = tuple(particle.token_ids)
                mean[answer] = mean.get(answer, 0.0) + particle.weight / runs
        distances.append(total_variation(mean, truth))
    measured(f"smc on int8 transformers: total variation {distances[0]:.3f} at N = 2, {distances[1]:.3f} at N = 16")
    assert distances[1] < 0.5 * distances[0]
    assert distances[1] < 0.06
