"""What clients get back: the official API's objects, as plain dictionaries ready for JSON."""

import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from parspec.decoding.logprobs import TokenLogProb
from parspec.decoding.task import CycleReport
from parspec.engine.outputs import RequestOutput
from parspec.llm import Chunk
from parspec.sampling.detokenize import REPLACEMENT
from parspec.server.tools import ToolUse


@dataclass(frozen=True)
class Reply:
    """What all objects of one answer share.

    Attributes:
        model: Name the client asked for.
        fingerprint: Of the models and the program.
        chat: Whether the client chats (else it completes text).
        token_texts: Gives each token's text, for watched cycles.
        return_posterior: Whether the last object shows all particles.
        return_token_ids: Whether token ids are given beside the text.
        tool_use: How the client's tools may be used, if it has any.
        include_usage: Whether a stream ends with the usage.
    """

    model: str
    fingerprint: str
    chat: bool
    token_texts: Callable[[Sequence[int]], list[str]]
    return_posterior: bool = False
    return_token_ids: bool = False
    tool_use: ToolUse | None = None
    include_usage: bool = False
    id: str = field(init=False)
    _written: dict[int, int] = field(default_factory=dict, init=False)
    _texts: dict[int, str] = field(default_factory=dict, init=False)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        prefix = "chatcmpl" if self.chat else "cmpl"
        object.__setattr__(self, "id", f"{prefix}-{secrets.token_hex(12)}")

    def whole(self, outputs: Sequence[RequestOutput], echoes: Sequence[str]) -> dict[str, Any]:
        """The answer in one piece.

        Args:
            outputs: Of each choice.
            echoes: Text put before each choice's own.
        """
        choices = []
        for index, (output, echo) in enumerate(zip(outputs, echoes, strict=True)):
            content, calls, reason = self._parts(output)
            choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": reason}
            if self.chat:
                message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None, "annotations": []}
                choice["message"] = message | ({"content": content or None, "tool_calls": calls} if calls else {})
            else:
                choice["text"] = echo + output.text
            if output.log_probs is not None:
                echoed = output.prompt_log_probs if echo else None
                choice["logprobs"] = self._log_probs(
                    [*(echoed or []), *output.log_probs], None if echoed is None else output.prompt_token_ids[0]
                )
            choices.append(choice | self._extras(output))
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head(kind), "choices": choices, "usage": usage(outputs)}

    def _log_probs(self, scores: Sequence[TokenLogProb], first: int | None = None, offset: int = 0) -> dict[str, Any]:
        """Log-probabilities in the form the kind of completion has."""
        return self._chat_log_probs(scores) if self.chat else self._text_log_probs(scores, first, offset)

    def _chat_log_probs(self, scores: Sequence[TokenLogProb]) -> dict[str, Any]:
        def entry(token_id: int, log_prob: float) -> dict[str, Any]:
            text = self.token_texts([token_id])[0]
            # A token that is a part of a character has bytes, but none that its text would tell.
            known = None if REPLACEMENT in text else list(text.encode())
            return {"token": text, "logprob": _number(log_prob), "bytes": known}

        content = [
            {**entry(one.token_id, one.log_prob), "top_logprobs": [entry(*pair) for pair in one.top]} for one in scores
        ]
        return {"content": content, "refusal": None}

    def _text_log_probs(self, scores: Sequence[TokenLogProb], first: int | None, offset: int) -> dict[str, Any]:
        """The older form, in columns; ``first`` is a first token without a probability, ``offset`` where it begins."""
        texts = self.token_texts([*([] if first is None else [first]), *(one.token_id for one in scores)])
        unknown = [] if first is None else [None]
        tops = []
        for one in scores:
            # As in the official API the token itself is always among them.
            pairs = [*one.top, (one.token_id, one.log_prob)]
            tops.append({self.token_texts([token])[0]: _number(value) for token, value in pairs})
        return {
            "tokens": texts,
            "token_logprobs": [*unknown, *(_number(one.log_prob) for one in scores)],
            "top_logprobs": [*unknown, *tops],
            "text_offset": list(accumulate((len(text) for text in texts[:-1]), initial=offset)),
        }

    def opening(self, index: int, echo: str) -> dict[str, Any]:
        """The first piece of a choice: the role of who speaks, or the text to be continued."""
        start = {"delta": {"role": "assistant", "content": "", "refusal": None}} if self.chat else {"text": echo}
        return self._piece({"index": index, "logprobs": None, **start, "finish_reason": None})

    def pieces(self, index: int, chunk: Chunk) -> Iterator[dict[str, Any]]:
        """The objects for a piece of a choice; at its end one more, without text, that says why it ends."""
        base: dict[str, Any] = {"index": index, "logprobs": None}
        if chunk.log_probs:
            written = self._written.get(index, 0)
            base["logprobs"] = self._log_probs(chunk.log_probs, offset=written)
            self._written[index] = written + sum(map(len, self.token_texts([s.token_id for s in chunk.log_probs])))
        ids = {"token_ids": chunk.token_ids} if self.return_token_ids else {}
        traced = [self._cycle(report) for report in chunk.cycles if report.trace is not None]
        population = {"population": traced} if traced else {}
        text = self._shown(index, chunk)
        if text or traced or chunk.log_probs or (ids and chunk.token_ids):
            yield self._piece({**base, **self._text(text), "finish_reason": None, **ids, **population})
        if chunk.output is not None:
            _, calls, reason = self._parts(chunk.output)
            if calls:
                delta = {"tool_calls": [{"index": place, **call} for place, call in enumerate(calls)]}
                yield self._piece({"index": index, "logprobs": None, "delta": delta, "finish_reason": None})
            extras = {"posterior": posterior(chunk.output)} if self.return_posterior else {}
            yield self._piece(
                {
                    **base,
                    "logprobs": None,
                    **self._text("", end=True),
                    "finish_reason": reason,
                    **extras,
                }
            )

    def _parts(self, output: RequestOutput) -> tuple[str, list[dict[str, Any]], str]:
        """The text of an answer, the tool calls in it, and why it ended."""
        if self.tool_use is None:
            return output.text, [], output.finish_reason
        content, calls = self.tool_use.split(output.text)
        return content, calls, self.tool_use.finish_reason(output.finish_reason, calls)

    def _shown(self, index: int, chunk: Chunk) -> str:
        """What of a piece is text for the reader; what may be a tool call is held back until the end."""
        if self.tool_use is None:
            return chunk.text
        before = self._texts.get(index, "")
        text = self._texts[index] = before + chunk.text
        if chunk.output is None:
            return text[self.tool_use.shown(before) : self.tool_use.shown(text)]
        return self._parts(chunk.output)[0][self.tool_use.shown(before) :]

    def last(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The piece with the usage, which has no choices."""
        return {**self._head(self._piece_kind), "choices": [], "usage": usage(outputs)}

    @property
    def _piece_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _piece(self, choice: dict[str, Any]) -> dict[str, Any]:
        usage_field = {"usage": None} if self.include_usage else {}
        return {**self._head(self._piece_kind), "choices": [choice], **usage_field}

    def _text(self, text: str, *, end: bool = False) -> dict[str, Any]:
        if not self.chat:
            return {"text": text}
        return {"delta": {} if end else {"content": text}}

    def _extras(self, output: RequestOutput) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        if self.return_token_ids:
            extras |= {"prompt_token_ids": output.prompt_token_ids, "token_ids": output.token_ids}
        if self.return_posterior:
            extras["posterior"] = posterior(output)
        return extras

    def _cycle(self, report: CycleReport) -> dict[str, Any]:
        """One cycle as watchers get it; the texts of tokens in place of their ids."""
        trace = report.trace
        assert trace is not None
        return {
            "drafted": [self.token_texts(row) for row in trace.drafted],
            "kept": report.kept,
            "cut_weights": trace.cut_weights,
            "ess": report.ess,
            "resampled": report.resampled,
            "ancestors": trace.ancestors,
            "appended": [self.token_texts(row) for row in trace.appended],
            "weights": trace.weights,
            "finished": trace.finished,
            "num_final": len(report.final),
        }


def _number(log_prob: float) -> float:
    """A log-probability as JSON can hold it; the official API's own number for what is all but impossible."""
    return max(log_prob, -9999.0)


def usage(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """Tokens read and written; a prompt with several answers is read once for each, and so counted."""
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    completion = sum(len(output.token_ids) for output in outputs)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def posterior(output: RequestOutput) -> dict[str, Any]:
    """The whole population and how the run went."""
    metrics, population = output.metrics, output.posterior
    return {
        "method": output.method,
        "seed": output.seed,
        "particles": [
            {
                "text": particle.text,
                "token_ids": particle.token_ids,
                "weight": particle.weight,
                "log_prob": _number(particle.log_prob),
                "finish_reason": particle.finish_reason,
            }
            for particle in population.particles
        ],
        "log_evidence": population.log_evidence if math.isfinite(population.log_evidence) else None,
        "ess": population.ess,
        "unique_ancestors": population.unique_ancestors,
        "resamplings": metrics.resamplings,
        "cycles": metrics.cycles,
        "num_drafted": metrics.num_drafted,
        "num_kept": metrics.num_kept,
        "seconds": metrics.seconds,
    }
