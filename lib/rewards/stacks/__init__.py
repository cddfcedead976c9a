"""Reward stacks: named sets of rewards (params: `reward.stack`), one file each.

A file is imported when its stack is named, and is a dependency of the stages that use it. A new
stack is one file with its `REWARDS`, in the order of `reward.weights` in params.
"""
