"""Ollama: what its estimate leaves out, and sizes whose context the log does not say.

Llama 3.1 8B keeps 65,536 elements a token: 8,192 tokens are 1,024 MiB at 16 bits. The estimate
counts q8_0 as 512 MiB, which blocks of 34 bytes make 544, and q4_0 as 256, which blocks of 18 bytes
make 288.
"""

from __future__ import annotations

import pytest

from app.engines.model import EngineModel
from tests.engines.logs.asking import ask, figure_of, model_named, reasons, verdicts

LLAMA = "meta-llama/Llama-3.1-8B"
GEMMA = "google/gemma-3-27b-it"
# Gemma 3 27B: 62 layers of 16 heads, 128 wide; one byte an element of 20,000 tokens is
# 5,079,040,000 B, which Ollama 0.6.0 printed (tests/data/engine_logs.json, ol-9678).
UNSAID = 'layers.model=63 memory.required.kv="4.7 GiB"'


def _text(log: str, code: str, model: str | EngineModel | None = LLAMA, **settings: object) -> str:
    found = figure_of(ask(log, model, **settings), "estimated_cache")
    return next(note.text for note in found.reasons if note.code == code)


def _line(size: str, kind: str | None = None) -> str:
    said = "" if kind is None else f" --kv-cache-type {kind}"
    return f'msg=offload memory.required.kv="{size}" --ctx-size 8192 --parallel 1{said}'


def test_sixteen_bits_are_counted_as_they_are() -> None:
    """Nothing is said of larger caches where the format has no blocks."""
    text = _text(_line("1.0 GiB", "f16"), "ollama_estimate_exact")
    assert "f16 as it is kept" in text
    assert "%" not in text


@pytest.mark.parametrize(
    ("kind", "estimate", "percent", "real"),
    [("q8_0", "512.0 MiB", "6.25 %", "544.0 MiB"), ("q4_0", "256.0 MiB", "12.5 %", "288.0 MiB")],
)
def test_blocks_take_more_than_their_elements(
    kind: str, estimate: str, percent: str, real: str
) -> None:
    """34/32 over 1 is 6.25 % more, 18/32 over a half 12.5 %; the real size stands beside it."""
    text = _text(_line(estimate, kind), "ollama_estimate_real")
    assert percent in text
    assert real in text
    alone = _text(_line(estimate, kind), "ollama_estimate_low", None)
    assert percent in alone


def test_states_have_no_blocks() -> None:
    """Recurrent states are kept in 32 bits: only what the keys and values take grows."""
    found = ask(
        'memory.required.kv="405.6 MiB" --ctx-size 8192 --parallel 1 --kv-cache-type q8_0',
        "Qwen/Qwen3.5-27B",
    )
    item = figure_of(found, "estimated_cache")
    # 16 layers of 2,048 elements are 256 MiB and 149.625 of states; 272 + 149.625 really.
    assert (item.agrees, item.computed) == (True, "405.6 MiB = 425,328,640 B")
    assert any("421.6 MiB" in note.text for note in item.reasons)


def test_all_formats_where_none_is_known() -> None:
    """A line alone may be of any format, so each is told with what it leaves out."""
    text = _text('memory.required.kv="1.0 GiB"', "ollama_estimate", None)
    assert "6.25 or 12.5 %" in text


def test_a_context_that_is_not_said_is_not_made_up() -> None:
    """Nothing is computed, inferred or agreed; the contexts that print so are listed instead."""
    found = ask(UNSAID, GEMMA)
    item = figure_of(found, "estimated_cache")
    assert (item.computed, item.agrees, found.inferred, found.settings) == (None, None, {}, {})
    assert found.formulas == ()
    texts = {note.code: note.text for note in item.reasons}
    assert "q8_0 19,661–20,083" in texts["contexts_windows_full"]
    assert "f16 52,962–54,272" in texts["contexts_windows_short"]
    assert "inferred" not in texts


def test_contexts_of_a_format_that_is_said() -> None:
    """A known format has one span; 4.7 GiB of it are the 20,000 tokens of the report."""
    texts = {
        note.code: note.text
        for note in figure_of(
            ask(UNSAID + " --kv-cache-type q8_0", GEMMA), "estimated_cache"
        ).reasons
    }
    assert texts["contexts_windows_full"].endswith("q8_0 19,661–20,083 tokens")
    agreed = ask(UNSAID, GEMMA, num_ctx=20_000, kv_cache_type="q8_0")
    assert figure_of(agreed, "estimated_cache").computed == "4.7 GiB = 5,079,040,000 B"
    assert figure_of(agreed, "estimated_cache").agrees


def test_contexts_of_layers_that_are_alike() -> None:
    """Without windows there is one way to count: 1.3 GiB are 10,240 to 11,059 tokens of f16."""
    found = ask('memory.required.kv="1.3 GiB"', LLAMA)
    texts = {note.code: note.text for note in figure_of(found, "estimated_cache").reasons}
    assert "f16 10,240–11,059," in texts["contexts_print_so"]


def test_a_size_that_no_context_prints() -> None:
    """A size below one token's leaves no context to name."""
    found = ask('memory.required.kv="7 B"', LLAMA)
    assert reasons(found, "estimated_cache") == {"ollama_estimate", "context_unsaid"}


def test_a_model_of_many_layers_is_not_searched() -> None:
    """Halving plans hundreds of times; a model of 512 layers is only asked for more."""
    model = EngineModel(
        name="deep",
        gguf={
            "general.architecture": "llama", "llama.block_count": 512, "llama.context_length": 9,
            "llama.embedding_length": 64, "llama.attention.head_count": 1,
        },
    )  # fmt: skip
    found = ask('memory.required.kv="4.7 GiB"', model)
    assert "context_unsaid" in reasons(found, "estimated_cache")
    assert "contexts_print_so" not in reasons(found, "estimated_cache")


def test_other_settings_that_print_the_same() -> None:
    """16 bits at 4,096 tokens are q8_0 at 8,192 in the estimate: both are named."""
    found = ask('memory.required.kv="512.0 MiB" --parallel 1', LLAMA)
    item = figure_of(found, "estimated_cache")
    assert item.agrees
    assert found.inferred == {"num_ctx": 4_096, "kv_cache_type": "f16"}
    (text,) = (note.text for note in item.reasons if note.code == "alternatives")
    assert text == "the same figures come of kv_cache_type=q8_0, num_ctx=8192"


def test_shares_of_devices_add_up() -> None:
    """768 and 256 MiB on two devices are the 1,024 of 8,192 tokens; a third would be too much."""
    two = 'msg="kv cache" device=CUDA0 size="768.0 MiB"\nmsg="kv cache" device=CPU size="256.0 MiB"'
    found = ask(two, LLAMA, num_ctx=8_192)
    assert [item.agrees for item in found.figures] == [True, True]
    assert "device_share" in reasons(found, "device_cache")
    more = ask(two + '\nmsg="kv cache" device=CUDA1 size="256.0 MiB"', LLAMA, num_ctx=8_192)
    assert [item.agrees for item in more.figures] == [None, None, None]
    assert "several_loads" in reasons(more, "device_cache")


def test_lines_of_several_loads() -> None:
    """A size printed twice is one; two sizes of one line's kind are no whole."""
    line = _line("1.0 GiB")
    assert set(verdicts(ask(f"{line}\n{line} ", LLAMA)).values()) == {True}
    other = ask(f'{line}\nmemory.required.kv="2.0 GiB"', LLAMA)
    assert {item.agrees for item in other.figures} == {None}
    unsaid = ask('memory.required.kv="1.0 GiB"\nmemory.required.kv="2.0 GiB"', model_named(LLAMA))
    assert "several_loads" in reasons(unsaid, "estimated_cache")


def test_a_context_that_is_said_may_disagree() -> None:
    """10 % too much disagrees by that much, and the settings that were used are named."""
    item = figure_of(ask(_line("1.1 GiB"), LLAMA), "estimated_cache")
    assert (item.agrees, item.difference) == (False, "+102.4 MiB")
    assert item.reasons[-1].code == "ollama_differs"
    assert "num_ctx=8192" in item.reasons[-1].text
