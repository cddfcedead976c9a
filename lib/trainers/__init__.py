"""The phases: SFT, GRPO and DPO, each from params to a trainer that is ready to start."""

from lib.engines.compat import silence_supported_range

silence_supported_range()
