"""The rewards that params choose, for training and evaluation alike."""

from lib.params.schema import Reward
from lib.prompts import PromptFormat
from lib.verifier.rewards import STACKS, RewardFn, build_rewards


def chosen_rewards(
    reward: Reward, *, prompt_format: PromptFormat, max_completion_tokens: int
) -> list[RewardFn]:
    """The functions of the stack, then the extra ones; one for each of `reward.weights`."""
    return build_rewards(
        (*STACKS[reward.stack], *reward.extra),
        prompt_format=prompt_format,
        **reward.settings(max_completion_tokens=max_completion_tokens),
    )
