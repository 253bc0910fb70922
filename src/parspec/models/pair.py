"""Whether a draft can speak for a target: one tokenizer, and the part of the vocabulary both can use."""

from transformers import PreTrainedTokenizerBase

from parspec.errors import ModelError
from parspec.models.loader import LoadedModel


def shared_vocab_size(target: LoadedModel, draft: LoadedModel | None) -> int:
    """Number of token ids, from 0, that may be drawn; the rows beyond are padding and are masked.

    Models round their vocabulary up by different amounts; the ids above the tokenizer's are never text.

    Args:
        target: The model whose distribution is aimed at.
        draft: The model that proposes, or None.

    Raises:
        ModelError: The two do not share a tokenizer; names the first difference.
    """
    tokenizer_size = None if target.tokenizer is None else _num_ids(target.tokenizer)
    if tokenizer_size is not None and tokenizer_size > target.model.vocab_size:
        raise ModelError(
            f'model "{target.name}" has {target.model.vocab_size} token rows for a tokenizer of {tokenizer_size} ids: '
            "the tokenizer in its folder belongs to another model"
        )
    size = target.model.vocab_size if tokenizer_size is None else tokenizer_size
    if draft is None:
        return size
    if (target.tokenizer is None) != (draft.tokenizer is None):
        without = target if target.tokenizer is None else draft
        raise ModelError(
            f'cannot tell whether "{target.name}" and "{draft.name}" share a vocabulary, since "{without.name}" '
            "has no tokenizer: give both folders their tokenizer, or neither"
        )
    if target.tokenizer is None or draft.tokenizer is None:
        if target.model.vocab_size != draft.model.vocab_size:
            raise ModelError(
                f'target "{target.name}" has {target.model.vocab_size} token rows and draft "{draft.name}" '
                f"{draft.model.vocab_size}: without tokenizers they must be equal"
            )
        return size
    difference = _first_difference(target.tokenizer, draft.tokenizer)
    if difference is not None:
        raise ModelError(
            f'target "{target.name}" and draft "{draft.name}" have different tokenizers ({difference}): '
            "use a draft of the same model family"
        )
    if draft.model.vocab_size < size:
        raise ModelError(
            f'draft "{draft.name}" has {draft.model.vocab_size} token rows, fewer than the {size} ids of the '
            "tokenizer: use a draft of the same model family"
        )
    return size


def _num_ids(tokenizer: PreTrainedTokenizerBase) -> int:
    """One more than the largest id the tokenizer knows."""
    return max(tokenizer.get_vocab().values()) + 1


def _first_difference(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> str | None:
    """The least id the two tokenizers read differently, described; None if they agree on all."""
    if target is draft:
        return None
    target_vocab, draft_vocab = target.get_vocab(), draft.get_vocab()
    if target_vocab == draft_vocab:
        return None
    target_by_id = {index: token for token, index in target_vocab.items()}
    draft_by_id = {index: token for token, index in draft_vocab.items()}
    first = min(
        index for index in target_by_id.keys() | draft_by_id.keys() if target_by_id.get(index) != draft_by_id.get(index)
    )
    return f"first at id {first}: {target_by_id.get(first)!r} against {draft_by_id.get(first)!r}"
