"""Reward stacks: named sets of rewards (params: `reward.stack`), one file each.

A new stack is one file with its `REWARDS`, in the order of `reward.weights` in params.
"""
