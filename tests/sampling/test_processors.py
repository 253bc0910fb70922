import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from parspec.errors import ParspecError
from parspec.sampling.params import SamplingParams
from parspec.sampling.processors import power, process, sample

INF = math.inf


def naive(logits: list[float], params: SamplingParams) -> list[float]:
    """The probabilities by definition, in doubles; rejects examples where rounding decides what is kept."""
    largest = max(logits)
    if params.temperature == 0:
        first = logits.index(largest)
        return [float(i == first) for i in range(len(logits))]
    mass = [math.exp((x - largest) / params.temperature) for x in logits]
    total = sum(mass)
    probs = [m / total for m in mass]
    assume(all(p == max(probs) or abs(p - params.min_p * max(probs)) > 1e-5 * p for p in probs))
    kept = [p if p >= params.min_p * max(probs) else 0.0 for p in probs]
    if 0 < params.top_k < len(kept):
        least = sorted(kept, reverse=True)[params.top_k - 1]
        kept = [p if p >= least else 0.0 for p in kept]
    if params.top_p < 1:
        wanted, reached = params.top_p * sum(kept), 0.0
        for least in sorted(kept, reverse=True):
            reached += least
            assume(abs(reached - wanted) > 1e-5)
            if reached > wanted:
                break
        kept = [p if p >= least else 0.0 for p in kept]
    return [p / sum(kept) for p in kept]


def check(logits: torch.Tensor, params: SamplingParams) -> None:
    before = logits.clone()
    result = process(logits, params)
    assert torch.equal(logits, before)
    assert result.dtype == torch.float32
    assert result.shape == logits.shape
    expected = torch.tensor([naive(row, params) for row in logits.reshape(-1, logits.shape[-1]).double().tolist()])
    expected = expected.reshape(logits.shape)
    # What is kept is told apart from what is not, as far as float32 has room for it.
    assert torch.equal(result > -60, expected > math.exp(-60))
    torch.testing.assert_close(result.exp(), expected.float(), atol=2e-6, rtol=1e-4)
    torch.testing.assert_close(result.exp().sum(-1), torch.ones(logits.shape[:-1]), atol=1e-5, rtol=0)


# Quarters make ties frequent and are exact in every format; -inf is a masked id.
LOGIT = st.one_of(st.integers(-40, 40).map(lambda n: n / 4), st.integers(-2, 2).map(float), st.just(-INF))
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-320, 1e-40, 1e-6, 0.1, 0.7, 1.0, 1.5, 100.0]),
    top_p=st.sampled_from([1e-6, 0.1, 0.5, 0.77, 0.9, 0.99, 0.999999, 1.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 3, 5, 100]),
    min_p=st.sampled_from([0.0, 1e-9, 0.01, 0.1, 0.5, 1.0]),
)


@settings(deadline=None, max_examples=400)
@given(st.data(), st.integers(1, 12), st.integers(1, 3), PARAMS)
def test_follows_the_definition(data: st.DataObject, size: int, rows: int, params: SamplingParams) -> None:
    row = st.lists(LOGIT, min_size=size, max_size=size).filter(lambda x: max(x) > -INF)
    logits = torch.tensor(data.draw(st.lists(row, min_size=rows, max_size=rows)))
    check(logits, params)


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.93, 0.9999])
@pytest.mark.parametrize(("top_k", "min_p"), [(0, 0.0), (700, 0.0), (0, 0.02)])
def test_nucleus_larger_than_the_candidates_looked_at_first(top_p: float, top_k: int, min_p: float) -> None:
    generator = torch.Generator().manual_seed(0)
    peaked, flat = torch.randn(1, 9000, generator=generator) * 8, torch.randn(2, 9000, generator=generator)
    logits = torch.cat([flat[:1], peaked, flat[1:]])
    result = process(logits, SamplingParams(top_p=top_p, top_k=top_k, min_p=min_p))
    for row, kept in zip(logits.double().softmax(-1), result > -INF, strict=True):
        # The last token kept is within rounding of the right one in the order of probability.
        ordered = row.sort(descending=True).values
        allowed = ordered[ordered >= min_p * ordered[0]]
        allowed = allowed[:top_k] if top_k else allowed
        wanted = int((allowed.cumsum(0) < top_p * allowed.sum()).sum()) + 1
        assert abs(int(kept.sum()) - wanted) <= max(1, wanted // 1000)
        assert row[kept].min() > row[~kept].max()


@pytest.mark.parametrize("size", [1, 7, 600, 5000])
@pytest.mark.parametrize("given", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 1.0}, {"top_p": 1e-6, "top_k": 1}])
def test_equal_logits_stay_uniform(size: int, given: dict[str, float]) -> None:
    result = process(torch.full((2, size), 3.5), SamplingParams(**given))
    torch.testing.assert_close(result, torch.full((2, size), -math.log(size)))


def test_top_k_keeps_ties() -> None:
    result = process(torch.tensor([2.0, 1.0, 1.0, 0.0]), SamplingParams(top_k=2))
    assert (result > -INF).tolist() == [True, True, True, False]


def test_min_p_comes_before_top_k_and_top_p_and_after_temperature() -> None:
    logits = torch.tensor([0.5, 0.2, 0.15, 0.15]).log()
    assert (process(logits, SamplingParams(min_p=0.35)) > -INF).tolist() == [True, True, False, False]
    # Flattened by the temperature, the others come within reach of the most probable one.
    assert (process(logits, SamplingParams(min_p=0.35, temperature=2)) > -INF).all()
    # 0.5 of all is 0.5 / 0.7 = 0.71 of what min_p leaves: one token reaches 0.7.
    assert (process(logits, SamplingParams(min_p=0.35, top_p=0.7)) > -INF).tolist() == [
        True,
        False,
        False,
        False,
    ]
    assert (process(logits, SamplingParams(top_p=0.65)) > -INF).tolist() == [True, True, False, False]


@pytest.mark.parametrize("given", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5, "top_p": 0.9, "top_k": 3}])
def test_temperature_zero_is_one_hot_at_the_first_largest(given: dict[str, float]) -> None:
    result = process(
        torch.tensor([[-INF, 1.0, 3.0, 3.0], [5.0, -1.0, -INF, 5.0]]), SamplingParams(temperature=0, **given)
    )
    assert result.tolist() == [[-INF, -INF, 0.0, -INF], [0.0, -INF, -INF, -INF]]


@pytest.mark.parametrize("temperature", [1e-320, 1e-45, 1e-39, 1e-38, 1e-6])
def test_tiny_temperature_keeps_the_largest(temperature: float) -> None:
    result = process(torch.tensor([1.0, 2.0, 2.0, -1e30, -INF]), SamplingParams(temperature=temperature))
    torch.testing.assert_close(result.exp(), torch.tensor([0.0, 0.5, 0.5, 0.0, 0.0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_all_float_formats(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1.0, -2.0, 0.5, -INF]])
    params = SamplingParams(temperature=0.5, top_p=0.99)
    assert torch.equal(process(logits.to(dtype), params), process(logits, params))


@pytest.mark.parametrize("given", [{}, {"temperature": 0}, {"top_p": 0.5, "top_k": 2, "min_p": 0.1}])
def test_shapes(given: dict[str, float]) -> None:
    params = SamplingParams(**given)
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1))
    result = process(logits, params)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(process(logits[i, j], params), result[i, j])
    assert process(torch.empty(2, 0, 5), params).shape == (2, 0, 5)
    # A vocabulary without its padding is a view that is not contiguous.
    torch.testing.assert_close(process(torch.cat([logits, logits], -1)[..., :5], params), result)


@pytest.mark.parametrize("bad", [math.nan, INF, -math.nan])
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_not_finite_are_refused(bad: float, temperature: float) -> None:
    logits = torch.zeros(3, 4)
    logits[1, 2] = bad
    with pytest.raises(ParspecError, match="the model produced NaN or infinite logits"):
        process(logits, SamplingParams(temperature=temperature))


def test_a_row_without_any_token_is_refused() -> None:
    with pytest.raises(ParspecError, match="the model produced NaN or infinite logits"):
        process(torch.tensor([[0.0, 1.0], [-INF, -INF]]), SamplingParams())


@pytest.mark.parametrize("alpha", [1e-320, 1e-3, 0.5, 2.0, 100.0])
def test_power(alpha: float) -> None:
    log_probs = process(torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(2)) * 3, SamplingParams(top_k=20))
    raised, log_z = power(log_probs, alpha)
    exact = (alpha * log_probs.double()).masked_fill(log_probs == -INF, -INF)
    torch.testing.assert_close(log_z.double(), exact.logsumexp(-1), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(raised.double(), exact.log_softmax(-1), atol=1e-4, rtol=1e-5)
    assert log_z.shape == (2, 3)
    assert not raised.isnan().any()


def test_power_one_changes_nothing() -> None:
    log_probs = torch.randn(3, 4).log_softmax(-1)
    raised, log_z = power(log_probs, 1)
    assert raised is log_probs
    assert log_z.tolist() == [0.0, 0.0, 0.0]


def test_power_of_one_hot_is_exact() -> None:
    one_hot = process(torch.randn(3, 9), SamplingParams(temperature=0))
    raised, log_z = power(one_hot, 3.0)
    assert torch.equal(raised, one_hot)
    assert log_z.tolist() == [0.0, 0.0, 0.0]


def test_draws_follow_the_distribution() -> None:
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(2, 3, 60, generator=generator) * 1.5
    # Tokens that cannot be drawn at both ends, in a run, and all but one.
    rows[..., :2] = rows[..., 30:33] = rows[..., -1] = -INF
    rows[1, 2, :59] = -INF
    rows[1, 2, 7] = 0.0
    log_probs = rows.log_softmax(-1)
    count = 20_000
    draws = sample(log_probs.expand(count, 2, 3, 60), generator)
    assert draws.shape == (count, 2, 3)
    assert draws.dtype == torch.int64
    for i in range(2):
        for j in range(3):
            seen = torch.bincount(draws[:, i, j], minlength=60)
            possible = log_probs[i, j] > -INF
            assert int(seen[~possible].sum()) == 0
            expected = log_probs[i, j][possible].double().softmax(-1) * count
            if possible.sum() > 1:
                assert stats.chisquare(seen[possible], expected).pvalue > 1e-4


def test_rows_are_drawn_independently() -> None:
    log_probs = torch.full((1000, 10), -math.log(10))
    draws = sample(log_probs, torch.Generator().manual_seed(4))
    assert stats.chisquare(torch.bincount(draws, minlength=10)).pvalue > 1e-4
    pairs = torch.bincount(draws[:-1] * 10 + draws[1:], minlength=100)
    assert stats.chisquare(pairs).pvalue > 1e-4


def test_same_generator_state_same_draws() -> None:
    log_probs = torch.randn(5, 100).log_softmax(-1)
    first = sample(log_probs, torch.Generator().manual_seed(5))
    assert torch.equal(first, sample(log_probs, torch.Generator().manual_seed(5)))
    assert sample(log_probs[0], torch.Generator().manual_seed(5)).shape == ()


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.one_of(st.just(-INF), st.floats(-120, 0)), min_size=1, max_size=40).filter(lambda x: max(x) > -50),
    st.sampled_from([0.0, 2.0**-53, 0.5, 1 - 2.0**-24, 1 - 2.0**-53]),
)
def test_extreme_uniforms_never_draw_an_impossible_token(log_probs: list[float], uniform: float) -> None:
    row = torch.tensor(log_probs).log_softmax(-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, uniform, dtype=torch.float64))
        token = int(sample(row[None], torch.Generator())[0])
    assert row[token] > -INF


def test_one_hot_rows_are_drawn_exactly_in_a_large_vocabulary() -> None:
    logits = torch.randn(4, 151_936, generator=torch.Generator().manual_seed(6))
    logits[0, 0] = logits[1, -1] = logits[2, 70_000] = logits[3, 511] = 50.0
    greedy = process(logits, SamplingParams(temperature=0))
    for seed in range(5):
        assert sample(greedy, torch.Generator().manual_seed(seed)).tolist() == [0, 151_935, 70_000, 511]
