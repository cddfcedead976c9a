from lib.artifacts.problems import Problem
from lib.engines.base import GeneratedCompletion, Sampling
from lib.engines.policy import load_tokenizer
from lib.evaluation.difficulty import measure_pass_rates
from lib.problems.difficulty import PassRate
from lib.prompts import prompt_format

XML = prompt_format("xml")


R1_ZERO = prompt_format("r1_zero")


class Knowing:
    """An engine that answers 4 to everything, every other time inside the format's tags."""

    asked: Sampling

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def generate(self, prompts, sampling):
        self.asked = sampling
        texts = [XML.target(solution="", reference="4"), "no idea"]
        return [
            [
                GeneratedCompletion(text=texts[number % 2], token_ids=(), finish="eos")
                for number in range(sampling.num_completions)
            ]
            for _ in prompts
        ]


def test_pass_rates_are_right_answers_over_completions_by_content_hash(base):
    problems = [
        Problem.create(problem="2 + 2?", reference="4"),
        Problem.create(problem="2 + 3?", reference="5"),
    ]
    rates = measure_pass_rates(
        Knowing(load_tokenizer(base)),
        problems,
        prompt_format=XML,
        system="",
        sampling=Sampling(num_completions=6, max_new_tokens=8, temperature=1.0),
    )
    assert rates == {problems[0].id: PassRate(3, 6), problems[1].id: PassRate(0, 6)}


def test_completions_stop_where_the_prompt_format_says(base):
    engine = Knowing(load_tokenizer(base))
    measure_pass_rates(
        engine,
        [Problem.create(problem="2 + 2?", reference="4")],
        prompt_format=R1_ZERO,
        system="",
        sampling=Sampling(num_completions=2, max_new_tokens=8, temperature=1.0),
    )
    assert engine.asked.stop_strings == R1_ZERO.stop_strings == ("</answer>",)
