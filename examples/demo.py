"""What ``make demo`` runs: one coding prompt, answered by all three methods on the public interface."""

import sys
import time

STARTED = time.perf_counter()  # before the imports: they are part of the wait for the first token

from rich.console import Console  # noqa: E402

from parspec import LLM, ParspecError, RequestOutput, SamplingParams  # noqa: E402
from parspec.cli.report import statistics_table  # noqa: E402

PROMPT = (
    "Write a Python function merge_intervals(intervals) that merges overlapping closed intervals, "
    "with a docstring and three asserts as tests."
)
COMMON = {"temperature": 0.7, "max_tokens": 256, "seed": 1}
SMC = SamplingParams(method="smc", num_particles=4, num_draft_tokens=8, **COMMON)
OTHERS = [
    SamplingParams(method="autoregressive", **COMMON),
    SamplingParams(method="speculative", num_draft_tokens=8, **COMMON),
]


def main() -> None:
    """Answer the prompt with SMC as it becomes final, then with the other methods."""
    console = Console(highlight=False)
    # Fetched, verified and converted on first use; a pair's name stands for target and draft.
    llm = LLM("qwen2.5-coder")
    prompt = llm.chat_prompt([{"role": "user", "content": PROMPT}])
    console.print(f"[bold]{PROMPT}[/bold]\n")
    output = show(llm, prompt, console)
    console.print(statistics_table(output))
    console.print("\nThe same prompt with the other methods:")
    for sampling in OTHERS:
        other = llm.generate([prompt], sampling)[0]
        metrics = other.metrics
        console.print(
            f"{other.method:15} {metrics.num_tokens} tokens in {metrics.seconds:.1f} s: "
            f"{metrics.tokens_per_second:.2f} tokens/s, {metrics.tokens_per_cycle:.2f} tokens per cycle"
        )


def show(llm: LLM, prompt: dict[str, list[int]], console: Console) -> RequestOutput:
    """Print an answer as its text becomes final."""
    waited = None
    for chunk in llm.stream(prompt, SMC):
        if waited is None:
            waited = time.perf_counter() - STARTED
        console.out(chunk.text, end="", highlight=False)
        output = chunk.output
    console.print(f"\n\nfirst token {waited:.1f} s after the start of the program\n")
    return output


if __name__ == "__main__":
    try:
        main()
    except ParspecError as error:
        print(f"demo: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
