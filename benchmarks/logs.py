"""How long a pasted log of five megabytes takes: noise, one engine's start, and the worst forms."""

from __future__ import annotations

import random
import time

FIVE_MEGABYTES = 5_000_000
NOISE = (
    "INFO 09-05 12:00:{second:02d} [loggers.py:123] Engine 000: Avg prompt throughput: 12.3"
    " tokens/s, Avg generation throughput: 45.6 tokens/s, Running: {running} reqs, Waiting: 0"
    " reqs, GPU KV cache usage: 0.5%, Prefix cache hit rate: 0.0%\n"
)
START = (
    "(APIServer pid=7) INFO 09-05 [utils.py:326] non-default args: {'model': 'Qwen/Qwen3-14B',"
    " 'max_model_len': 32768}\n"
    "\x1b[1;36m(EngineCore_DP0 pid=12)\x1b[0;0m INFO 09-05 12:00:00 [gpu_worker.py:298] Available"
    " KV cache memory: 6.51 GiB\n"
    "\x1b[1;36m(EngineCore_DP0 pid=12)\x1b[0;0m INFO 09-05 12:00:00 [kv_cache_utils.py:864] GPU KV"
    " cache size: 42,656 tokens\n"
    "\x1b[1;36m(EngineCore_DP0 pid=12)\x1b[0;0m INFO 09-05 12:00:00 [kv_cache_utils.py:868] Maximum"
    " concurrency for 32,768 tokens per request: 1.30x\n"
)


def noisy() -> str:
    """Return a server's log: hours of its running lines around one start."""
    draw = random.Random(1)
    line = NOISE.format(second=draw.randrange(60), running=draw.randrange(9))
    half = line * (FIVE_MEGABYTES // 2 // len(line))
    return half + START + half


def crowded() -> str:
    """Return nothing but lines of known forms."""
    return START * (FIVE_MEGABYTES // len(START))


def one_line() -> str:
    """Return a log without any line break, as it stands inside JSON."""
    return noisy().replace("\n", "\\n")


def garbage() -> str:
    """Return words of known lines with nothing that fits behind them."""
    return "kv cache size kv self size memory for KV 1,1,1,1 buffer size = " * (
        FIVE_MEGABYTES // 66
    )


def seconds(log: str) -> float:
    """Return the best of five readings, model and figures included."""
    from app.api.engines_schemas import ExplainRequest
    from app.api.explain import answer_explain

    best = 1e9
    for _ in range(5):
        started = time.perf_counter()
        answer_explain(ExplainRequest(log=log))
        best = min(best, time.perf_counter() - started)
    return best


def main() -> None:
    """Print each log's time."""
    for name, make in (
        ("running lines around one start", noisy),
        ("starts and nothing else", crowded),
        ("one line, breaks written out", one_line),
        ("words of known lines, nothing behind them", garbage),
    ):
        log = make()
        print(f"{name}: {seconds(log):.2f} s for {len(log) / 1e6:.1f} MB (aim ≤ 0.5)")


if __name__ == "__main__":
    main()
