"""The training phases: SFT, GRPO, DPO, and their common parts."""

from lib.core.process import leave_tensorflow

# Before the first import of transformers, which would import an installed TensorFlow.
leave_tensorflow()
