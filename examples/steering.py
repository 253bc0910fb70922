"""Steering by a reward: a small lexicon of moods and a wish for length, as one potential.

The distribution aimed at is the model's times exp(reward of the whole answer). Anything that gives a number for a text
can stand here, such as a small reward model that scores all particles as one batch.
"""

import re

from parspec import LLM, Prefix, SamplingParams

GLAD = {"bright", "calm", "gentle", "golden", "happy", "joy", "laughter", "peaceful", "sunny", "warm", "wonderful"}
SAD = {"bitter", "cold", "dark", "gloomy", "grey", "heavy", "lonely", "sad", "storm", "tears", "tired"}
STRENGTH = 1.5
"""What a word of the lexicon is worth, in log-probability; 0 leaves the model alone."""
WORDS = 40
"""Wanted length."""


def reward(prefixes: list[Prefix]) -> list[float]:
    """Glad words less sad ones; at the end also a small price for every word too many or too few."""
    values = []
    for prefix in prefixes:
        words = re.findall(r"[a-z]+", prefix.text.lower())
        mood = sum(word in GLAD for word in words) - sum(word in SAD for word in words)
        price = 0.05 * abs(len(words) - WORDS) if prefix.finished else 0.0
        # Bounded: a model that may earn without end repeats the best word for ever.
        values.append(STRENGTH * max(-4, min(4, mood)) - price)
    return values


def main() -> None:
    """The same prompt, left alone and steered."""
    llm = LLM("qwen2.5-coder")
    prompt = llm.chat_prompt([{"role": "user", "content": "Describe a morning at the harbour in two sentences."}])
    for title, potentials in (("left alone", []), ("steered", [reward])):
        params = SamplingParams(
            potentials=potentials, temperature=0.8, num_particles=16, num_draft_tokens=4, max_tokens=64, seed=1
        )
        output = llm.generate(prompt, params)[0]
        print(f"{title} (reward {reward([Prefix([], output.text, finished=True)])[0]:.2f}):\n{output.text}\n")


if __name__ == "__main__":
    main()
