"""Plan and check a run before it starts: steps, memory, disk, inputs, machine.

Of DVC's stages only `check` imports this package.
"""
