"""Supervised fine-tuning on worked solutions: TRL's `SFTTrainer`, loss on completions only."""

from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset
from transformers import PreTrainedTokenizerBase, PrinterCallback
from trl import SFTConfig, SFTTrainer

from lib.artifacts.problems import Problem, read_problems
from lib.core.errors import UserError
from lib.engines.policy import load_tokenizer, trainable_policy
from lib.engines.unsloth import shares_weights
from lib.params.model import Model
from lib.params.schema import Params
from lib.params.training import Sft
from lib.prompts import Message, PromptFormat
from lib.prompts.targets import target_of
from lib.training.phase.setup import Setup, choose_optimizer, prompt_settings, shared_arguments
from lib.training.phase.tracking import ProgressLines

SHOWN = ("loss", "mean_token_accuracy", "grad_norm", "learning_rate")


def build_sft(
    problems: Sequence[Problem],
    *,
    base: Path,
    prompt_format: PromptFormat,
    system: str,
    sft: Sft,
    model: Model,
    seed: int,
    scratch: Path,
    memory_share: float = 0.0,
) -> SFTTrainer:
    """A trainer that is ready to start.

    Args:
        memory_share: part of the GPU for a vLLM below Unsloth's policy, on which it is validated;
            0 loads none.

    Raises:
        UserError: an example is longer than `model.max_seq_length`, so training would cut it.
    """
    tokenizer = load_tokenizer(base)
    examples = sft_dataset(problems, tokenizer, prompt_format=prompt_format, system=system)
    lengths = [len(token_ids) for token_ids in examples["input_ids"]]
    # An example without its end teaches never to stop, so that nothing is cut.
    if too_long := sum(length > model.max_seq_length for length in lengths):
        raise UserError(
            f"model.max_seq_length={model.max_seq_length}: {too_long} of {len(lengths)} SFT "
            f"examples are longer; the longest has {max(lengths)} tokens: raise it to that"
        )
    policy = trainable_policy(base, base=base, settings=model, seed=seed, memory_share=memory_share)
    arguments = SFTConfig(
        **shared_arguments(sft, batch=sft.batch_size, model=model, seed=seed, scratch=scratch),
        num_train_epochs=sft.num_epochs,
        packing=sft.packing,
        # Of packed rows; what TRL would cut is refused above.
        max_length=model.max_seq_length if sft.packing else None,
        completion_only_loss=True,
        train_sampling_strategy="group_by_length" if sft.group_by_length else "random",
    )
    trainer = SFTTrainer(
        model=policy,
        args=arguments,
        train_dataset=examples,
        processing_class=tokenizer,
        callbacks=[ProgressLines("sft", SHOWN)],
    )
    trainer.remove_callback(PrinterCallback)
    choose_optimizer(trainer, sft.optimizer)
    return trainer


def sft_setup(params: Params, *, problems: Path, base: Path, scratch: Path) -> Setup:
    """The SFT of `params` on a file of problems, ready to start.

    Args:
        base: what `prepare` wrote, or another checkpoint with a system prompt beside it.
        scratch: folder for what the trainer writes on its own.
    """
    rows, validation = list(read_problems(problems)), params.validation
    shares = params.sft.eval_steps and shares_weights(params.model, engine=validation.engine)
    trainer = build_sft(
        rows,
        base=base,
        memory_share=validation.gpu_memory_utilization if shares else 0.0,
        sft=params.sft,
        model=params.model,
        seed=params.seed,
        scratch=scratch,
        **prompt_settings(params, base),
    )
    return Setup(trainer=trainer, problems=rows)


def sft_dataset(
    problems: Sequence[Problem],
    tokenizer: PreTrainedTokenizerBase,
    *,
    prompt_format: PromptFormat,
    system: str,
) -> Dataset:
    """Token ids of prompt and completion, and which of them are the completion's.

    The two are tokenised apart, the prompt as generation tokenises it. TRL tokenises them together,
    where the end of the prompt and the start of the completion can fuse into one token; the prompt
    that is trained on is then not the one that is generated from, and TRL only warns.
    """
    return Dataset.from_list(
        [
            _tokens(
                prompt_format.prompt(problem.problem, system=system),
                target_of(problem, prompt_format),
                tokenizer,
            )
            for problem in problems
        ]
    )


def _tokens(
    prompt: list[Message], target: str, tokenizer: PreTrainedTokenizerBase
) -> dict[str, list[int]]:
    # Unsloth's patched tokenizers return token ids alone where nothing is said.
    rendered = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)
    prompt_ids = rendered["input_ids"]
    completion_ids = tokenizer(target + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
    return {
        "input_ids": [*prompt_ids, *completion_ids],
        "completion_mask": [0] * len(prompt_ids) + [1] * len(completion_ids),
    }
