"""Start-up logs of engines: who wrote one, what its figures say, and whether they are right.

`explain` is the way in. Nothing of a log is kept or written anywhere.
"""

from __future__ import annotations

from app.engines.logs.explain import OpenedLog, explain, named_models, open_log
from app.engines.logs.result import Advice, Explained, LogFigure
from app.engines.logs.sentences import unknown_model
from app.engines.logs.vllm.advice import Wish

__all__ = [
    "Advice",
    "Explained",
    "LogFigure",
    "OpenedLog",
    "Wish",
    "explain",
    "named_models",
    "open_log",
    "unknown_model",
]
