"""Reward stacks: a file each, imported when it is named, a dependency of the stages that use it.

A new stack is one file with its `REWARDS`, in the order of the weights. Weights are the caller's
(params: `reward.weights`): a stack tells only what is measured.
"""
