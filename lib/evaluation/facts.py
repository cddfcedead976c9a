"""What it takes to get a number again, beside settings, versions and the hashes of inputs."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from lib.environment import installed_version
from lib.evaluation.measure import Task
from lib.evaluation.stream import code_hash
from lib.prompts import PromptFormat


def evaluation_facts(
    *,
    engine: str,
    tokenizer: PreTrainedTokenizerBase,
    prompt_format: PromptFormat,
    system: str,
    tasks: Sequence[Task],
    faults: Mapping[str, int],
) -> dict[str, Any]:
    """For provenance: engine, prompt, sampling by benchmark and mode, and the grader.

    Args:
        engine: its name, which is also that of its package; of a server, the version here.
        tokenizer: of the model that answered; its chat template rendered the prompts.
        faults: what the verifier counted.
    """
    template = str(tokenizer.chat_template)
    sampling: dict[str, dict[str, Any]] = {}
    for task in tasks:
        shown = dataclasses.asdict(task.sampling)
        sampling.setdefault(task.benchmark, {})[task.mode] = {
            **{name: value for name, value in shown.items() if name != "stop_strings"},
            "num_problems": len(task.problems),
        }
    return {
        "engine": {"name": engine, "version": installed_version(engine.removesuffix("-server"))},
        "prompt": {
            "format": prompt_format.name,
            "template": hashlib.sha256(template.encode()).hexdigest()[:16],
            "system": system,
            "stop_strings": list(prompt_format.stop_strings),
        },
        "sampling": sampling,
        "verifier": {"code": code_hash("verifier"), **faults},
    }
