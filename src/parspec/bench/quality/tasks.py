"""Questions as lm-eval's tasks pose and score them; GSM8K, HumanEval and IFEval also from local files."""

import contextlib
import functools
import io
import json
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from parspec.bench.prompts import TASKS as PROMPT_TASKS
from parspec.bench.prompts import load_prompts
from parspec.bench.quality.plan import Item
from parspec.bench.quality.sandbox import run_program
from parspec.errors import InvalidRequestError, ParspecError

SHORT = "short"
"""The task of beginning an answer: nothing is scored, the beginnings themselves are compared."""
_SHORT_LENGTH = 8
OWN_TASKS = ("gsm8k", "humaneval", "ifeval")
_GSM8K = "gsm8k_cot_llama"
"""The prompt asks for a sentence with the answer, and needs no examples."""
_GSM8K_RESULT = r"(-?[$0-9.,]{2,})|(-?[0-9]+)"
_METRICS = ("exact_match", "prompt_level_strict_acc", "pass_at_1")
"""Scores of an answer, the first one a task has; of other tasks whatever comes first."""
_FENCE = re.compile(r"```[a-zA-Z]*\n(.*?)(?:```|\Z)", re.DOTALL)
_CODE_PROMPT = (
    "Complete this Python function. Answer with the whole function, its imports included, in one code block.\n\n"
    "```python\n{{prompt.strip()}}\n```"
)


def load_items(names: Sequence[str], data: Path | None, limit: int | None, tokenizer: Any) -> list[Item]:
    """The questions of some tasks, ready to be answered.

    Args:
        names: ``gsm8k``, ``humaneval``, ``ifeval``, ``short``, or other tasks of lm-eval that have answers generated.
        data: Folder with NAME.jsonl for those three, in the published form; None to have them fetched.
        limit: Most questions of a task; None for all.
        tokenizer: The model's, whose chat template lays the questions out.

    Raises:
        InvalidRequestError: A task is unknown or of another kind, or its file is missing or of another form.
        ParspecError: lm-eval is not installed, or data cannot be fetched.
    """
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise ParspecError("bench quality needs lm-eval: pip install 'parspec[bench]'") from error
    template = functools.partial(chat_text, tokenizer)
    items: list[Item] = []
    manager = None
    for name in names:
        if name == SHORT:
            items += _short_items(template, limit)
            continue
        if manager is None and name != "humaneval":
            manager = TaskManager()
        with _quiet():
            task = _task(name, data, manager)
            if task.OUTPUT_TYPE != "generate_until":
                raise InvalidRequestError(f'task "{name}" generates no answers: use lm-eval with the model "parspec"')
            task.build_all_requests(limit=limit, apply_chat_template=True, chat_template=template)
        vote = _GSM8K_RESULT if name == "gsm8k" else None
        items += [_item(task, instance, name, vote) for instance in task.instances]
    return items


def _short_items(template: Callable[..., str], limit: int | None) -> list[Item]:
    texts = [prompt.text for prompt in load_prompts(None, PROMPT_TASKS, 80)][:limit]
    return [
        Item(SHORT, number, template([{"role": "user", "content": text}]), (), lambda answer: 0.0, None, _SHORT_LENGTH)
        for number, text in enumerate(texts)
    ]


def score_program(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Whether an answer to a HumanEval problem passes its tests, as lm-eval asks it.

    Args:
        doc: The problem.
        results: The answer.

    Returns:
        ``pass_at_1``, 0 or 1.
    """
    return {"pass_at_1": float(run_program(program(doc, results[0])).passed)}


def program(doc: Mapping[str, Any], answer: str) -> str:
    """The tests of a HumanEval problem behind the code in an answer.

    The problem's own head goes first: answers need not repeat its imports and helpers. An answer without a code block
    is code itself.
    """
    blocks = _FENCE.findall(answer)
    code = next((block for block in blocks if f"def {doc['entry_point']}" in block), blocks[0] if blocks else answer)
    head = f"{doc['prompt']}\n    pass\n"
    return f"{head}\n{code}\n\n{doc['test']}\n\ncheck({doc['entry_point']})\n"


_HUMANEVAL = {
    "task": "humaneval",
    "dataset_path": "openai/openai_humaneval",
    "test_split": "test",
    "output_type": "generate_until",
    "doc_to_text": _CODE_PROMPT,
    "doc_to_target": "",
    "generation_kwargs": {"until": [], "do_sample": False},
    "process_results": score_program,
    "metric_list": [{"metric": "pass_at_1", "aggregation": "mean", "higher_is_better": True}],
    "metadata": {"version": 1.0},
}
"""lm-eval's own task loads code from a hub and runs answers without limits."""


def _task(name: str, data: Path | None, manager: Any) -> Any:
    from lm_eval.api.task import ConfigurableTask

    if name == "ifeval":
        _prepare_ifeval()
    try:
        with tempfile.TemporaryDirectory(prefix="parspec-task-") as folder:
            local = _local(name, data, folder) if data is not None and name in OWN_TASKS else {}
            if name == "humaneval":
                return ConfigurableTask(config=_HUMANEVAL | local)
            base = _GSM8K if name == "gsm8k" else name
            published = manager.task_index[base].yaml_path
            changes = local | ({"num_fewshot": 0} if name == "gsm8k" else {})
            # YAML, of which JSON is a part: the published task with another source of questions.
            file = Path(folder, "task.yaml")
            file.write_text(json.dumps({"include": str(published), "task": name, **changes}))
            [task] = manager.load([str(file) if changes else base])["tasks"].values()
            return task
    except ParspecError:
        raise
    except KeyError as error:
        raise InvalidRequestError(
            f'task "{name}" is unknown: use {", ".join(OWN_TASKS)} or a task of lm-eval'
        ) from error
    except Exception as error:  # of datasets, the network, or whatever a task does when it is loaded
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ParspecError(f'task "{name}" cannot be loaded ({reason}): use --data with local files') from error


def _local(name: str, data: Path, scratch: str) -> dict[str, Any]:
    """What replaces a task's data set by a file; datasets converts it in a scratch folder."""
    file = data / f"{name}.jsonl"
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except FileNotFoundError as error:
        raise InvalidRequestError(f"{file} does not exist: put the task's data there, or leave --data out") from error
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{file} cannot be read as JSON lines: {error}") from error
    needed = {
        "gsm8k": {"question", "answer"},
        "humaneval": {"prompt", "test", "entry_point"},
        "ifeval": {"prompt", "kwargs"},
    }
    if not rows or not all(isinstance(row, dict) and needed[name] <= row.keys() for row in rows):
        raise InvalidRequestError(f"{file} is not the task's data: every line needs {', '.join(sorted(needed[name]))}")
    files = {split: str(file.absolute()) for split in ("test", "train")}
    source = {"data_files": files, "cache_dir": scratch, "keep_in_memory": True}
    return {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": source}


def _prepare_ifeval() -> None:
    """IFEval counts sentences with data of NLTK's, and guesses languages, which must not depend on chance."""
    import langdetect
    import nltk

    langdetect.DetectorFactory.seed = 0

    try:
        nltk.data.find("tokenizers/punkt_tab/english")
    except LookupError as error:
        with contextlib.redirect_stdout(io.StringIO()):
            fetched = nltk.download("punkt_tab", quiet=True)
        if not fetched:
            raise ParspecError(
                "ifeval needs NLTK's punkt_tab, which cannot be fetched: put it into a folder NLTK_DATA names, "
                "as tokenizers/punkt_tab"
            ) from error


def _item(task: Any, instance: Any, name: str, vote: str | None) -> Item:
    prompt, generation = instance.args
    until = generation.get("until") or []

    def score(text: str) -> float:
        answered = replace(instance, resps=[text], filtered_resps={})
        for ensemble in task._filters:
            ensemble.apply([answered])
        # Of several ways to read an answer the last is the most lenient.
        read = list(answered.filtered_resps.values())[-1]
        results = task.process_results(answered.doc, [read])
        metric = next((metric for metric in _METRICS if metric in results), next(iter(results)))
        return float(results[metric])

    stop = (until,) if isinstance(until, str) else tuple(until)
    return Item(name, instance.doc_id, prompt, stop, score, vote)


def chat_text(tokenizer: Any, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
    """A conversation as the text the model is to continue."""
    text = tokenizer.apply_chat_template(
        list(messages),
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=not add_generation_prompt,
    )
    return str(text)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars and advice of lm-eval and datasets."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(level)
