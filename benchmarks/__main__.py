"""Runs every benchmark, or those named: `python -m benchmarks ledgers traces`."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import time

import benchmarks


def main() -> None:
    """Run each module's `main` and say how long it took."""
    known = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name[0] != "_")
    wanted = sys.argv[1:] or known
    for name in wanted:
        if name not in known:
            sys.exit(f"no benchmark {name}; there are {', '.join(known)}")
        started = time.monotonic()
        print(f"\n== {name}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()
        print(f"({time.monotonic() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
