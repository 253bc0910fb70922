"""A regular expression as a potential: particles whose text can no longer match die out.

A constraint (``regex=``) rules tokens out one by one; a potential judges what the model wrote by itself, so that it can
also be soft, look at several answers at once, or be any other program. Here every line has to be a bullet point.
"""

import math

import regex

from parspec import LLM, Prefix, SamplingParams

PATTERN = regex.compile(r"(- [^\n]{5,60}\n)*- [^\n]{5,60}")


def bullets(prefixes: list[Prefix]) -> list[float]:
    """0 for a text that matches, or still may; minus infinity for any other."""
    return [0.0 if PATTERN.fullmatch(prefix.text, partial=not prefix.finished) else -math.inf for prefix in prefixes]


def main() -> None:
    """Ask for advice, and get bullet points."""
    llm = LLM("qwen2.5-coder")
    prompt = llm.chat_prompt([{"role": "user", "content": "Give me three short tips for a code review, as a list."}])
    params = SamplingParams(potentials=[bullets], num_particles=16, num_draft_tokens=4, max_tokens=80, seed=1)
    output = llm.generate(prompt, params)[0]
    print(output.text)
    # What share of the model's own answers would have had this form: the evidence estimates it.
    print(f"\nprobability of such an answer: about {math.exp(output.posterior.log_evidence):.3g}")


if __name__ == "__main__":
    main()
