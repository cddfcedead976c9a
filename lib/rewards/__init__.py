"""Verifiable rewards: functions of a completion, which is judged once for all of them.

`rollout` has the judged completion (`Rollout`). `stacks` has one file for each named set of rewards
(a stack). `functions` finds rewards by name and scores batches.
"""
