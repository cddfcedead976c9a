"""Two training threads beside busy processes: how OpenMP's waiting threads wait.

    python -m bench.busy

Writes bench/busy.json: steps per second of a matrix product of a step's size on two threads, for 0,
2 and 4 busy processes, and the ratio to the default policy. The policies alternate, so that a
machine's other work meets all.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).with_suffix(".json")
BUSY, ROUNDS = (0, 2, 4), 5
POLICIES = {
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "short spin": {"GOMP_SPINCOUNT": "3000"},
    "default": {},
}

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
    environment = {**os.environ, "OMP_NUM_THREADS": "2", **POLICIES[policy]}
    done = subprocess.run(
        [sys.executable, "-c", STEP], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    rows = []
    for busy in BUSY:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            runs = [{each: steps_per_second(each) for each in POLICIES} for _ in range(ROUNDS)]
        finally:
            for other in others:
                other.kill()
        row: dict[str, object] = {"busy": busy}
        for policy in POLICIES:
            ratios = sorted(run[policy] / run["default"] for run in runs)
            row[policy] = {
                "steps_per_s": round(statistics.median(run[policy] for run in runs), 1),
                "ratio": round(statistics.median(ratios), 2),
                "ratio_range": [round(ratios[0], 2), round(ratios[-1], 2)],
            }
        rows.append(row)
        print(rows[-1])
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
