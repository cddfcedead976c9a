"""Measure how far checkpoints moved from the one that they were trained from, and what they forgot.

One line of JSON per checkpoint:

\b
- `kl`: KL(π_start ‖ π) on completions that the start checkpoint sampled for the held-out problems,
  in nats per completion, exact over the vocabulary at each position. arXiv:2509.04259 finds that
  forgetting follows it.
- `chat`, with --chat: the log-probability of the base model's own greedy answers to plain
  questions, in nats per token. A value below the start's is forgotten.

\b
    python -m examples.forgetting.measure --base data/models/base --start data/models/sft \\
        --completions data/completions/sft.jsonl data/models/grpo
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor
from torch.nn.functional import kl_div
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lib.engines.base import encode
from lib.models.load import load_merged
from lib.models.pretrained import load_tokenizer
from lib.models.runtime import configure
from lib.models.weights import weights_of
from lib.stats.estimates import mean_estimate

QUESTIONS = Path(__file__).with_name("questions.txt")
BATCH_SIZE = 16
MAX_NEW_TOKENS = 64

Row = tuple[list[int], list[int]]
"""Token ids of a prompt and of its completion."""


def token_scores(model: PreTrainedModel, rows: list[Row]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield for each row the log-probs at its completion's T tokens, and these tokens.

    Args:
        rows: token ids of prompt and completion.

    Yields:
        [T, V] log-probs over the vocabulary, and [T] the token ids of the completion.
    """
    for first in range(0, len(rows), BATCH_SIZE):
        batch = rows[first : first + BATCH_SIZE]
        tokens = [torch.tensor(prompt + completion) for prompt, completion in batch]
        # Padding is on the right: with causal attention no scored position sees it.
        padded = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
        logits = model(input_ids=padded).logits
        for row, (prompt, completion) in zip(logits, batch, strict=True):
            # Position t predicts token t + 1.
            scored = row[len(prompt) - 1 : len(prompt) + len(completion) - 1]
            yield scored.float().log_softmax(-1), torch.tensor(completion)


def chat_rows(base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[Row]:
    """Return the token ids of each plain question, and of the base model's greedy answer to it."""
    questions = QUESTIONS.read_text(encoding="utf-8").splitlines()
    # Token ids, after the chat template.
    prompts = encode(tokenizer, [[{"role": "user", "content": each}] for each in questions])
    rows = []
    for prompt in prompts:
        answer: Any = base.generate(
            torch.tensor([prompt]), max_new_tokens=MAX_NEW_TOKENS, do_sample=False
        )
        # `answer` is [1, prompt + answer].
        rows.append((prompt, answer[0, len(prompt) :].tolist()))
    return rows


def task_rows(tokenizer: PreTrainedTokenizerBase, completions: Path) -> list[Row]:
    """Return the token ids of each held-out problem's prompt and first sampled completion."""
    rows = map(json.loads, completions.read_text(encoding="utf-8").splitlines())
    sampled = [
        row
        for row in rows
        if (row["benchmark"], row["mode"], row["sample"]) == ("held_out", "sampled", 0)
    ]
    prompts = encode(tokenizer, [row["prompt"] for row in sampled])
    return [(prompt, row["token_ids"]) for prompt, row in zip(prompts, sampled, strict=True)]


FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command(help=__doc__)
@click.option("--base", required=True, type=FOLDER, help="the weights below an adapter")
@click.option("--start", required=True, type=FOLDER, help="the checkpoint trained from")
@click.option("--completions", required=True, type=click.Path(path_type=Path), help="the start's")
@click.option("--chat", is_flag=True, help="measure plain chat too")
@click.argument("checkpoints", nargs=-1, type=FOLDER)
@torch.inference_mode()
def main(
    base: Path, start: Path, completions: Path, chat: bool, checkpoints: tuple[Path, ...]
) -> None:
    """Print each checkpoint's KL from the start, and its log-probability of plain chat."""
    configure(seed=0, threads=1)

    def load(folder: Path) -> PreTrainedModel:
        return load_merged(folder, base=base, dtype="float32", attention="sdpa").eval()

    # Rows of token ids, (prompt, completion): plain chat, and the held-out problems. For plain chat
    # the base model's own chat template is used, from the folder of its weights; the folder `base`
    # has the prompt format's.
    plain = chat_rows(load(base), load_tokenizer(weights_of(base))) if chat else []
    on_task = task_rows(load_tokenizer(start), completions)
    reference = load(start)
    for checkpoint in (start, *checkpoints):
        model = load(checkpoint)
        # `token_scores` yields log-probs [T, V] and the completion's token ids [T] for each row.
        divergences = [
            # kl_div takes the second distribution first: Σ_t KL(before_t ‖ after_t).
            float(kl_div(after, before, log_target=True, reduction="sum"))
            for (before, _), (after, _) in zip(
                token_scores(reference, on_task), token_scores(model, on_task), strict=True
            )
        ]
        log_probs = [
            float(scores.gather(-1, labels[:, None]).mean())
            for scores, labels in token_scores(model, plain)
        ]
        measures = {"kl": divergences} | ({"chat": log_probs} if chat else {})
        facts: dict[str, Any] = {"checkpoint": str(checkpoint)}
        for name, values in measures.items():
            estimate = mean_estimate(values)
            facts |= {name: round(estimate.value, 4), f"{name}_se": round(estimate.se, 4)}
        click.echo(json.dumps(facts))


if __name__ == "__main__":
    main()
