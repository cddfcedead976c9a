"""Supervised fine-tuning on solutions: TRL's `SFTTrainer`, loss on completions only."""

from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer

from lib.artifacts.problems import Problem, read_problems
from lib.core.errors import UserError
from lib.engines.base import encode
from lib.models.load import trainable_policy
from lib.models.pretrained import load_tokenizer
from lib.models.save import check_own_targets
from lib.models.unsloth import shares_weights
from lib.params.schema import Params
from lib.prompts import PromptFormat
from lib.prompts.formats import conversation
from lib.prompts.targets import render_target
from lib.prompts.template import OWN
from lib.prompts.tools import spans
from lib.training.phase.console import ProgressLines
from lib.training.phase.setup import Setup, prompt_settings, set_optimizer, shared_arguments

LINE_COLUMNS = ("loss", "mean_token_accuracy", "grad_norm", "learning_rate")
"""Columns of the curve on a progress line."""


def sft_setup(params: Params, *, problems: Path, base: Path, scratch: Path) -> Setup:
    """Build the SFT trainer from params, a file of problems and the base model, ready to start.

    Args:
        base: the base model from `prepare`, or another checkpoint with a system prompt file.
        scratch: the trainer's output folder.

    Raises:
        UserError: an example is longer than `model.max_seq_length`, so training would cut it.
    """
    sft, model, validation = params.sft, params.model, params.validation
    rows, tokenizer = list(read_problems(problems)), load_tokenizer(base)
    if not rows:
        raise UserError(f"{problems}: no SFT problem is there; let `prepare.sft` keep some")
    prompt_format, system = prompt_settings(params, base)
    examples = sft_dataset(rows, tokenizer, prompt_format=prompt_format, system=system)
    # Tokens of each prompt and completion together, EOS included.
    lengths = [len(token_ids) for token_ids in examples["input_ids"]]
    # Refused and not truncated: an example without its EOS teaches the model never to stop.
    too_long = sum(length > model.max_seq_length for length in lengths)
    if too_long:
        raise UserError(
            f"model.max_seq_length={model.max_seq_length}: {too_long} of {len(lengths)} SFT "
            f"examples are longer; the longest has {max(lengths)} tokens: raise it to that"
        )
    # True if a vLLM that computes with the policy's own weights validates this run. Only on the
    # backend unsloth; `eval_steps` of 0 is a run without validation.
    vllm_on_policy = sft.eval_steps > 0 and shares_weights(model, engine=validation.engine)
    lora_targets = model.lora.target_modules if model.lora.rank else ()
    trainer = SFTTrainer(
        # SFT is the first phase: the checkpoint that it trains is the base model itself.
        model=trainable_policy(
            base,
            base=base,
            settings=model,
            seed=params.seed,
            # Unsloth loads that vLLM with the policy, on this share of the GPU; 0 for none.
            memory_share=validation.gpu_memory_utilization if vllm_on_policy else 0.0,
        ),
        args=SFTConfig(
            **shared_arguments(params, sft, batch=sft.batch_size, scratch=scratch),
            num_train_epochs=sft.num_epochs,
            # TRL's chunked loss reads the output layer's own weight, without an adapter on it.
            loss_type="nll" if "lm_head" in lora_targets else "chunked_nll",
            packing=sft.packing,
            # The length of packed rows. Unpacked rows need no limit: long ones are refused above.
            max_length=model.max_seq_length if sft.packing else None,
            # TRL takes the loss on the tokens of `completion_mask`, a column of the examples.
            completion_only_loss=True,
            train_sampling_strategy="group_by_length" if sft.group_by_length else "random",
        ),
        train_dataset=examples,
        processing_class=tokenizer,
        callbacks=[ProgressLines("sft", LINE_COLUMNS)],
    )
    set_optimizer(trainer, sft)
    return Setup(trainer=trainer, problems=rows, settings=params.model_dump())


def sft_dataset(
    problems: Sequence[Problem],
    tokenizer: PreTrainedTokenizerBase,
    *,
    prompt_format: PromptFormat,
    system: str,
) -> Dataset:
    """Return a dataset with one row per problem: its prompt and its solution, tokenised.

    A solution's calls have the tool's results, which are forced tokens: no loss is taken on them.

    Its columns are `input_ids` and `completion_mask`. Prompt and solution are tokenised separately,
    the prompt as for generation. TRL would tokenise them together, and could fuse the end of the
    prompt and the start of the solution into one token. Training would then see another prompt than
    generation, and TRL only warns.

    Args:
        system: text of the system message; '' for none.

    Raises:
        UserError: the model's own template renders the target in another way.
    """
    if prompt_format.layout is OWN:
        check_own_targets(tokenizer, prompt_format, system)
    rows = []
    prompts = encode(tokenizer, [conversation(each.problem, system=system) for each in problems])
    for problem, prompt_ids in zip(problems, prompts, strict=True):
        target = render_target(problem, prompt_format).text + tokenizer.eos_token
        # For a prompt of 3 tokens and a target of 2 with its EOS: [0, 0, 0, 1, 1].
        row = {"input_ids": [*prompt_ids], "completion_mask": [0] * len(prompt_ids)}
        # Tokenised span by span, as in generation; one span without a tool.
        for text, is_sampled in spans(target, prompt_format.tool):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            row["input_ids"] += ids
            row["completion_mask"] += [int(is_sampled)] * len(ids)
        rows.append(row)
    return Dataset.from_list(rows)
