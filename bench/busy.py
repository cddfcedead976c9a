"""Two training threads beside busy processes, with and without OMP_WAIT_POLICY=PASSIVE.

    python -m bench.busy

Writes bench/busy.json: steps per second of a matrix product of a step's size on two threads, for 0,
2 and 4 busy processes. The two policies alternate, so that a machine's other work meets both.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).with_suffix(".json")
BUSY, POLICIES, ROUNDS = (0, 2, 4), ("PASSIVE", "ACTIVE"), 5

STEP = """
import time, torch
torch.set_num_threads(2)
layers = [torch.nn.Linear(192, 192) for _ in range(8)]
x = torch.randn(512, 192)
def step():
    y = x
    for layer in layers:
        y = torch.relu(layer(y))
    y.square().mean().backward()
for _ in range(20):
    step()
start, n = time.monotonic(), 0
while time.monotonic() - start < 3:
    step(); n += 1
print(n / (time.monotonic() - start))
"""


def steps_per_second(policy: str) -> float:
    environment = {**os.environ, "OMP_WAIT_POLICY": policy, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", STEP], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    rows = []
    for busy in BUSY:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            runs = [
                {policy: steps_per_second(policy) for policy in POLICIES} for _ in range(ROUNDS)
            ]
        finally:
            for other in others:
                other.kill()
        ratios = sorted(run["PASSIVE"] / run["ACTIVE"] for run in runs)
        medians = {policy: statistics.median(run[policy] for run in runs) for policy in POLICIES}
        rows.append({"busy": busy, **medians, "ratio": statistics.median(ratios),
                     "ratio_low": ratios[0], "ratio_high": ratios[-1]})  # fmt: skip
        print(rows[-1])
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
