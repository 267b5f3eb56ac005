"""The engine's own command line for chosen settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

# Values that the engine takes anyway and that need not be said.
_DEFAULTS = {
    "tensor-parallel-size": 1,
    "pipeline-parallel-size": 1,
    "decode-context-parallel-size": 1,
    "data-parallel-size": 1,
    "kv-cache-dtype": "auto",
}


def serve_command(model: str, flags: Mapping[str, object]) -> str:
    """Return `vllm serve …` with every flag that has a value other than the engine's own.

    A flag of True stands alone; None and False are left out.
    """
    words = ["vllm", "serve", shlex.quote(model)]
    for name, value in flags.items():
        if value is None or value is False or _DEFAULTS.get(name) == value:
            continue
        words.append(f"--{name}" if value is True else f"--{name} {shlex.quote(str(value))}")
    return " ".join(words)
