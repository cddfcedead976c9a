"""Direct preference optimisation (arXiv:2305.18290): TRL's `DPOTrainer` on mined pairs.

The reference policy is the checkpoint that training starts from. Token ids come with the pairs, as
they were generated: TRL would tokenise prompt and completion together, where the end of one and the
start of the other can fuse into a token that was never sampled.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import DPOConfig, DPOTrainer

from lib.artifacts import read_jsonl
from lib.core.errors import UserError
from lib.engines.policy import add_adapter, is_adapter, load_policy, load_tokenizer
from lib.params.schema import Params
from lib.training.phase.setup import Setup, prepare_trainer, shared_arguments
from lib.training.phase.tracking import ProgressLines

SHOWN = ("loss", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected")

TOKENS = ("prompt_ids", "chosen_ids", "rejected_ids")
"""What TRL's trainer reads of a pair."""


class PairTrainer(DPOTrainer):
    """TRL's trainer for pairs that are token ids already.

    Overrides the private `_prepare_dataset` (trl 1.14), which would tokenise text; it can go when
    TRL leaves a dataset with these columns alone, as its `SFTTrainer` does.
    """

    def _prepare_dataset(
        self, dataset: Dataset, processing_class: Any, args: DPOConfig, dataset_name: str
    ) -> Dataset:
        return dataset


def dpo_setup(params: Params, *, pairs: Path, init: Path, base: Path, scratch: Path) -> Setup:
    """The DPO of `params` on a file of pairs, ready to start from the checkpoint `init`.

    Args:
        pairs: rows with `prompt_ids`, `chosen_ids` and `rejected_ids` (see `lib.evaluation.pairs`).
        base: the weights below an adapter.
        scratch: folder for what the trainer writes on its own.

    Raises:
        UserError: there is no pair, or one is longer than `model.max_seq_length`.
    """
    model = params.model
    dataset = pair_dataset(read_jsonl(pairs), max_seq_length=model.max_seq_length)
    policy = load_policy(init, base=base, settings=model)
    if model.lora.rank and not is_adapter(init):
        policy = add_adapter(policy, model.lora)
    # Of an adapter, TRL keeps a frozen copy as the reference; of a whole model it needs a second.
    adapted = hasattr(policy, "peft_config")
    trainer = PairTrainer(
        model=policy,
        ref_model=None if adapted else load_policy(init, base=base, settings=model),
        args=dpo_arguments(params, scratch=scratch),
        train_dataset=dataset,
        processing_class=load_tokenizer(init),
        callbacks=[ProgressLines("dpo", SHOWN)],
    )
    prepare_trainer(trainer, params.dpo)
    return Setup(trainer=trainer)


def dpo_arguments(params: Params, *, scratch: Path) -> DPOConfig:
    """Params to TRL's arguments; nothing is cut, since `pair_dataset` has refused what is long."""
    dpo = params.dpo
    return DPOConfig(
        **shared_arguments(params, dpo, batch=dpo.batch_size, scratch=scratch),
        num_train_epochs=dpo.num_epochs,
        max_length=None,
        beta=dpo.beta,
        loss_type=[dpo.loss],
        label_smoothing=dpo.label_smoothing,
    )


def pair_dataset(pairs: Iterable[Mapping[str, Any]], *, max_seq_length: int) -> Dataset:
    """The token ids of the pairs.

    Raises:
        UserError: there is none, or a prompt with its completion is too long.
    """
    rows = [{name: list(pair[name]) for name in TOKENS} for pair in pairs]
    if not rows:
        raise UserError("dpo: the file of pairs is empty; `dvc repro pairs` writes it")
    lengths = [
        len(row["prompt_ids"]) + max(len(row["chosen_ids"]), len(row["rejected_ids"]))
        for row in rows
    ]
    if max(lengths) > max_seq_length:
        raise UserError(
            f"model.max_seq_length={max_seq_length}: the longest pair has {max(lengths)} tokens; "
            "raise it to that, or lower rollout.max_new_tokens"
        )
    return Dataset.from_list(rows)
