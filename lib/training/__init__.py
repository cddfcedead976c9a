"""The training phases: SFT, GRPO, DPO, and their common parts."""

from lib.core.process import set_library_variables

# Before the first import of transformers, which would import an installed TensorFlow.
set_library_variables()
