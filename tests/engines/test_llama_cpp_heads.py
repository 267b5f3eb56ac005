"""Compressed attention before llama.cpp cached it as such, from a config instead of a header.

DeepSeek-V3 and R1 have 61 layers of 128 heads: keys 128 × 192 = 24,576 and values 128 × 128 =
16,384 wide. 8,192 cells of q8_0 keys and f16 values were printed as 12,444.00 and 15,616.00 MiB,
512 cells at 16 bits as 1,464.00 and 976.00 (tests/data/engine_logs.json, ik-033 and ik-105).
"""

from __future__ import annotations

import pytest

from app.domain.errors import Unsupported
from app.domain.state import FullAttention, LatentAttention, Layer, ModelState, SlidingWindow
from app.engines.llama_cpp import LlamaCppPlan, plan
from app.engines.logs import Explained
from app.engines.side_by_side import Question, side_by_side
from tests.engines.logs.asking import advice, ask, figure_of, model_named

R1 = "deepseek-ai/DeepSeek-R1"
MIB = 2**20
HEADS: dict[str, object] = {
    "num_attention_heads": 16, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
LATENT = LatentAttention(latent_dim=512, rope_dim=64)


def _planned(**settings: object) -> LlamaCppPlan:
    model = model_named(R1)
    return plan(None, model.state, model.config, settings)


@pytest.mark.parametrize(
    ("settings", "keys", "values"),
    [
        ({"version": "2025-01-20", "n_ctx": 8192, "cache_type_k": "q8_0"}, 12_444, 15_616),
        ({"version": "2025-01-20", "n_ctx": 512}, 1_464, 976),
        ({"version": "2026-10-01", "n_ctx": 512, "mla": 0}, 1_464, 976),
        ({"runner": "ik_llama.cpp", "n_ctx": 512, "mla": 0}, 1_464, 976),
    ],
)
def test_every_head_is_kept(settings: dict[str, object], keys: int, values: int) -> None:
    """Builds before April 2025, old files in later ones, and the fork with -mla 0 keep heads."""
    answer = _planned(**settings)
    assert [(cache.k_bytes, cache.v_bytes) for cache in answer.caches] == [
        (keys * MIB, values * MIB)
    ]
    assert "latents_as_heads" in {note.code for note in answer.assumptions}
    assert "wider_rows" in {part.code for part in answer.overheads}


@pytest.mark.parametrize(
    "settings",
    [
        {"version": "2025-05-08", "n_ctx": 512},
        {"version": "2026-10-01", "n_ctx": 512},
        {"runner": "ik_llama.cpp", "n_ctx": 512, "mla": 3},
    ],
)
def test_later_builds_keep_the_latent(settings: dict[str, object]) -> None:
    """Since 15 April 2025, and in the fork with -mla 3, a row of keys is 576 wide."""
    answer = _planned(**settings)
    assert answer.caches[0].k_bytes == 61 * 576 * 2 * 512
    assert "latents_as_heads" not in {note.code for note in answer.assumptions}


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"version": "2025-01-20"}, "version"),
        ({"version": "2026-10-01", "mla": 0}, "mla"),
        ({"runner": "ik_llama.cpp", "mla": 0}, "mla"),
    ],
)
def test_layers_alone_do_not_say_their_heads(settings: dict[str, object], field: str) -> None:
    """A latent without its heads is refused, in words that say what to add."""
    state = ModelState.of_layers([Layer(states=(LATENT,))])
    with pytest.raises(Unsupported, match=r"every head|caches heads") as caught:
        plan(None, state, None, {"n_ctx": 512, **settings})
    assert caught.value.field == (field,)


@pytest.mark.parametrize(
    "state",
    [
        FullAttention(kv_heads=8, k_dim=128, v_dim=128),
        SlidingWindow(kv_heads=8, k_dim=128, v_dim=128, window=64),
    ],
)
def test_other_layers_have_the_heads_that_they_list(state: FullAttention | SlidingWindow) -> None:
    """A config's heads change nothing where a layer keeps its own."""
    layers = ModelState.of_layers([Layer(states=(state,))])
    settings: dict[str, object] = {"n_ctx": 512, "version": "2025-01-20", "mla": 0}
    answer = plan(None, layers, HEADS, settings)
    assert answer.total_bytes == 8 * 256 * 2 * 512


def test_windows_over_latents_are_not_expanded() -> None:
    """No file of the early days held windowed latents: they are refused there."""
    windowed = LatentAttention(latent_dim=512, rope_dim=64, window=128)
    layers = ModelState.of_layers([Layer(states=(windowed,))])
    with pytest.raises(Unsupported):
        plan(None, layers, HEADS, {"n_ctx": 512, "version": "2025-01-20"})


def _log(lines: str) -> Explained:
    return ask(lines, R1)


OLD = (
    "llama_new_context_with_model: KV self size = 28060.00 MiB, K (q8_0): 12444.00 MiB,"
    " V (f16): 15616.00 MiB"
)
OLD_16 = "KV self size = 2440.00 MiB, K (f16): 1464.00 MiB, V (f16): 976.00 MiB"
LATER = (
    "llama_kv_cache: size = 2440.00 MiB (   512 cells,  61 layers,  1/1 seqs), "
    "K (f16): 1464.00 MiB, V (f16):  976.00 MiB"
)


@pytest.mark.parametrize(("line", "cells"), [(OLD, 8_192), (OLD_16, 512), (LATER, 512)])
def test_logs_of_a_catalogue_model_kept_by_heads(line: str, cells: int) -> None:
    """A model known by its name alone agrees with lines of the early days and of old files."""
    found = _log(line)
    assert found.figures[0].agrees
    assert found.settings["n_ctx"] == cells
    assert found.missing == ()
    assert "latents_as_heads" in {note.code for note in found.assumptions}


def test_a_newer_build_is_advised() -> None:
    """61 layers of 576 elements are 34.31 MiB for 512 cells at 16 bits, instead of 2,440."""
    found = _log(OLD_16)
    assert "34.31 MiB instead of 2,440.00 MiB" in advice(found)["newer_build"]
    assert figure_of(found, "kv_self_size").computed == "2440.00 MiB"


def test_heads_beside_other_engines() -> None:
    """The row of an early build is of every head too: 61 × 40,960 × 2 B for each of 256 cells."""
    question = Question(
        model=model_named(R1), available_bytes=2**40, context_tokens=256, lengths=(256,)
    )
    found = side_by_side(question, {"llama_cpp": {"version": "2025-01-20"}})
    row = next(row for row in found.rows if row.engine == "llama_cpp")
    assert row.refusal is None
    assert row.request_bytes == 61 * 40_960 * 2 * 256
