"""Time one step with and without a cache on this machine: python benchmarks/attention.py [device].

For NumPy set OPENBLAS_NUM_THREADS=1, or its threads wait for each other on a busy machine.
"""

from __future__ import annotations

import sys

from app.demo.backends import choose_backend
from app.demo.budget import Budget
from app.demo.measure import measure_steps, measured_orders


def main() -> None:
    """Print each point as it comes, then the fitted orders: 1 is linear, 2 quadratic."""
    backend = choose_backend(sys.argv[1] if len(sys.argv) > 1 else None)
    points = []
    print(f"{backend.name} on {backend.device}")
    print(f"{'way':>10} {'tokens':>8} {'ms':>10} {'MAC':>14}")
    for point in measure_steps(backend, Budget(seconds=300)):
        points.append(point)
        milliseconds = 1000 * point.seconds
        print(f"{point.way:>10} {point.length_tokens:>8} {milliseconds:>10.3f} {point.macs:>14}")
    for way, order in measured_orders(points).items():
        print(f"{way}: time grows as length to the power of {order:.2f}")


if __name__ == "__main__":
    main()
