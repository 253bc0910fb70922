"""Reading: a prompt before it is continued, or a text that is only to be scored."""

from collections.abc import Generator

from torch import Tensor

from parspec.decoding.logprobs import Entries, TokenLogProb
from parspec.decoding.task import Decoding, Outcome, Particle, Task
from parspec.models.interface import Forward

CHUNK = 64
"""Tokens read at a time where log-probabilities are wanted: their logits exist at once, over the whole vocabulary."""


def read_prompt(task: Task) -> Generator[Forward, Tensor, tuple[Tensor, list[TokenLogProb] | None]]:
    """Run the target over the prompt.

    Args:
        task: The request.

    Yields:
        The forward passes it needs.

    Returns:
        The logits ``[1, 1, V]`` after the prompt, and the log-probabilities of its tokens but the first, if the
        request wants them.
    """
    if task.sampling.prompt_logprobs is None:
        logits = yield Forward(task.target, task.target_cache, task.prompt[None], 1, into_trunk=True)
        return logits, None
    return (yield from _read(task, task.prompt, task.sampling.prompt_logprobs))


def score(task: Task) -> Decoding:
    """Give every token of a text but the first its log-probability under the target, in order.

    The model's own distribution, without temperature, truncation or power.

    Args:
        task: The request: its prompt is the text.

    Yields:
        The forward passes it needs.

    Returns:
        A single empty particle, and the log-probabilities as those of a prompt.
    """
    _, log_probs = yield from read_prompt(task)
    return Outcome([Particle([], 1.0, True)], prompt_log_probs=log_probs)


def _read(task: Task, text: Tensor, num_top: int) -> Generator[Forward, Tensor, tuple[Tensor, list[TokenLogProb]]]:
    log_probs: list[TokenLogProb] = []
    logits = text.new_empty(1, 0, 0)
    for start in range(0, len(text), CHUNK):
        read = text[start : start + CHUNK]
        logits = yield Forward(task.target, task.target_cache, read[None], len(read), into_trunk=True)
        following = text[start + 1 : start + 1 + len(read)]
        rows = logits[:, : len(following), : task.vocab_size].float().log_softmax(-1)
        if len(following):
            log_probs += Entries.of(rows, following[None], num_top).row(0, following.tolist())
    return logits[:, -1:], log_probs
