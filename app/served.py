"""The application for a process that does nothing but serve it: what `serve` starts.

Here stands what concerns the whole process, and what whoever merely imports the application would
not expect: how often Python looks for garbage.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI

# Objects made before a collection: a body of 50,000 counts is checked in the loop, and at the
# language's own 700 most of that time goes to collections that find nothing.
OBJECTS_BETWEEN_COLLECTIONS = 10_000


def served_app() -> FastAPI:
    """Return the application, made while the collector rests.

    What the imports make stays to the end: looking for garbage among it, again and again while it
    grows, would take a sixth of the start, and no later collection needs to look at it again.
    """
    gc.disable()
    try:
        from app.main import create_app  # noqa: PLC0415 - what it brings is what is rested for

        app = create_app()
    finally:
        gc.enable()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, 20, 20)
    gc.freeze()
    return app
