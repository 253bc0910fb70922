"""Cached logits equal those of plain forward passes, whatever the order of operations before."""

from copy import deepcopy

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from parspec.models.cache import GroupCache
from parspec.models.interface import Forward
from parspec.models.transformers_model import ATTENTION, TransformersModel

VOCAB, ROWS, TRUNK, BRANCH = 37, 4, 40, 16
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
}


def make_models(config, dtype=torch.float32) -> tuple[TransformersModel, PreTrainedModel]:
    """The same random weights twice: behind our cache, and as transformers runs them."""
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(deepcopy(config), attn_implementation="eager", dtype=dtype).eval()
    torch.nn.init.normal_(plain.get_output_embeddings().weight, std=0.3)
    ours = AutoModelForCausalLM.from_config(deepcopy(config), attn_implementation=ATTENTION, dtype=dtype).eval()
    ours.load_state_dict(plain.state_dict())
    return TransformersModel(ours, "test", config.max_position_embeddings, dtype), plain


MODELS = {name: make_models(config) for name, config in CONFIGS.items()}


class CacheMachine(RuleBasedStateMachine):
    """Random draft, trunk growth, cut, resample and commit, two groups at once, against token lists."""

    family = "llama"

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.model, self.plain = MODELS[self.family]
        self.caches = [GroupCache(self.model.cache_shape, ROWS, TRUNK, BRANCH) for _ in range(2)]
        self.trunks: list[list[int]] = [[], []]
        self.branches: list[list[list[int]]] = [[[] for _ in range(ROWS)] for _ in range(2)]
        self.grow_trunk(3, 0)
        self.grow_trunk(5, 1)

    def draw(self, rows: int, count: int) -> torch.Tensor:
        return torch.randint(VOCAB, (rows, count), generator=self.generator)

    def check(self, requests: list[tuple[int, Forward]]) -> None:
        """Run the requests in one pass and compare every logit with a pass over the whole text."""
        results = self.model.forward([forward for _, forward in requests])
        for (which, forward), logits in zip(requests, results, strict=True):
            rows = forward.tokens.shape[0]
            assert logits.shape == (rows, forward.num_logits, VOCAB)
            texts = torch.tensor([self.trunks[which] + self.branches[which][row] for row in range(rows)])
            with torch.no_grad():
                expected = self.plain(input_ids=texts).logits[:, -forward.num_logits :]
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
            cache = self.caches[which]
            assert cache.length == texts.shape[1]
            assert cache.trunk_length == len(self.trunks[which])

    @rule(count=st.integers(1, 4), which=st.integers(0, 1))
    def grow_trunk(self, count: int, which: int) -> None:
        cache = self.caches[which]
        if cache.branch_length or cache.trunk_length + count > TRUNK:
            return
        tokens = self.draw(1, count)
        self.trunks[which] += tokens[0].tolist()
        self.check([(which, Forward(self.model, cache, tokens, count, into_trunk=True))])

    @rule(counts=st.tuples(st.integers(1, 4), st.integers(1, 4)), rows=st.integers(1, ROWS), both=st.booleans())
    def draft(self, counts: tuple[int, int], rows: int, both: bool) -> None:
        requests = []
        for which in (0, 1) if both else (0,):
            cache, count = self.caches[which], counts[which]
            active = rows if which == 0 else ROWS
            if cache.branch_length + count > BRANCH or any(
                len(branch) != cache.branch_length for branch in self.branches[which][:active]
            ):
                continue
            tokens = self.draw(active, count)
            for row in range(active):
                self.branches[which][row] += tokens[row].tolist()
            requests.append((which, Forward(self.model, cache, tokens, count)))
        if requests:
            self.check(requests)

    @rule(drop=st.integers(0, 4), which=st.integers(0, 1))
    def cut(self, drop: int, which: int) -> None:
        cache = self.caches[which]
        length = max(cache.trunk_length, cache.length - drop)
        cache.truncate(length)
        kept = length - cache.trunk_length
        self.branches[which] = [branch[:kept] for branch in self.branches[which]]

    @rule(ancestors=st.lists(st.integers(0, ROWS - 1), min_size=ROWS, max_size=ROWS), which=st.integers(0, 1))
    def resample(self, ancestors: list[int], which: int) -> None:
        self.caches[which].gather(torch.tensor(ancestors))
        self.branches[which] = [list(self.branches[which][ancestor]) for ancestor in ancestors]

    @rule(which=st.integers(0, 1), row=st.integers(0, ROWS - 1), extra=st.integers(0, 2))
    def commit(self, which: int, row: int, extra: int) -> None:
        """Make all share one row's branch, then commit a part of it (and ask for more than there is)."""
        cache, branches = self.caches[which], self.branches[which]
        full = [branch for branch in branches if len(branch) == cache.branch_length]
        if branches[row] not in full or cache.length + extra > TRUNK:
            return
        cache.gather(torch.full((ROWS,), row))
        self.branches[which] = branches = [list(branches[row]) for _ in range(ROWS)]
        keep = min(extra, cache.branch_length)
        cache.commit(cache.length - keep if extra < 2 else cache.length + 2)
        moved = len(branches[0]) - cache.branch_length
        self.trunks[which] += branches[0][:moved]
        self.branches[which] = [branch[moved:] for branch in branches]

    @precondition(lambda self: self.caches[0].branch_length > 0)
    @rule(row=st.integers(0, ROWS - 1))
    def commit_one_row(self, row: int) -> None:
        """What speculative decoding does: one chain wins, the others are forgotten."""
        cache, branch = self.caches[0], self.branches[0][row]
        if len(branch) != cache.branch_length or cache.length > TRUNK:
            return
        cache.commit(cache.length, row)
        self.trunks[0] += branch
        self.branches[0] = [[] for _ in range(ROWS)]


@pytest.mark.parametrize("family", CONFIGS)
def test_cached_logits_equal_full_recomputation(family: str) -> None:
    machine = type(f"{family}Machine", (CacheMachine,), {"family": family})
    machine.TestCase.settings = settings(
        max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
    )
    machine.TestCase().runTest()


def test_bfloat16_stays_close_to_full_recomputation(measured) -> None:
    model, plain = make_models(CONFIGS["qwen2"], torch.bfloat16)
    reference = plain.float()
    cache = GroupCache(model.cache_shape, ROWS, TRUNK, BRANCH)
    prompt, block = torch.randint(VOCAB, (1, 9)), torch.randint(VOCAB, (ROWS, 5))
    model.forward([Forward(model, cache, prompt, 1, into_trunk=True)])
    logits = model.forward([Forward(model, cache, block, 5)])[0].float()
    with torch.no_grad():
        expected = reference(input_ids=torch.cat([prompt.expand(ROWS, -1), block], 1)).logits[:, -5:]
    error = (logits - expected).abs().max() / expected.abs().max()
    measured(f"bfloat16: largest error relative to the largest logit {error:.4f}")
    assert error < 0.03


def test_resampling_touches_only_dead_rows() -> None:
    model, _ = MODELS["llama"]
    cache = GroupCache(model.cache_shape, ROWS, TRUNK, BRANCH)
    model.forward([Forward(model, cache, torch.zeros(1, 3, dtype=torch.int64), 0, into_trunk=True)])
    model.forward([Forward(model, cache, torch.arange(ROWS * 2).view(ROWS, 2), 0)])
    before = cache.branches.clone()
    cache.gather(torch.tensor([0, 0, 2, 2]))
    # Positions not yet written hold whatever was in memory.
    kept, expected = cache.branches[:, :, [0, 2]], before[:, :, [0, 2]]
    torch.testing.assert_close(kept, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(cache.branches[:, :, 1, :, :2], before[:, :, 0, :, :2])
    assert torch.equal(cache.branches[:, :, 3, :, :2], before[:, :, 2, :, :2])


def test_the_trunk_is_stored_once(measured) -> None:
    shape = MODELS["llama"][0].cache_shape
    one = GroupCache.bytes_needed(shape, 1, 2256, 57)
    sixteen = GroupCache.bytes_needed(shape, 16, 2256, 57)
    measured(f"cache of 16 particles against 1: {sixteen / one:.2f} times")
    assert sixteen < 1.4 * one
    assert sixteen - one == 15 * 57 * shape.position_bytes
    cache = GroupCache(shape, 16, 2256, 57)
    assert cache.trunk.nbytes + cache.branches.nbytes == sixteen
