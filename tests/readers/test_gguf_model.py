"""GGUF headers as llama.cpp loads them, and what the models in them need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import (
    Conflict,
    DomainError,
    Missing,
    OutOfRange,
    Unsupported,
    WrongType,
)
from app.domain.state import (
    ChunkedAttention,
    FullAttention,
    LatentAttention,
    Layer,
    Recurrent,
    Shared,
    SlidingWindow,
)
from app.readers.gguf_families import FAMILIES, Memory
from app.readers.gguf_geometry import read_geometry
from app.readers.gguf_model import read_gguf_model

HEADERS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "engine_gguf_metadata.json").read_text()
)
LLAMA = HEADERS["llama-3.1-8B geometry"]


def header(architecture: str, **keys: object) -> dict[str, object]:
    """Return a small header; `__` in a name stands for the dot of a GGUF key."""
    base: dict[str, object] = {
        "block_count": 8,
        "context_length": 4096,
        "embedding_length": 512,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
    }
    base |= {name.replace("__", "."): value for name, value in keys.items()}
    own = {f"{architecture}.{name}": value for name, value in base.items() if value is not None}
    return {"general.architecture": architecture, **own}


def layers_of(values: Mapping[str, object]) -> list[Layer]:
    """Return the layers that the reader sees."""
    return list(read_gguf_model(values).state.layers)


def test_every_measured_header_is_read() -> None:
    """A header of each measured architecture gives as many layers as its trunk has."""
    assert len(HEADERS) >= 40
    for name, values in HEADERS.items():
        arch = values["general.architecture"]
        drafts = values.get(f"{arch}.nextn_predict_layers", 0)
        reading = read_gguf_model(values)
        assert reading.state.num_layers == values[f"{arch}.block_count"] - drafts, name
        assert len(reading.draft_layers) == drafts, name
        assert reading.max_context_tokens == 131072, name


def test_a_plain_model_is_full_attention_in_every_layer() -> None:
    """Llama-3.1-8B's header is 32 layers of 8 heads, 128 wide, and assumes nothing."""
    reading = read_gguf_model(LLAMA)
    assert reading.family == "llama"
    assert reading.assumptions == ()
    assert [(run.count, run.layer) for run in reading.state.runs] == [
        (32, Layer(states=(FullAttention(kv_heads=8, k_dim=128, v_dim=128),)))
    ]


def test_the_name_is_taken_when_it_is_text() -> None:
    """general.name names the model; anything else there is passed over."""
    assert read_gguf_model(LLAMA | {"general.name": "Llama 3.1"}).name == "Llama 3.1"
    assert read_gguf_model(LLAMA | {"general.name": 3}).name == ""


@pytest.mark.parametrize(
    ("architecture", "keys", "slides", "window"),
    [
        ("gemma2", {}, [1, 0, 1, 0, 1, 0, 1, 0], 4096),
        ("gemma2", {"attention__sliding_window": 100}, [1, 0, 1, 0, 1, 0, 1, 0], 100),
        ("gemma3", {"attention__sliding_window": 512}, [1, 1, 1, 1, 1, 0, 1, 1], 512),
        ("gemma3", {}, [0] * 8, 0),
        ("gpt-oss", {"attention__sliding_window": 128}, [1, 0, 1, 0, 1, 0, 1, 0], 128),
        ("cohere2", {"attention__sliding_window": 64}, [1, 1, 1, 0, 1, 1, 1, 0], 64),
        ("laguna", {"attention__sliding_window": 64}, [0, 1, 1, 1, 0, 1, 1, 1], 64),
        ("smallthinker", {"attention__sliding_window": 3}, [0, 1, 1, 1, 0, 1, 1, 1], 4096),
        ("smallthinker", {"attention__sliding_window": 0}, [0] * 8, 0),
        ("cohere2moe", {"attention__sliding_window": 9}, [0, 1, 1, 1, 0, 1, 1, 1], 9),
        ("plamo3", {"attention__sliding_window": 9}, [1, 1, 1, 1, 1, 1, 1, 0], 9),
        ("exaone4", {"attention__sliding_window": 9}, [0] * 8, 0),
        ("exaone-moe", {}, [1, 1, 1, 0, 1, 1, 1, 0], 128),
        ("llama4", {}, [1, 1, 1, 0, 1, 1, 1, 0], 8192),
        ("llama4", {"attention__sliding_window": 0}, [0] * 8, 0),
        ("phi3", {"attention__sliding_window": 2047}, [0] * 8, 0),
        (
            "gemma3",
            {"attention__sliding_window": 7, "attention__sliding_window_pattern": 2},
            [1, 0, 1, 0, 1, 0, 1, 0],
            7,
        ),
        (
            "gemma3",
            {"attention__sliding_window": 7, "attention__sliding_window_pattern": 1},
            [0] * 8,
            7,
        ),
        (
            "laguna",
            {"attention__sliding_window": 7, "attention__sliding_window_pattern": 0},
            [1] * 8,
            7,
        ),
        (
            "mimo2",
            {
                "attention__sliding_window": 7,
                "attention__sliding_window_pattern": [True, False] * 4,
            },
            [1, 0, 1, 0, 1, 0, 1, 0],
            7,
        ),
        (
            "step35",
            {
                "attention__sliding_window": 7,
                "attention__sliding_window_pattern": [1, 0, 1, 0, 1, 0],
                "nextn_predict_layers": 2,
            },
            [1, 0, 1, 0, 1, 0, 0, 0],
            7,
        ),
    ],
)
def test_which_layers_slide(
    architecture: str, keys: dict[str, object], slides: list[int], window: int
) -> None:
    """The header's list or period decides; else the architecture's own period and window."""
    geometry = read_geometry(header(architecture, **keys))
    assert [int(x) for x in geometry.windowed] == slides
    assert geometry.window == window


def test_exaone4_slides_only_in_its_64_layer_size() -> None:
    """EXAONE-4 has windows in the model of 64 layers and none in the small one."""
    geometry = read_geometry(header("exaone4", block_count=64))
    assert geometry.window == 4096
    assert sum(geometry.windowed) == 48


def test_windowed_layers_may_have_widths_of_their_own() -> None:
    """Gemma 4's windowed layers are 256 wide, its full ones 512, and 18 layers own no cache."""
    layers = layers_of(HEADERS["gemma-4-E4B geometry"])
    assert layers[0].states == (SlidingWindow(kv_heads=2, k_dim=256, v_dim=256, window=512),)
    assert layers[5].states == (FullAttention(kv_heads=2, k_dim=512, v_dim=512),)
    assert layers[24].states == (Shared(with_layer=22),)
    assert layers[29].states == (Shared(with_layer=23),)
    assert sum(isinstance(layer.states[0], Shared) for layer in layers) == 18


def test_gemma3n_shares_from_layer_20() -> None:
    """Gemma 3n's layers from 20 on read layer 18 (windowed) or 19 (full)."""
    layers = layers_of(HEADERS["gemma-3n-E4B geometry"])
    assert {layer.states for layer in layers[20:]} == {
        (Shared(with_layer=18),),
        (Shared(with_layer=19),),
    }
    assert not any(isinstance(layer.states[0], Shared) for layer in layers[:20])


def test_llama4_keeps_chunks() -> None:
    """Three of four layers of Llama 4 attend within chunks of 8,192."""
    layers = layers_of(HEADERS["Llama-4-Scout geometry (chunked iSWA)"])
    chunk = ChunkedAttention(kv_heads=8, k_dim=128, v_dim=128, chunk=8192)
    assert [layer.states == (chunk,) for layer in layers[:4]] == [True, True, True, False]


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("DeepSeek-V3 geometry (deepseek2, MLA)", LatentAttention(latent_dim=512, rope_dim=64)),
        ("ds2old.gguf", LatentAttention(latent_dim=512, rope_dim=64)),
        (
            "DeepSeek-V3.2 geometry (deepseek32, DSA)",
            LatentAttention(latent_dim=512, rope_dim=64, index_dim=128),
        ),
    ],
)
def test_a_latent_model_needs_its_vector(name: str, state: LatentAttention) -> None:
    """576 elements a layer and token, from a file with compressed keys or from an older one."""
    assert set(layers_of(HEADERS[name])) == {Layer(states=(state,))}


def test_an_old_latent_file_is_noted() -> None:
    """A file without the compressed keys makes llama.cpp cache every head, which is said."""
    notes = read_gguf_model(HEADERS["ds2old.gguf"]).notes
    assert [note.code for note in notes] == ["latent_cached_by_heads"]
    assert "deepseek2.attention.key_length_mla" in notes[0].text


def test_only_some_layers_own_an_indexer() -> None:
    """GLM-5.2 lists 21 layers that keep index keys; without a list every layer is taken to."""
    values = HEADERS["GLM-5.2 geometry (glm-dsa, shared indexers: 21 full)"]
    states = [layer.states[0] for layer in layers_of(values)]
    assert sum(getattr(state, "index_dim", 0) > 0 for state in states) == 21
    without = {k: v for k, v in values.items() if not k.endswith("indexer.types")}
    reading = read_gguf_model(without)
    assert [note.code for note in reading.assumptions] == ["indexer_everywhere"]
    assert all(getattr(layer.states[0], "index_dim", 0) == 128 for layer in reading.state.layers)


def test_a_latent_model_without_indexer_keys_has_none() -> None:
    """A file of a sparse architecture that names no indexer is plain latent attention."""
    values = {
        k: v
        for k, v in HEADERS["DeepSeek-V3.2 geometry (deepseek32, DSA)"].items()
        if "indexer" not in k
    }
    assert set(layers_of(values)) == {Layer(states=(LatentAttention(latent_dim=512, rope_dim=64),))}


def test_minimax_m3_keeps_index_keys_after_its_dense_layers() -> None:
    """The first three layers of MiniMax-M3 have no indexer, the other 57 have one."""
    states = [layer.states[0] for layer in layers_of(HEADERS["MiniMax-M3 geometry (MSA)"])]
    assert [getattr(state, "index_dim", None) for state in states] == [0] * 3 + [128] * 57


def test_deepseek_v4_keeps_windows_entries_and_open_groups() -> None:
    """A layer of ratio 4 keeps a window, an entry for 4 tokens with its index key, a compressor."""
    layers = layers_of(HEADERS["DeepSeek-V4-Flash geometry (deepseek4)"])
    raw = LatentAttention(latent_dim=448, rope_dim=64, window=128)
    assert layers[0].states == (raw,)
    window, entries, compressor = layers[2].states
    assert window == raw
    assert entries == LatentAttention(
        latent_dim=448, rope_dim=64, index_dim=128, tokens_per_entry=4
    )
    assert isinstance(compressor, Recurrent)
    assert compressor.fixed_bytes() == 4 * (2 * 8 * 1024 + 2 * 8 * 256)
    _, entries, compressor = layers[3].states
    assert entries == LatentAttention(latent_dim=448, rope_dim=64, tokens_per_entry=128)
    assert compressor.fixed_bytes() == 4 * 2 * 128 * 512


@pytest.mark.parametrize(
    ("name", "recurrent", "attention", "state_bytes"),
    [
        ("Qwen3.5/3.8-27B geometry (qwen35)", 48, 16, 4 * (3 * 10240 + 786432)),
        ("Qwen3-Next-80B geometry", 36, 12, 4 * (3 * 8192 + 524288)),
        ("Falcon-H1-7B geometry", 44, 44, 4 * (3 * 3584 + 786432)),
        ("Granite-4.0-h-small geometry", 36, 4, 4 * (3 * 8448 + 1048576)),
        ("LFM2-1.2B geometry", 10, 6, 4 * 4096),
        ("mamba-2.8b geometry (8 of 64 layers)", 8, 0, 4 * (3 * 5120 + 81920)),
        ("RWKV7-2.9B geometry (6 of 32 layers)", 6, 0, 4 * (5120 + 163840)),
        ("Kimi-Linear-48B geometry", 20, 7, 4 * (3 * 3 * 4096 + 524288)),
    ],
)
def test_recurrent_layers_and_their_state(
    name: str, recurrent: int, attention: int, state_bytes: int
) -> None:
    """Which layers keep a state, which keep positions, and the fp32 bytes of one state."""
    layers = layers_of(HEADERS[name])
    states = [s for layer in layers for s in layer.states if isinstance(s, Recurrent)]
    assert len(states) == recurrent
    assert sum(any(not isinstance(s, Recurrent) for s in la.states) for la in layers) == attention
    assert {state.fixed_bytes() for state in states} == {state_bytes}


def test_nemotron_h_needs_its_feed_forward_widths() -> None:
    """A layer with neither KV heads nor feed-forward is a state-space layer; one with both none."""
    values = header(
        "nemotron_h",
        block_count=4,
        attention__head_count_kv=[0, 2, 0, 0],
        feed_forward_length=[0, 0, 64, 0],
        ssm__conv_kernel=4,
        ssm__inner_size=64,
        ssm__state_size=16,
        ssm__group_count=2,
    )
    kinds = [[state.kind for state in layer.states] for layer in layers_of(values)]
    assert kinds == [["recurrent"], ["full_attention"], [], ["recurrent"]]


def test_recurrent_layers_may_be_listed() -> None:
    """attention.recurrent_layers goes before full_attention_interval."""
    values = header(
        "qwen35",
        block_count=4,
        attention__recurrent_layers=[0, 1, 1, 0],
        full_attention_interval=4,
        ssm__conv_kernel=4,
        ssm__inner_size=64,
        ssm__state_size=16,
    )
    kinds = [layer.states[0].kind for layer in layers_of(values)]
    assert kinds == ["full_attention", "recurrent", "recurrent", "full_attention"]


def test_a_state_of_no_size_is_no_state() -> None:
    """A state-space layer without convolution and state keeps nothing."""
    values = header(
        "mamba", attention__head_count=0, attention__head_count_kv=0, ssm__conv_kernel=0,
        ssm__inner_size=64, ssm__state_size=0,
    )  # fmt: skip
    assert {layer.states for layer in layers_of(values)} == {()}


def test_layers_without_kv_heads_keep_nothing() -> None:
    """Pruned layers of a deci file own no heads."""
    layers = layers_of(HEADERS["Nemotron-Super-49B style geometry (deci, zero-kv layers)"])
    assert sum(layer.states == () for layer in layers) == 8


def test_an_encoder_keeps_nothing() -> None:
    """A BERT reads its input at once: no layer keeps a state, and that is said."""
    reading = read_gguf_model(header("bert"))
    assert {layer.states for layer in reading.state.layers} == {()}
    assert [note.code for note in reading.notes] == ["no_cache"]


def test_widths_default_to_the_embedding() -> None:
    """Without key_length heads are embedding_length / head_count wide, and that is assumed."""
    reading = read_gguf_model(header("qwen2"))
    assert layers_of(header("qwen2"))[0].states == (FullAttention(kv_heads=2, k_dim=64, v_dim=64),)
    assert [note.code for note in reading.assumptions] == ["head_width_from_embedding"]
    assert "64" in reading.assumptions[0].text


def test_kv_heads_default_to_heads() -> None:
    """A file without head_count_kv has as many KV heads as heads."""
    values = header("llama", attention__head_count_kv=None)
    assert layers_of(values)[0].states == (FullAttention(kv_heads=8, k_dim=64, v_dim=64),)


def test_drafting_layers_stand_apart() -> None:
    """The last nextn layers are counted apart: GLM-4.5-Air has 46 layers and one that drafts."""
    reading = read_gguf_model(HEADERS["GLM-4.5-Air geometry (glm4moe, 46+1 layers)"])
    assert reading.state.num_layers == 46
    assert reading.draft_layers == (
        Layer(states=(FullAttention(kv_heads=8, k_dim=128, v_dim=128),)),
    )


def test_rwkv_shifts_as_many_tokens_as_the_header_says() -> None:
    """token_shift_count is how many columns a layer keeps; without it llama.cpp takes two."""
    one = header("arwkv7", wkv__head_size=64, token_shift_count=1)
    assert read_geometry(one).state_row_r == 512
    assert read_geometry(header("arwkv7", wkv__head_size=64)).state_row_r == 1024


def test_rows_are_heads_times_width() -> None:
    """A position's rows in a layer are as many elements as its KV heads are wide together."""
    geometry = read_geometry(HEADERS["MiMo-V2-Flash geometry"])
    assert [geometry.key_row(layer) for layer in (0, 1)] == [4 * 192, 8 * 192]
    assert [geometry.value_row(layer) for layer in (0, 1)] == [4 * 128, 8 * 128]


SSM = {"ssm__conv_kernel": 4, "ssm__inner_size": 64, "ssm__state_size": 16}


@pytest.mark.parametrize(
    ("values", "error", "key"),
    [
        ({}, Missing, "general.architecture"),
        ({"general.architecture": 3}, WrongType, "general.architecture"),
        ({"general.architecture": "made_up"}, Unsupported, "general.architecture"),
        ({"general.architecture": "qwen4exp"}, Unsupported, "general.architecture"),
        ({"general.architecture": "clip"}, Unsupported, "general.architecture"),
        (header("llama", block_count=None), Missing, "llama.block_count"),
        (header("llama", block_count=0), OutOfRange, "llama.block_count"),
        (header("llama", block_count=513), OutOfRange, "llama.block_count"),
        (header("llama", block_count="8"), WrongType, "llama.block_count"),
        (header("llama", block_count=True), WrongType, "llama.block_count"),
        (header("llama", block_count=10**400), OutOfRange, "llama.block_count"),
        (header("llama", nextn_predict_layers=8), Conflict, "llama.nextn_predict_layers"),
        (header("llama", attention__head_count=None), Missing, "llama.attention.head_count"),
        (header("llama", embedding_length=None), Missing, "llama.embedding_length"),
        (
            header("llama", attention__head_count_kv=[1, 2]),
            OutOfRange,
            "llama.attention.head_count_kv",
        ),
        (
            header("llama", attention__head_count_kv=[1, 2, 3, 4, 5, 6, 7, "8"]),
            WrongType,
            "llama.attention.head_count_kv.7",
        ),
        (header("llama", attention__head_count_kv="8"), WrongType, "llama.attention.head_count_kv"),
        (header("gpt-oss"), Missing, "gpt-oss.attention.sliding_window"),
        (
            header("mimo2", attention__sliding_window=9),
            Missing,
            "mimo2.attention.sliding_window_pattern",
        ),
        (
            header("gemma4", attention__sliding_window=9,
                   attention__sliding_window_pattern=[1, 0] * 4,
                   attention__shared_kv_layers=7),
            OutOfRange,
            "gemma4.attention.shared_kv_layers",
        ),
        (header("mamba", ssm__conv_kernel=4, ssm__inner_size=64), Missing, "mamba.ssm.state_size"),
        (header("rwkv7"), Missing, "rwkv7.wkv.head_size"),
        (header("lfm2"), Missing, "lfm2.shortconv.l_cache"),
        (header("lfm2", shortconv__l_cache=0), OutOfRange, "lfm2.shortconv.l_cache"),
        (header("kimi-linear", ssm__conv_kernel=4), Missing, "kimi-linear.kda.head_dim"),
        (
            header("qwen35", full_attention_interval=0, **SSM),
            OutOfRange,
            "qwen35.full_attention_interval",
        ),
        (header("minimax-m3"), Missing, "minimax-m3.attention.indexer.key_length"),
        (
            header("deepseek4", attention__sliding_window=9, attention__indexer__key_length=128),
            WrongType,
            "deepseek4.attention.compress_ratios",
        ),
    ],
)  # fmt: skip
def test_refusals_name_the_key(
    values: dict[str, object], error: type[DomainError], key: str
) -> None:
    """A missing, mistyped or impossible key is refused by its full name."""
    with pytest.raises(error) as caught:
        read_gguf_model(values)
    assert ".".join(map(str, caught.value.field)) == key
    assert str(caught.value)


def test_a_window_cannot_share_with_a_layer_that_is_not_there() -> None:
    """A windowed layer reads the last owner but one: with a single owner there is none."""
    geometry = read_geometry(
        header("gemma4", block_count=3, attention__shared_kv_layers=1,
               attention__sliding_window=9, attention__sliding_window_pattern=[1, 1, 1])
    )  # fmt: skip
    assert geometry.owned == (True, True, False)
    with pytest.raises(OutOfRange):
        read_geometry(
            header("gemma4", block_count=2, attention__shared_kv_layers=1,
                   attention__sliding_window=9, attention__sliding_window_pattern=[1, 1])
        )  # fmt: skip


def test_every_family_has_a_memory_that_fits_its_rules() -> None:
    """A family with recurrent layers has a state rule, and only such a family."""
    for name, family in FAMILIES.items():
        recurrent = family.memory in {Memory.RECURRENT, Memory.HYBRID}
        assert recurrent == (family.state is not None), name


@given(
    layers=st.integers(1, 64),
    heads=st.integers(1, 64),
    kv_heads=st.integers(1, 64),
    key=st.integers(1, 512),
    value=st.integers(1, 512),
)
def test_a_plain_header_gives_its_own_numbers(
    layers: int, heads: int, kv_heads: int, key: int, value: int
) -> None:
    """Whatever the numbers, a plain model keeps kv_heads × (key + value) in each layer."""
    reading = read_gguf_model(
        header("qwen3", block_count=layers, attention__head_count=heads,
               attention__head_count_kv=kv_heads, attention__key_length=key,
               attention__value_length=value)
    )  # fmt: skip
    assert [(run.count, run.layer.states) for run in reading.state.runs] == [
        (layers, (FullAttention(kv_heads=kv_heads, k_dim=key, v_dim=value),))
    ]


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.lists(st.integers(-1, 9), max_size=80), st.just([True] * 61), st.just([[1]]),
    st.just({"a": 1}),
)  # fmt: skip


@given(name=st.sampled_from(sorted(HEADERS)), data=st.data())
def test_a_mutated_header_is_read_or_refused(name: str, data: st.DataObject) -> None:
    """Any key may be missing or hold anything: the header is read, or refused by a key's name."""
    values = dict(HEADERS[name])
    for key in data.draw(st.lists(st.sampled_from(sorted(values)), max_size=4)):
        values[key] = data.draw(JUNK)
    refusal: DomainError | None = None
    layers = 0
    try:
        layers = read_gguf_model(values).state.num_layers
    except DomainError as error:
        refusal = error
    assert layers >= 1 if refusal is None else bool(refusal.field and str(refusal))
