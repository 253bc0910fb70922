"""Questions, answers that are found again, reports, and lm-eval's view, on the tiny pair."""

import json
from pathlib import Path
from typing import Any

import lm_eval
import nltk
import pytest
from lm_eval.api.registry import get_model

from parspec.bench.quality import tasks as module
from parspec.bench.quality.harness import ParspecLM
from parspec.bench.quality.plan import Item, Variant, cross, works
from parspec.bench.quality.run import about, run
from parspec.bench.quality.store import Record, Store, read
from parspec.bench.quality.summary import summaries
from parspec.bench.quality.tasks import load_items, program
from parspec.bench.records import Setting
from parspec.errors import InvalidRequestError, ParspecError
from parspec.llm import LLM
from parspec.sampling.params import SamplingParams
from tests.support.tokenizers import byte_bpe_tokenizer

QUESTIONS = [
    {"question": f"What is {n} plus 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(1000, 1004)
]
PROBLEM = {
    "task_id": "X/0",
    "prompt": 'import math\n\n\ndef half(n: float) -> float:\n    """Half of a number."""\n',
    "canonical_solution": "    return n / 2\n",
    "test": "def check(candidate):\n    assert candidate(3) == 1.5\n",
    "entry_point": "half",
}
INSTRUCTION = {
    "key": 1,
    "prompt": "Write without commas.",
    "instruction_id_list": ["punctuation:no_comma"],
    "kwargs": [{}],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, rows in (("gsm8k", QUESTIONS), ("humaneval", [PROBLEM]), ("ifeval", [INSTRUCTION])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place where NLTK's data seems to be: nothing here counts sentences."""
    (tmp_path / "nltk" / "tokenizers" / "punkt_tab" / "english").mkdir(parents=True)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "nltk")])


@pytest.fixture(scope="module")
def llm(endless_pair: tuple[Path, Path]) -> LLM:
    return LLM(str(endless_pair[0]), draft=str(endless_pair[1]), dtype="float32")


def variants(**changes: Any) -> list[Variant]:
    options: dict[str, Any] = {
        "num_particles": [3],
        "num_chains": [1],
        "num_draft_tokens": [2],
        "cut_thresholds": [0.0],
        "temperatures": [0.7],
        "powers": [1.0],
        "selections": ["sample"],
    }
    return cross(["autoregressive", "speculative", "smc", "draft"], **options | changes)


def items(count: int = 3) -> list[Item]:
    return [
        Item("count", number, f"Question {number}:", (), lambda text: float(len(text) % 2), r"[a-z]", 12)
        for number in range(count)
    ]


def answered(llm: LLM, file: Path | None, todo: list[Any], stop_after: int | None = None) -> list[Record]:
    """Run works; leave as by Ctrl-C after so many answers."""
    new: list[Record] = []

    def done(record: Record) -> None:
        new.append(record)
        if len(new) == stop_after:
            raise KeyboardInterrupt

    store = Store(file, about(llm, 12))
    try:
        run(llm, todo, store, 12, 4, done)
    except KeyboardInterrupt:
        pass
    finally:
        store.close()
    assert not llm.engine.has_work
    return new


def test_a_run_goes_on_where_the_last_one_ended(llm: LLM, tmp_path: Path) -> None:
    todo = list(works(items(), variants(), 2, 1))
    assert len(todo) == 3 * 4 * 2
    whole = answered(llm, None, todo)
    assert len(whole) == len(todo)
    file = tmp_path / "answers.jsonl"
    assert len(answered(llm, file, todo, stop_after=7)) == 7
    with file.open("a") as stream:
        stream.write('{"kind": "answer", "task": "cou')  # a crash while writing
    assert len(answered(llm, file, todo)) == len(todo) - 7
    assert answered(llm, file, todo) == []
    _, records, size = read(file)
    assert size == file.stat().st_size
    expected = {work.key for work in todo}
    assert records.keys() == expected
    for record in whole:
        again = records[record["task"], record["item"], record["variant"], record["seed"]]
        for name in ("text", "score", "num_tokens", "kept"):
            assert again[name] == record[name]


def test_what_is_recorded(llm: LLM) -> None:
    todo = list(works(items(), variants(powers=[1.0, 2.0], selections=["sample", "vote"]), 2, 1))
    by_label: dict[str, list[Record]] = {}
    for record in answered(llm, None, todo):
        by_label.setdefault(record["variant"], []).append(record)
    assert {label: len(records) for label, records in by_label.items()} == dict.fromkeys(by_label, 6)
    assert "smc N=3 K=2 T=0.7 power=2 vote" in by_label
    for label, records in by_label.items():
        for record in records:
            timed = record["item"] == 0 and record["seed"] == 0
            assert (record["seconds"] is not None) == timed
            assert (record["ess"] is not None) == label.startswith("smc")
            assert sum(record["kept"].values()) == record["cycles"]
            assert (record["cycles"] > 0) == label.startswith(("smc", "spec"))
            # The target's own, also for answers of the draft.
            assert (record["log_prob"] is None) == (timed and not label.startswith("draft"))
            if record["log_prob"] is not None:
                prompt = llm.tokenizer(f"Question {record['item']}:", add_special_tokens=False)["input_ids"]
                entries = llm.score({"prompt_token_ids": prompt + record["token_ids"]})[0][-record["num_tokens"] :]
                assert record["log_prob"] == pytest.approx(sum(entry.log_prob for entry in entries), abs=1e-3)


def test_the_same_work_has_the_same_seed() -> None:
    todo = list(works(items(), variants(), 2, 0))
    seeds = [work.request_seed for work in todo]
    assert len(set(seeds)) == len(seeds)
    assert {work.key: work.request_seed for work in todo} == {
        work.key: work.request_seed for work in works(items(), variants(), 2, 3)
    }


def test_items_whose_answers_cannot_be_counted_have_no_vote() -> None:
    plain = Item("code", 0, "x", (), lambda text: 1.0)
    voting = Variant(Setting("smc", 4, 4), 0.7, select="vote")
    assert list(works([plain], [voting], 1, 0)) == []


def test_summaries_compare_with_plain_decoding() -> None:
    records = [
        {
            "task": "t", "item": item, "variant": label, "seed": seed, "score": score, "num_tokens": 10,
            "log_prob": -10.0 * (1 + worse), "seconds": 2.0 if item == 0 else None, "advanced": 8, "cycles": 2,
            "drafted": 8, "kept": {"4": 1, "2": 1}, "ess": 0.5,
        }
        for label, worse, score in (("autoregressive T=0.7", 0.0, 1.0), ("smc N=4 K=4 T=0.7", 0.2, 0.5))
        for item in range(5)
        for seed in range(2)
    ]  # fmt: skip
    plain, smc = summaries(records)
    assert plain.accuracy.mean == 1.0
    assert plain.accuracy_gain is None
    assert smc.accuracy_gain is not None
    assert smc.accuracy_gain.estimate.mean == -0.5
    assert smc.log_prob is not None
    assert smc.log_prob.mean == pytest.approx(-1.2)
    assert smc.log_prob_gain is not None
    assert smc.log_prob_gain.estimate.mean == pytest.approx(-0.2)
    assert smc.log_prob_p is not None
    assert smc.log_prob_p < 0.01
    assert smc.length_p == 1.0
    assert smc.tokens_per_second == 5.0
    assert smc.tokens_per_cycle == 4.0
    assert smc.kept_share == 0.75
    assert smc.kept == {2: 10, 4: 10}


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    Store(file, {"target": "a"}).close()
    with pytest.raises(InvalidRequestError, match="has answers with target 'a', not 'b': use another file"):
        Store(file, {"target": "b"})
    for text in ("hello\n", '{"kind": "answer"}\n', "[1]\n"):
        file.write_text(text)
        with pytest.raises(InvalidRequestError, match="holds no answers"):
            Store(file, {"target": "a"})
        assert file.read_text() == text


def test_published_tasks_from_local_files(data: Path, sentences: None) -> None:
    tokenizer = byte_bpe_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    found = load_items(["gsm8k", "humaneval", "ifeval"], data, 2, tokenizer)
    assert [(item.task, item.number) for item in found] == [("gsm8k", 0), ("gsm8k", 1), ("humaneval", 0), ("ifeval", 0)]
    math, _, code, instruction = found
    assert "What is 1000 plus 1?" in math.prompt
    assert math.prompt.endswith("assistant:")
    assert [math.score(text) for text in ("The final answer is 1,001.", "It is $1001", "1001, no: 1002", "")] == [
        1,
        1,
        0,
        0,
    ]
    assert code.score("Sure:\n```python\ndef half(n):\n    return n / 2\n```\nDone.") == 1
    assert code.score("def half(n):\n    return math.fsum([n]) / 2\n") == 1  # the problem's imports are there
    assert code.score("```python\ndef half(n):\n    return n\n```") == 0
    assert code.score("I cannot.") == 0
    assert code.score("```\nprint(1)\n```\n```python\ndef half(n): return n / 2\n```") == 1
    assert [instruction.score(text) for text in ("no comma here", "one, two", "")] == [1, 0, 0]


def test_a_program_that_only_pretends() -> None:
    source = program(PROBLEM, "```python\ndef half(n): return 0\nimport sys; sys.exit(0)\n```")
    assert source.endswith("check(half)\n")
    assert module.score_program(PROBLEM, ["```python\nimport sys; sys.exit(0)\n```"]) == {"pass_at_1": 0.0}


def test_what_cannot_be_loaded_is_refused(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_bpe_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    for name, folder, message in (
        ("gsm8", data, 'task "gsm8" is unknown: use gsm8k, humaneval'),
        ("gsm8k", tmp_path, "gsm8k.jsonl does not exist"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            load_items([name], folder, 1, tokenizer)
    for text, message in (
        ("{", "cannot be read as JSON lines"),
        ('{"a": 1}\n', "needs answer, question"),
        ("", "needs"),
    ):
        (tmp_path / "gsm8k.jsonl").write_text(text)
        with pytest.raises(InvalidRequestError, match=message):
            load_items(["gsm8k"], tmp_path, 1, tokenizer)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    monkeypatch.setattr(nltk, "download", lambda *args, **options: False)
    with pytest.raises(ParspecError, match="punkt_tab, which cannot be fetched"):
        load_items(["ifeval"], data, 1, tokenizer)


@pytest.fixture
def local_task(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return {
        "task": "local",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data / "gsm8k.jsonl")}, "cache_dir": str(tmp_path)},
        "test_split": "test",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
    }


def test_lm_eval_generates_with_parspec(endless_pair: tuple[Path, Path], local_task: dict[str, Any]) -> None:
    assert get_model("parspec") is ParspecLM
    assert get_model("local-completions") is not None
    generation = {"until": ["\n\n"], "max_gen_toks": 9}
    metrics = [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]
    results = lm_eval.simple_evaluate(
        model="parspec",
        model_args={"pretrained": str(endless_pair[0]), "draft": str(endless_pair[1]), "dtype": "float32"},
        tasks=[local_task | {"output_type": "generate_until", "generation_kwargs": generation, "metric_list": metrics}],
        log_samples=True,
        bootstrap_iters=0,
    )
    plain = LLM(str(endless_pair[0]), dtype="float32")
    for sample in results["samples"]["local"]:
        params = SamplingParams(temperature=0, max_tokens=9, stop=["\n\n"])
        prompt = {"prompt_token_ids": plain.tokenizer(sample["doc"]["question"])["input_ids"]}
        assert sample["resps"][0][0] == plain.generate(prompt, params)[0].text


def test_lm_eval_scores_with_parspec(endless_pair: tuple[Path, Path], local_task: dict[str, Any]) -> None:
    model = ParspecLM(str(endless_pair[0]), draft=str(endless_pair[1]), dtype="float32", batch_size=1)
    choices = {"doc_to_choice": ["yes", "no"], "doc_to_target": 0, "output_type": "multiple_choice"}
    metrics = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
    results = lm_eval.simple_evaluate(
        model=model, tasks=[local_task | choices | {"metric_list": metrics}], log_samples=True, bootstrap_iters=0
    )
    for sample in results["samples"]["local"]:
        for choice, resps in zip(choices["doc_to_choice"], sample["resps"], strict=True):
            context, read = (model.tok_encode(text) for text in (sample["doc"]["question"], f" {choice}"))
            entries = model.llm.score({"prompt_token_ids": context + read})[0][-len(read) :]
            assert float(resps[0][0]) == pytest.approx(sum(entry.log_prob for entry in entries), abs=1e-4)
    rolling = {"output_type": "loglikelihood_rolling", "task": "rolling"}
    rolled = lm_eval.simple_evaluate(model=model, tasks=[local_task | rolling], log_samples=True, bootstrap_iters=0)
    for sample in rolled["samples"]["rolling"]:
        ids = [model.prefix_token_id, *model.tok_encode(sample["doc"]["answer"])]
        expected = sum(entry.log_prob for entry in model.llm.score({"prompt_token_ids": ids})[0])
        assert float(sample["resps"][0][0]) == pytest.approx(expected, abs=1e-4)
