"""What reading a pasted config costs: CPU of one read, over the configs of released checkpoints.

The budget is 1 ms for a typical config. Beside it stands what parsing the same config's JSON costs,
so that the ratio means something on another machine. Each figure is the best of several rounds.
"""

from __future__ import annotations

import gzip
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from app.domain.errors import DomainError
from app.readers.hf_config import read_config

ROUNDS = 5
TIMES = 20
BUDGET_MS = 1.0
DATA = Path(__file__).resolve().parents[1] / "tests" / "data" / "transformers_released.json.gz"


def cpu_ms(run: Callable[[], object]) -> float:
    """Return the CPU milliseconds of one of several calls, the best round of them."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time_ns()
        for _ in range(TIMES):
            run()
        best = min(best, (time.process_time_ns() - started) / TIMES / 1_000_000)
    return best


def main() -> None:
    """Print the median and the slowest read, and fail when the median is over the budget."""
    with gzip.open(DATA, "rt", encoding="utf-8") as file:
        cases = json.load(file)["cases"]
    configs = {case["id"]: case["config"] for case in cases}
    read: dict[str, float] = {}
    parse: list[float] = []
    for name, config in configs.items():
        try:
            read_config(config, encoder_tokens=1500)
        except DomainError as refused:
            print(f"{name}: {refused}")
            continue
        read[name] = cpu_ms(lambda config=config: read_config(config, encoder_tokens=1500))
        text = json.dumps(config)
        parse.append(cpu_ms(lambda text=text: json.loads(text)))
    typical = statistics.median(read.values())
    slowest = max(read, key=lambda name: read[name])
    print(f"{len(read)} configs, median {typical:.3f} ms a read (budget {BUDGET_MS} ms), "
          f"{typical / statistics.median(parse):.1f} x parsing its JSON")  # fmt: skip
    print(f"slowest {slowest}: {read[slowest]:.3f} ms")
    if typical > BUDGET_MS:
        sys.exit("reading a typical config is over its budget")


if __name__ == "__main__":
    main()
