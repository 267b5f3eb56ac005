"""A served process lets its loop answer while a large question is computed."""

from __future__ import annotations

import gc
import sys

from app.served import OBJECTS_BETWEEN_COLLECTIONS, served_app
from app.web.install import SWITCH_SECONDS


def test_a_served_process_is_set_up_for_its_loop() -> None:
    """Threads give way after a millisecond, and a large body is no reason for many collections."""
    before = gc.get_threshold()
    try:
        served_app()
        assert sys.getswitchinterval() == SWITCH_SECONDS
        assert gc.get_threshold() == (OBJECTS_BETWEEN_COLLECTIONS, 20, 20)
        assert gc.get_freeze_count() > 1000
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
