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

from lib.artifacts import read_records
from lib.core.errors import UserError
from lib.models.files import is_adapter
from lib.models.load import add_adapter, load_policy
from lib.models.pretrained import load_tokenizer
from lib.params.schema import Params
from lib.training.phase.console import ProgressLines
from lib.training.phase.setup import Setup, set_optimizer, shared_arguments

LINE_COLUMNS = ("loss", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected")

ID_COLUMNS = ("prompt_ids", "chosen_ids", "rejected_ids")
"""Columns of a pair's token ids, as TRL's trainer reads them."""


class PairTrainer(DPOTrainer):
    """TRL's DPO trainer for pairs of token ids, each of equal weight in its step.

    Overrides the private `_prepare_dataset` (trl 1.14), which would tokenise text. Unnecessary once
    TRL accepts a dataset with these columns, as its `SFTTrainer` does.
    """

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        batches, items = super().get_batch_samples(*args, **kwargs)
        self._rows_in_step = sum(len(batch["input_ids"]) for batch in batches)
        return batches, items

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return a micro-batch's loss, weighted by its share of the step's pairs.

        Trainer averages the micro-batches, in which a short last one would count too much.
        """
        # 1.0 where all micro-batches are of one size.
        weight = (
            len(inputs["input_ids"]) * self.current_gradient_accumulation_steps / self._rows_in_step
        )
        result = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        return (result[0] * weight, result[1]) if return_outputs else result * weight

    def _prepare_dataset(
        self, dataset: Dataset, processing_class: Any, args: DPOConfig, dataset_name: str
    ) -> Dataset:
        return dataset


def dpo_setup(params: Params, *, pairs: Path, init: Path, base: Path, scratch: Path) -> Setup:
    """Build the DPO trainer from params, a file of pairs and the checkpoint `init` to start from.

    Args:
        pairs: file of rows with `prompt_ids`, `chosen_ids` and `rejected_ids`, which
            `lib.evaluation.pairs` writes.
        base: the model that an adapter is trained on.
        scratch: the trainer's output folder.

    Raises:
        UserError: there is no pair, or one is longer than `model.max_seq_length`.
    """
    model = params.model
    rows = read_records(
        pairs,
        lambda row: {name: [int(each) for each in row[name]] for name in ID_COLUMNS},
        what="a pair of token ids",
        remedy="`dvc repro pairs` writes it",
    )
    dataset = pair_dataset(rows, max_seq_length=model.max_seq_length)
    policy = load_policy(init, base=base, settings=model)
    if model.lora.rank and not is_adapter(init):
        policy = add_adapter(policy, model.lora)
    # TRL makes the reference policy from a copy of the adapter. For full weights it needs a second
    # model.
    adapted = hasattr(policy, "peft_config")
    trainer = PairTrainer(
        model=policy,
        ref_model=None if adapted else load_policy(init, base=base, settings=model),
        args=dpo_arguments(params, scratch=scratch),
        train_dataset=dataset,
        processing_class=load_tokenizer(init),
        callbacks=[ProgressLines("dpo", LINE_COLUMNS)],
    )
    if adapted:
        # trl 1.14 copies weights named `….default.…` into its frozen adapter, and forgets those
        # whose name ends there, such as peft's `trainable_tokens_delta.default`.
        for name, weight in policy.named_parameters():
            if name.endswith(".default"):
                copy = policy.get_parameter(f"{name.removesuffix('default')}ref")
                copy.data.copy_(weight.data)
    set_optimizer(trainer, params.dpo)
    return Setup(trainer=trainer, settings=params.model_dump())


def dpo_arguments(params: Params, *, scratch: Path) -> DPOConfig:
    """Return TRL's arguments from params, without a length limit.

    `pair_dataset` refuses pairs that are too long.
    """
    dpo = params.dpo
    arguments = shared_arguments(params, dpo, batch=dpo.batch_size, scratch=scratch)
    # DPO's policy is never Unsloth's, which has a checkpointing of its own.
    arguments["gradient_checkpointing"] = params.model.gradient_checkpointing
    return DPOConfig(
        **arguments,
        num_train_epochs=dpo.num_epochs,
        # With a limit, TRL would cut off the end of a completion, and the answer with it.
        max_length=None,
        beta=dpo.beta,
        loss_type=[dpo.loss],
        label_smoothing=dpo.label_smoothing,
    )


def pair_dataset(pairs: Iterable[Mapping[str, Any]], *, max_seq_length: int) -> Dataset:
    """Return a dataset of the pairs' token ids.

    Args:
        max_seq_length: most tokens of a prompt and a completion together.

    Raises:
        UserError: there is no pair, or one is longer.
    """
    rows = [{name: list(pair[name]) for name in ID_COLUMNS} for pair in pairs]
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
