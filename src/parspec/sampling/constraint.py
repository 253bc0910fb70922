"""Constraints on an answer's text: which tokens may come next, for a JSON schema, a regex, choices or a grammar.

llguidance does the parsing. A grammar is compiled while a request is checked; while it runs, the parser's state and
mask after every answer seen lately are kept, so that particles with the same answer share them, and the target asks
for free about the positions the draft has been through.
"""

import functools
import json
import re
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer, grammar_from
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from parspec.errors import InvalidRequestError
from parspec.sampling.params import CONSTRAINTS, SamplingParams

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_TAG = re.compile(r"<.*>")
"""Added tokens llguidance takes for special ones whatever their tokenizer says."""
_STATES_KEPT = 4096
"""Answers whose state is kept: a cycle of the largest population asks for about this many."""
_JSON_OPTIONS: "JsonCompileOptions" = {"whitespace_pattern": r"[ \n\t]{0,40}"}
"""Without a bound some models fill the answer up with blanks."""


@dataclass
class _State:
    """The parser after some answer.

    Attributes:
        matcher: None once the answer is complete: whatever follows is not part of it.
        mask: ``[V]`` bool, the tokens that may follow; None as long as nobody has asked.
        forced: The only token that may follow, if there is only one; 0 behind the end.
    """

    matcher: LLMatcher | None
    mask: Tensor | None = None
    forced: int | None = None


class Constraint:
    """What a request's constraint allows after any answer.

    Args:
        params: The request's parameters, one of `CONSTRAINTS` among them.
        eos_ids: Tokens with which the model ends a text; allowed only where the text is complete.
        tokenizer: The model's, or None.
        vocab_size: Number of token ids.

    Raises:
        InvalidRequestError: The constraint cannot be read, allows no answer or is too large, or the model has no
            tokenizer or end for it.
    """

    def __init__(
        self,
        params: SamplingParams,
        eos_ids: Collection[int],
        tokenizer: PreTrainedTokenizerBase | None,
        vocab_size: int,
    ) -> None:
        self._name = name = next(name for name in CONSTRAINTS if getattr(params, name) is not None)
        # Models with more rows than their tokenizer has tokens may name an end that no text has.
        eos_ids = [index for index in eos_ids if tokenizer is not None and index < len(tokenizer)]
        if not isinstance(tokenizer, PreTrainedTokenizerFast) or not eos_ids:
            raise InvalidRequestError(
                f"{name} needs a model with a fast tokenizer and an end-of-text token: use logits_processors", name
            )
        self._eos_ids = frozenset(eos_ids)
        self._vocab_size = vocab_size
        matcher = LLMatcher(_parser_tokenizer(tokenizer, tuple(sorted(eos_ids))), _grammar(name, params), log_level=0)
        if matcher.is_error():
            raise _unreadable(name, matcher.get_error())
        beginning = _State(matcher)
        self._states: OrderedDict[tuple[int, ...], _State] = OrderedDict({(): beginning})
        self._mask(beginning)  # some faults of a constraint show only here

    def masks(self, answers: Tensor, num_positions: int) -> Tensor:
        """Which tokens may follow the last prefixes of answers.

        Args:
            answers: ``[R, L]``, on any device.
            num_positions: T <= L + 1: the last mask follows all L tokens, those before it all but the last, and so on.

        Returns:
            ``[R, T, V]`` bool on the CPU; everything behind the end of an answer.

        Raises:
            InvalidRequestError: The constraint has come to a dead end, or has become too large.
        """
        length = answers.shape[1]
        prefixes = range(length - num_positions + 1, length + 1)
        masks = [self._mask(self._state(tuple(row[:end]))) for row in answers.tolist() for end in prefixes]
        return torch.stack(masks).view(len(answers), num_positions, -1)

    def forced(self, answers: Tensor) -> Tensor | None:
        """The tokens ``[R, 1]`` that must follow the answers ``[R, L]``; None if any of them leaves a choice.

        What follows the end of an answer does not matter, and is token 0.
        """
        forced: list[int] = []
        for row in answers.tolist():
            state = self._state(tuple(row))
            self._mask(state)
            if state.forced is None:
                return None
            forced.append(state.forced)
        return torch.tensor(forced, device=answers.device)[:, None]

    def _mask(self, state: _State) -> Tensor:
        if state.mask is None:
            allowed = np.ones(self._vocab_size, dtype=bool)
            if state.matcher is None:
                state.forced = 0
            else:
                bits = np.frombuffer(state.matcher.compute_bitmask(), dtype=np.uint8)
                known = np.unpackbits(bits, count=min(8 * len(bits), self._vocab_size), bitorder="little")
                allowed[: len(known)], allowed[len(known) :] = known, False
                few = np.flatnonzero(allowed)[:2]
                if not len(few) or state.matcher.is_error():
                    raise self._stuck(state.matcher)
                state.forced = int(few[0]) if len(few) == 1 else None
            state.mask = torch.from_numpy(allowed)
        return state.mask

    def _state(self, answer: tuple[int, ...]) -> _State:
        known = len(answer)
        while (state := self._states.get(answer[:known])) is None:
            known -= 1
        self._states.move_to_end(answer[:known])
        for end in range(known + 1, len(answer) + 1):
            state = self._next(state, answer[end - 1])
            self._states[answer[:end]] = state
            if len(self._states) > _STATES_KEPT:
                self._forget_oldest()
        return state

    def _next(self, state: _State, token: int) -> _State:
        if state.matcher is None or token in self._eos_ids:
            return _State(None)
        matcher = state.matcher.deep_copy()
        if not matcher.consume_token(token):
            raise self._stuck(matcher)
        return _State(matcher)

    def _stuck(self, matcher: LLMatcher) -> InvalidRequestError:
        too_large = "TooComplex" in matcher.get_error()  # of its parser, or of its lexer
        reason = "it is too large, make it simpler" if too_large else "no token may come next"
        return InvalidRequestError(f"{self._name} cannot be followed: {reason}", self._name)

    def _forget_oldest(self) -> None:
        self._states.move_to_end(())  # the beginning, from which every other state can be had again
        self._states.popitem(last=False)


@functools.lru_cache(maxsize=4)
def _parser_tokenizer(tokenizer: PreTrainedTokenizerFast, eos_ids: tuple[int, ...]) -> LLTokenizer:
    """The tokenizer as llguidance has it; takes about two seconds, once for each model.

    Where a text can go on in one way only, llguidance encodes it. Special tokens go by names there that no text has:
    a constraint with the text "<|im_end|>" means these characters, not the token.
    """
    definition = json.loads(tokenizer.backend_tokenizer.to_str())
    definition |= {"truncation": None, "padding": None, "post_processor": None}
    names = {
        token["content"]: f"<|\ue000{token['id']}\ue000|>"
        for token in definition["added_tokens"]
        if token["special"] or _TAG.fullmatch(token["content"])
    }
    for token in definition["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = definition["model"]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(piece, piece): index for piece, index in vocabulary.items()}
    else:  # as Unigram models have it
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    return LLTokenizer(json.dumps(definition), eos_token=list(eos_ids))


def _grammar(name: str, params: SamplingParams) -> str:
    """The constraint in llguidance's form."""
    try:
        if params.json_schema is not None:
            return str(LLMatcher.grammar_from_json_schema(json.dumps(params.json_schema), overrides=_JSON_OPTIONS))
        if params.choice is not None:
            # As a regex: its escapes are simpler than a grammar's.
            return str(grammar_from("regex", "|".join(_escaped(text) for text in params.choice)))
        return str(grammar_from("regex" if name == "regex" else "grammar", getattr(params, name)))
    except ValueError as error:
        raise _unreadable(name, str(error)) from error


def _escaped(text: str) -> str:
    """A text as a regex that matches nothing else."""
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):X}}}" for char in text)


def _unreadable(name: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} cannot be used: {_line(reason)}", name)


def _line(text: str, longest: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 3] + "..."
