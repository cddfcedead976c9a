"""Generation with a transformers model in memory, on the CPU or one GPU."""

import contextlib
from collections.abc import Iterator, Sequence

import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lib.engines.base import Completion, Sampling, longest_completions
from lib.engines.decoding import can_decode, decode
from lib.engines.draws import keys, uniforms
from lib.engines.endings import Endings, end_tokens
from lib.engines.generating import generate
from lib.engines.rows import Batch
from lib.engines.unsloth import is_unsloth
from lib.params.section import EngineName


class TransformersEngine:
    """An `Engine` around a model in memory.

    Batches depend on the request alone: prompts of like length go together, `batch_size`
    completions at a time. Draws depend on seed and prompt (see `draws`), so that a request cut in
    two gives the completions of the whole, up to rounding.

    Args:
        batch_size: completions generated at a time.
        label: name of the progress bar; '' shows none.
    """

    name: EngineName = "transformers"

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_size: int,
        label: str = "",
    ) -> None:
        self.model: PreTrainedModel | None = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.label = label
        self._endings: dict[tuple[str, ...], Endings] = {}

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Completion]]:
        """See `Engine`."""
        if self.model is None:
            raise RuntimeError("the engine is closed")
        limits = longest_completions(prompts, sampling, positions=_positions(self.model))
        drawn_by = keys(prompts, seed=sampling.seed)
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        completions: list[list[Completion]] = [[] for _ in prompts]
        per_batch = max(1, self.batch_size // sampling.num_completions)
        with (
            tqdm(total=len(prompts), desc=self.label, unit="problem", disable=self._quiet) as bar,
            _generating(self.model),
        ):
            for start in range(0, len(order), per_batch):
                chosen = order[start : start + per_batch]
                batch = Batch(
                    prompts=[prompts[index] for index in chosen],
                    limits=[limits[index] for index in chosen],
                    uniforms=uniforms(
                        [drawn_by[index] for index in chosen],
                        num_completions=sampling.num_completions,
                        num_draws=max(limits[index] for index in chosen),
                    ),
                )
                rows = iter(self._complete(self.model, batch, sampling))
                for index in chosen:
                    completions[index] = [next(rows) for _ in range(sampling.num_completions)]
                bar.update(len(chosen))
        return completions

    def sync(self, policy: PreTrainedModel) -> None:
        """Generate from `policy` from now on; a model in memory needs no copy."""
        self.model = policy

    def close(self) -> None:
        """Let go of the model."""
        self.model = None
        self._endings.clear()

    @property
    def _quiet(self) -> bool | None:
        return None if self.label else True

    def _complete(
        self, model: PreTrainedModel, batch: Batch, sampling: Sampling
    ) -> list[Completion]:
        endings = self._find_endings(model, sampling.stop_strings)
        run = decode if can_decode(model) else generate
        return run(model, batch, sampling, endings)

    def _find_endings(self, model: PreTrainedModel, stop_strings: tuple[str, ...]) -> Endings:
        if stop_strings not in self._endings:
            self._endings[stop_strings] = Endings(
                self.tokenizer,
                end_tokens=end_tokens(model, self.tokenizer),
                stop_strings=stop_strings,
                vocab_size=model.get_output_embeddings().weight.shape[0],
            )
        return self._endings[stop_strings]


@contextlib.contextmanager
def _generating(model: PreTrainedModel) -> Iterator[None]:
    """Without gradients and dropout; a model in training goes back to it."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
        if training and is_unsloth(model):
            # Its `generate` turns checkpointing off, and on again only where it finds train mode.
            model.for_training()


def _positions(model: PreTrainedModel) -> int | None:
    """Tokens that prompt and completion may have together, None where the model sets no limit."""
    text = model.config.get_text_config(decoder=True)
    positions: int | None = getattr(text, "max_position_embeddings", None)
    return positions
