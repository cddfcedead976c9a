"""Objectives: what training maximises, as plain torch functions, importable by themselves.

logprobs, advantages, losses, kl and optim are what a run calls; `docs/objectives.md` lists them
with equations and papers. `lib.course` is the public course's contract on top of them. The sizes
at which log-probs are made in parts stand here, without torch, so that a plan can count with them.
"""

CHUNK_NUMEL = 2**25
"""Logits that `fused_scores` holds at a time: 128 MiB in float32, 220 rows at V = 151,936. Half as
many cost a tenth more CPU time, twice as many save none (docs/objectives.md)."""

LARGE = 2**26
"""Logits of a micro-batch (256 MiB in float32) above which they are not made as a whole: memory no
longer grows with them, for one more product with the output layer (docs/objectives.md)."""
