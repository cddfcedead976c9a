"""The training phases: SFT, GRPO, DPO, and their common parts."""

from lib.core.process import leave_tensorflow

leave_tensorflow()
