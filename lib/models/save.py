"""Write checkpoints: the base model, a trained policy, an adapter that was trained elsewhere."""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2
from peft import PeftModel
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from lib.artifacts import read_json, write_json
from lib.artifacts.problems import Problem
from lib.core.errors import UserError
from lib.models import tiny
from lib.models.files import ADAPTER, ADAPTER_FILES, LICENSE, is_adapter, read_adapter, token_faults
from lib.models.pretrained import load_pretrained, load_tokenizer
from lib.models.weights import find_weights, read_pointer, write_pointer
from lib.params.model import Model
from lib.prompts import PromptFormat
from lib.prompts.formats import conversation
from lib.prompts.saved import save_system, saved_system
from lib.prompts.template import OWN, bounded_rendering
from lib.prompts.tools import tool_tags

KEPT = ("config.json", "generation_config.json", LICENSE)
"""Files of a pretrained model that are small enough to be copied beside its pointer."""

PADDING = ("<|finetune_right_pad_id|>", "<|pad|>", "<pad>", "[PAD]")
"""Tokens that a tokenizer without a padding token may have for it; else its EOS pads."""

DAY = "the day it is"
"""Text in the place of the date, to see if a template prints it."""

# Embedding rows of added tags are computed again at every load, so they are not saved; without this
# setting peft asks the Hub about them. TRL keeps a frozen copy of the adapter in the same model, as
# the reference policy; it is not saved either.
ADAPTER_ONLY = {"save_embedding_layers": False, "selected_adapters": ["default"]}
"""Arguments of `PeftModel.save_pretrained`: the adapter in training, and nothing else."""


def write_base(
    directory: Path,
    problems: Iterable[Problem],
    *,
    prompt_format: PromptFormat,
    model: Model,
    seed: int,
    system: str = "",
    template_arguments: Mapping[str, object] | None = None,
) -> None:
    """Write the base model to `directory`: a new tiny model, or a pretrained one's tokenizer and
    pointer.

    Args:
        problems: training problems, on which the tiny model's tokenizer is trained.
        seed: of the tiny model's random weights.
        system, template_arguments: for layout `own`, see `keep_own_template`.

    Raises:
        UserError: the model cannot be found, or has no safetensors, no fast tokenizer or no EOS.
    """
    if not model.name:
        tiny.write_tiny(directory, problems, prompt_format=prompt_format, model=model, seed=seed)
        write_pointer(directory, directory, name="", revision="")
        return
    folder = find_weights(model.name, model.revision)
    config = load_pretrained(AutoConfig, folder).get_text_config(decoder=True)
    positions = getattr(config, "max_position_embeddings", None)
    if positions and positions < model.max_seq_length:
        raise UserError(
            f"model.max_seq_length={model.max_seq_length}: {model.name} has {positions} positions "
            "for prompt and completion together; lower it"
        )
    for fault in token_faults(folder):
        raise UserError(f"model.name={model.name}: {fault}")
    tokenizer = load_tokenizer(folder)
    # Lengths are counted with tokenizer.json, which only a fast tokenizer has.
    if not tokenizer.is_fast or tokenizer.eos_token is None:
        raise UserError(
            f"model.name={model.name}: expected a fast tokenizer (tokenizer.json) that has an "
            "end-of-sequence token"
        )
    if prompt_format.layout is OWN:
        try:
            keep_own_template(tokenizer, prompt_format, system, template_arguments or {})
        except UserError as error:
            raise UserError(f"prompt.layout=own: {model.name} {error.message}") from error
    else:
        tokenizer.chat_template = prompt_format.chat_template
    if tokenizer.pad_token is None:
        known = tokenizer.get_vocab()
        tokenizer.pad_token = next((pad for pad in PADDING if pad in known), tokenizer.eos_token)
    # Each tag becomes one token; `fit_embeddings` adds the embedding rows when the model is loaded.
    if model.tag_tokens:
        tokenizer.add_tokens([*prompt_format.marks, *tool_tags(prompt_format.tool)])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(directory)
    for name in KEPT:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, directory / name)
    write_pointer(directory, folder, name=model.name, revision=model.revision)


def keep_own_template(
    tokenizer: PreTrainedTokenizerBase,
    prompt_format: PromptFormat,
    system: str,
    arguments: Mapping[str, object],
) -> None:
    """Fix the arguments of a tokenizer's own chat template, and make the end of its turns EOS.

    The arguments become a part of the template, so that training, evaluation, servers and an export
    render the same.

    Args:
        system: the system prompt; '' for none.
        arguments: names that the template reads.

    Raises:
        UserError: there is no template, it refuses the system message, prints the day, changes an
            answer, or ends it with no token of its own.
    """
    if not isinstance(tokenizer.chat_template, str):
        raise UserError("has no chat template; use plain, chatml or llama3")
    fixed = (f"{{%- set {name} = {json.dumps(each)} -%}}" for name, each in arguments.items())
    tokenizer.chat_template = "".join((*fixed, tokenizer.chat_template))
    rendered, target, whole = _own_rendering(tokenizer, prompt_format, system)
    if DAY in rendered:
        raise UserError(
            "prints the day, and prompts would differ from day to day; name one, such as "
            "template_arguments: {date_string: 26 Jul 2024}"
        )
    if target not in whole:
        raise UserError(f"changes an answer to {whole[-40:]!r}; use plain, chatml or llama3")
    ends = tokenizer(whole.rpartition(target)[2], add_special_tokens=False)["input_ids"]
    if not ends or ends[0] not in tokenizer.added_tokens_decoder:
        raise UserError("ends an answer with no token of its own; use plain, chatml or llama3")
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(ends[0])


def check_own_targets(
    tokenizer: PreTrainedTokenizerBase, prompt_format: PromptFormat, system: str
) -> None:
    """Check that prompt and SFT target are the own template's rendering of the conversation.

    Reinforcement needs the prompt alone: a template may open the reasoning in it, which a solution
    does not close.

    Raises:
        UserError: the template adds text to an answer, or leaves some of the prompt out.
    """
    rendered, target, whole = _own_rendering(tokenizer, prompt_format, system)
    expected = rendered + target
    if not whole.startswith(expected):
        pairs = enumerate(zip(expected, whole, strict=False))
        same = next((at for at, (ours, theirs) in pairs if ours != theirs), len(whole))
        raise UserError(
            f"prompt.layout=own: the model renders an answer with {whole[same:][:40]!r}, and SFT "
            f"has {expected[same:][:40]!r}; try template_arguments: {{enable_thinking: false}}, or "
            "sft.num_epochs: 0"
        )


def _own_rendering(
    tokenizer: PreTrainedTokenizerBase, prompt_format: PromptFormat, system: str
) -> tuple[str, str, str]:
    """Return an example's prompt, its SFT target, and both as one conversation."""
    question = conversation("What is 2 + 3?", system=system)
    target = prompt_format.target(solution="2 + 3 = 5", reference="5")
    options: dict[str, Any] = {"tokenize": False, "strftime_now": lambda _: DAY}
    answered = [*question, {"role": "assistant", "content": target}]
    try:
        with bounded_rendering(tokenizer.name_or_path, 2):
            rendered = str(
                tokenizer.apply_chat_template(question, add_generation_prompt=True, **options)
            )
            whole = str(tokenizer.apply_chat_template(answered, **options))
    except jinja2.TemplateError as error:
        hint = "; try prompt.system: ''" if system else ""
        raise UserError(f"refuses the prompt: {error}{hint}") from error
    return rendered, target, whole


def save_policy(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    checkpoint: Path,
    *,
    weights: dict[str, Tensor] | None = None,
) -> None:
    """Write weights and tokenizer to `checkpoint`, with equal bytes for an equal model.

    Args:
        weights: all weights by name, if `model` holds only this rank's shards.
    """
    adapter_only = ADAPTER_ONLY if isinstance(model, PeftModel) else {}
    model.save_pretrained(checkpoint, state_dict=weights, **adapter_only)
    tokenizer.save_pretrained(checkpoint)
    # peft writes a model card with its own version in it.
    (checkpoint / "README.md").unlink(missing_ok=True)
    if is_adapter(checkpoint):
        # peft keeps the names of the layers in a set, whose order changes from run to run. An
        # adapter trained elsewhere may have one regular expression instead.
        config = read_json(checkpoint / ADAPTER)
        if not isinstance(config["target_modules"], str):
            config["target_modules"] = sorted(config["target_modules"])
        # In place of the local path that peft wrote: name and revision of the base model, from the
        # attribute `pointer` that loading set. Without a name there, the path stays.
        pointer = getattr(model.get_base_model(), "pointer", {})
        write_json(checkpoint / ADAPTER, {**config, **_base_name_entries(pointer)})


def copy_adapter(adapter: Path, *, base: Path, checkpoint: Path) -> None:
    """Write a checkpoint from a LoRA adapter that was trained elsewhere on the weights of `base`.

    The checkpoint gets the adapter's two files, and the tokenizer and system prompt of `base`. The
    base model's name in the adapter's config is taken from the pointer of `base`.

    Args:
        adapter: folder with the adapter (`sft.adapter`).
        checkpoint: the folder to write.

    Raises:
        UserError: there is no adapter, or not as safetensors.
    """
    try:
        saved = read_adapter(adapter)
    except UserError as error:
        raise UserError(f"sft.adapter: {error.message}") from error
    load_tokenizer(base).save_pretrained(checkpoint)
    # `evaluate` and `export` depend on the checkpoint: another text in data/raw has to change it.
    save_system(checkpoint, saved_system(base))
    config, weights = ADAPTER_FILES
    shutil.copyfile(adapter / weights, checkpoint / weights)
    base_name = _base_name_entries(read_pointer(base))
    write_json(checkpoint / config, {**saved, **base_name})


def _base_name_entries(pointer: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the entries that name the base model, to write over those in an adapter's config.

    peft's own entry is a path in this machine's cache.

    Args:
        pointer: the base model's name and revision on the Hub (`read_pointer`). It is {} or has an
            empty name for a base model that was made or trained here; the result is then {}, and
            the adapter's config keeps its own entries.
    """
    if not pointer.get("name"):
        return {}
    return {
        "base_model_name_or_path": pointer["name"],
        "revision": pointer["revision"] or None,
    }
