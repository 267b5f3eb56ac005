"""The lab's process: jobs and their errors cross the pipe, runs can be ended, one at a time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from app.demo.budget import LabBusy, RunStopped
from app.demo.lab import AttentionAnswer, answer_attention
from app.demo.measure import MeasuredPoint
from app.demo.process import LabProcess
from app.domain.attention import AttentionInputs, attention_inputs
from app.domain.errors import Unknown

QUESTION: AttentionInputs = attention_inputs(
    query=[0], past_keys=[[0]], past_values=[[2]], new_key=[0], new_value=[4]
)


@pytest.fixture(scope="module")
def lab() -> Iterator[LabProcess]:
    """Return a process that lives as long as the tests."""
    process = LabProcess()
    yield process
    process.end()


def asked(lab: LabProcess, **changes: object) -> list[AttentionAnswer]:
    """Return all that the worked question is answered with."""
    arguments: dict[str, object] = {"inputs": QUESTION, "dtype": "fp32", "device": "numpy"}
    return list(lab.start("attention", **{**arguments, **changes}))  # type: ignore[arg-type]


def test_an_answer_comes_as_it_would_here(lab: LabProcess) -> None:
    """The process answers what the same call answers in this one, again and again."""
    expected = answer_attention(QUESTION, dtype="fp32", device="numpy")
    assert asked(lab) == [expected]
    assert asked(lab) == [expected]


def test_a_process_is_kept_for_the_next_job(lab: LabProcess) -> None:
    """A job that ended leaves its process to the next; a run that was closed does not."""
    asked(lab)
    first = lab._child
    asked(lab)
    assert lab._child is first
    lab.start("measured", device="numpy", seed=0).close()
    asked(lab)
    assert lab._child is not first


def test_a_refusal_keeps_its_field(lab: LabProcess) -> None:
    """What the domain refuses there is refused here: class, field and sentence."""
    with pytest.raises(Unknown) as caught:
        asked(lab, dtype="fp3")
    assert caught.value.field == ("dtype",)
    assert caught.value.params["value"] == "'fp3'"
    assert "fp3" in str(caught.value)


def test_a_defect_is_told_with_its_traceback(lab: LabProcess) -> None:
    """An error that nobody meant arrives as one, and the process goes on."""
    with pytest.raises(RuntimeError, match="KeyError"):
        list(lab.start("nothing"))
    assert len(asked(lab)) == 1


def test_one_at_a_time(lab: LabProcess) -> None:
    """While a run holds the process a second is told so at once; afterwards it may run."""
    with lab.start("measured", device="numpy", seed=0) as run:
        assert isinstance(next(run), MeasuredPoint)
        with pytest.raises(LabBusy, match="busy"):
            asked(lab)
    assert len(asked(lab)) == 1


def test_a_patient_caller_waits_its_turn() -> None:
    """With patience the second job waits for the first to end."""
    patient = LabProcess(patience_s=60)
    run = patient.start("attention", inputs=QUESTION, dtype="fp32", device="numpy")
    threading.Timer(0.1, lambda: list(run)).start()
    assert asked(patient)[0].output == ((3.0,),)
    patient.end()


def test_points_and_then_the_orders(lab: LabProcess) -> None:
    """A measured run gives its points one by one and ends with the fitted orders."""
    *points, orders = lab.start("measured", device="numpy", seed=0, seconds=120)
    assert [point.done for point in points] == list(range(1, points[0].total + 1))
    assert [order.way for order in orders] == ["cached", "uncached"]


def test_a_run_ends_itself_at_its_limit(lab: LabProcess) -> None:
    """Between its steps a run sees that its time is over; its process stays."""
    run = lab.start("measured", device="numpy", seed=0, seconds=0.01)
    with pytest.raises(RunStopped) as caught:
        list(run)
    assert caught.value.note.code == "over_time"
    assert lab._child is not None
    assert lab._child.process.is_alive()


def test_a_run_that_does_not_is_killed(lab: LabProcess) -> None:
    """A job that says nothing until the grace is over is ended with its process."""
    run = lab.start("measured", device="numpy", seed=0, seconds=60, grace_s=-60)
    with pytest.raises(RunStopped) as caught:
        list(run)
    assert caught.value.note.code == "over_time"
    assert not run._child.process.is_alive()
    assert list(run) == []


def test_closing_from_another_thread_cancels(lab: LabProcess) -> None:
    """Whoever waits for a result of a run that is closed learns that it was cancelled."""
    run = lab.start("measured", device="numpy", seed=0, seconds=60)
    pid = run._child.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # so that it cannot end before it is closed
    threading.Timer(0.05, run.close).start()
    with pytest.raises(RunStopped) as caught:
        list(run)
    assert caught.value.note.code == "cancelled"


def test_a_process_that_dies_says_so(lab: LabProcess) -> None:
    """A process that someone else ended leaves a sentence, and its place is free again."""
    run = lab.start("measured", device="numpy", seed=0, seconds=60)
    run._child.process.kill()
    with pytest.raises(RunStopped) as caught:
        list(run)
    assert caught.value.note.code == "lab_ended"
    assert len(asked(lab)) == 1


def test_ending_twice_is_harmless() -> None:
    """A process that was never started, or has ended, can be ended."""
    process = LabProcess()
    process.end()
    asked(process)
    process.end()
    process.end()
    assert process._child is None
