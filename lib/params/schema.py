"""The schema of params.yaml: one frozen, strict model per section.

Keys have no defaults, except for those of a `path` source besides its path.
A key is here if changing it should re-run a stage. Devices, tracking and launchers are environment.
The sections are in `model`, `data` and `training`, each with the rules that it can check by itself.
`rules` has those between sections.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from flatten_dict import flatten
from pydantic import Field

from lib.params.data import Prepare
from lib.params.model import Evaluate, Export, Model, Prompt
from lib.params.section import Section
from lib.params.training import (
    AdamW,
    Dpo,
    Grpo,
    Reward,
    RolloutSampling,
    Sft,
    Validation,
)


def by_dotted_key(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings by dotted key; a list is one value, and so are levels by set.

    Without the section `optimizer`: the phases have its values.
    """
    phases = {name: value for name, value in content.items() if name != "optimizer"}
    values = dict(flatten(phases, reducer="dot"))
    # Levels are a list or a mapping: one key for both, so that presets can be compared.
    levels = "prepare.synthetic.level_weights"
    sets = [name for name in ("sft", "grpo") if f"{levels}.{name}" in values]
    by_set = {name: values.pop(f"{levels}.{name}") for name in sets}
    return {**values, levels: by_set} if by_set else values


class Params(Section):
    """The whole of params.yaml."""

    # NumPy's seed, which transformers sets too, has 32 bits.
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)]
    """Seed of data, weights, order and sampling."""
    # The number of threads changes the order of additions, and so the rounding of sums.
    torch_threads: Annotated[int, Field(ge=1, le=1024)]
    """CPU threads of torch; another number rounds differently."""
    model: Model
    prompt: Prompt
    prepare: Prepare
    validation: Validation
    optimizer: AdamW
    sft: Sft
    rollout: RolloutSampling
    reward: Reward
    grpo: Grpo
    evaluate: Evaluate
    export: Export
    dpo: Dpo

    def flat(self) -> dict[str, Any]:
        """Return the values by dotted key; a list is one value."""
        return by_dotted_key(self.model_dump(mode="json"))

    def replaced(self, **sections: Mapping[str, Any]) -> "Params":
        """Return a copy with other values, not validated: `replaced(grpo={"max_steps": 2})`."""
        changed = {
            name: getattr(self, name).model_copy(update=values) for name, values in sections.items()
        }
        return self.model_copy(update=changed)

    @property
    def starts(self) -> dict[str, str]:
        """Phase of this run → its starting checkpoint, like {"sft": "base", "grpo": "sft"}."""
        starts = {"sft": "base", "grpo": "sft"}
        # `dpo.init` is [] or one name; without it zip gives no entry.
        return starts | dict(zip(["dpo"], self.dpo.init, strict=False))
