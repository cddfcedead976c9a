"""Objectives: what training maximises, as plain torch functions, importable by themselves.

logprobs, advantages, losses, kl and optim are what a run calls; `docs/objectives.md` lists them
with equations and papers. `lib.course` is the public course's contract on top of them.
"""
