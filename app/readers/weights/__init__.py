"""Parameter counts, shapes and bytes of a model's weights from its config.json alone."""

from __future__ import annotations

from app.readers.weights.reader import read_weights

__all__ = ["read_weights"]
