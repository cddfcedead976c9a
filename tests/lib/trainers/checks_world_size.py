"""What a stage does before it trains; started by launchers in tests."""

from lib.trainers.launch import check_world_size, world_size

check_world_size()
print("world size", world_size())
