"""Direct preference optimisation (arXiv:2305.18290): TRL's `DPOTrainer` on mined pairs.

The reference policy is the checkpoint at the start of training. The pairs hold token ids as they
were sampled. TRL would tokenise prompt and completion together, and could fuse the end of one and
the start of the other into a token that was never sampled.
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

LINE_COLUMNS = ("loss", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected")
"""Columns of the curve on a progress line."""

ID_COLUMNS = ("prompt_ids", "chosen_ids", "rejected_ids")
"""Columns of a pair's token ids, as TRL's trainer reads them."""


class PairTrainer(DPOTrainer):
    """TRL's DPO trainer for pairs of token ids.

    Overrides the private `_prepare_dataset` (trl 1.14), which would tokenise text. Unnecessary once
    TRL accepts a dataset with these columns, as its `SFTTrainer` does.
    """

    def _prepare_dataset(
        self, dataset: Dataset, processing_class: Any, args: DPOConfig, dataset_name: str
    ) -> Dataset:
        return dataset


def dpo_setup(params: Params, *, pairs: Path, init: Path, base: Path, scratch: Path) -> Setup:
    """Build the DPO trainer from params, a file of pairs and the checkpoint `init` to start from.

    Args:
        pairs: rows with `prompt_ids`, `chosen_ids` and `rejected_ids` (see `lib.evaluation.pairs`).
        base: the model that an adapter is trained on.
        scratch: the trainer's output folder.

    Raises:
        UserError: there is no pair, or one is longer than `model.max_seq_length`.
    """
    model = params.model
    dataset = pair_dataset(read_jsonl(pairs), max_seq_length=model.max_seq_length)
    # An adapter of an earlier phase is trained further.
    policy = load_policy(init, base=base, settings=model)
    if model.lora.rank and not is_adapter(init):
        policy = add_adapter(policy, model.lora)
    # TRL copies an adapter as the reference policy; for full weights it needs a second model.
    adapted = hasattr(policy, "peft_config")
    trainer = PairTrainer(
        model=policy,
        ref_model=None if adapted else load_policy(init, base=base, settings=model),
        args=dpo_arguments(params, scratch=scratch),
        train_dataset=dataset,
        processing_class=load_tokenizer(init),
        callbacks=[ProgressLines("dpo", LINE_COLUMNS)],
    )
    prepare_trainer(trainer, params.dpo)
    return Setup(trainer=trainer, settings=params.model_dump())


def dpo_arguments(params: Params, *, scratch: Path) -> DPOConfig:
    """Return TRL's arguments from params; no length limit, since long pairs are refused before."""
    dpo = params.dpo
    return DPOConfig(
        **shared_arguments(params, dpo, batch=dpo.batch_size, scratch=scratch),
        num_train_epochs=dpo.num_epochs,
        # TRL would cut the end off, and the answer with it.
        max_length=None,
        beta=dpo.beta,
        # TRL takes a list of losses to mix; here it has one.
        loss_type=[dpo.loss],
        label_smoothing=dpo.label_smoothing,
    )


def pair_dataset(pairs: Iterable[Mapping[str, Any]], *, max_seq_length: int) -> Dataset:
    """Return a dataset of the pairs' token ids, with the columns `ID_COLUMNS`.

    Raises:
        UserError: there is no pair, or a prompt and a completion together exceed `max_seq_length`
            tokens.
    """
    rows = [{name: list(pair[name]) for name in ID_COLUMNS} for pair in pairs]
    if not rows:
        raise UserError("dpo: the file of pairs is empty; `dvc repro pairs` writes it")
    # Tokens of the prompt with the longer completion of the two.
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
