"""Files that say what a model is, alone and together."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import Conflict, DomainError, Malformed, OutOfRange
from app.readers.headers import HeaderTruncated
from app.readers.model_files import (
    FileWeights,
    ModelFiles,
    TypeTotal,
    read_model_files,
)

CONFIG = {
    "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100,
}  # fmt: skip
CONFIG_BYTES = json.dumps(CONFIG).encode()


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _number(key: str, value: int) -> bytes:
    return _string(key) + struct.pack("<II", 4, value)


def gguf_bytes(*, vocabulary: int = 3, split: tuple[int, int] | None = None) -> bytes:
    """Return a GGUF header of a llama of two layers with one tensor of 64 Q8_0 elements."""
    keys = []
    if split is None or split[0] == 0:
        keys = [
            _string("general.architecture") + struct.pack("<I", 8) + _string("llama"),
            _number("llama.block_count", 2),
            _number("llama.embedding_length", 64),
            _number("llama.attention.head_count", 8),
            _number("llama.attention.head_count_kv", 4),
            _string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, vocabulary)
            + b"".join(_string("t") for _ in range(vocabulary)),
        ]  # fmt: skip
    if split is not None:
        keys += [_number("split.no", split[0]), _number("split.count", split[1])]
    tensor = _string(f"t{split[0] if split else 0}") + struct.pack("<IQIQ", 1, 64, 8, 0)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys)) + b"".join(keys) + tensor


def safetensors_bytes(
    dtype: str = "BF16", elements: int = 6, size: int = 12, *, name: str = "w"
) -> bytes:
    """Return a safetensors header of one tensor."""
    header = {name: {"dtype": dtype, "shape": [elements], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


def index_bytes(*shards: str, total: int | None = 36) -> bytes:
    """Return an index of a tensor a shard."""
    return json.dumps(
        {"metadata": {"total_size": total}, "weight_map": {f"w{s}": s for s in shards}}
    ).encode()


def read(*files: bytes, **more: Any) -> ModelFiles:
    """Return what these files say."""
    return read_model_files([(f"file{i}", data) for i, data in enumerate(files)], **more)


def test_a_config() -> None:
    """A config says what layers keep, and holds no weights."""
    found = read(CONFIG_BYTES)
    assert found.reading is not None
    assert found.reading.state.num_layers == 2
    assert found.config == CONFIG
    assert found.weights is None
    assert found.files[0].format == "config"
    assert found.files[0].says == CONFIG
    assert found.files[0].given_bytes == len(CONFIG_BYTES)


@pytest.mark.parametrize("lead", [b"\xef\xbb\xbf", b"\n  ", b"\xef\xbb\xbf\r\n"])
def test_a_config_may_begin_with_a_mark_or_space(lead: bytes) -> None:
    """Editors put a byte order mark or blank lines before the brace."""
    assert read(lead + CONFIG_BYTES).config == CONFIG


def test_a_gguf() -> None:
    """A GGUF says both: 64 elements of Q8_0 are 68 bytes; the vocabulary is only counted."""
    data = gguf_bytes(vocabulary=70)
    found = read(data)
    assert found.reading is not None
    assert found.reading.family == "llama"
    assert found.weights == FileWeights(
        basis="header",
        files=1,
        tensors=1,
        by_type=(TypeTotal(type="Q8_0", tensors=1, parameters=64, size_bytes=68),),
        size_bytes=68,
        parameters=64,
        file_bytes=-(-len(data) // 32) * 32 + 68,
    )
    assert found.files[0].omitted["tokenizer.ggml.tokens"].length == 70


def test_a_gguf_as_json() -> None:
    """Its key-values as JSON, as the API takes them, are told from a config."""
    keys = {"general.architecture": "llama", "llama.block_count": 2,
            "llama.embedding_length": 64, "llama.attention.head_count": 8}  # fmt: skip
    found = read(json.dumps(keys).encode())
    assert found.files[0].format == "gguf"
    assert found.reading is not None
    assert found.config is None


def test_a_split_gguf() -> None:
    """The first part alone says what layers keep; all parts together have all weights."""
    first, second = gguf_bytes(split=(0, 2)), gguf_bytes(split=(1, 2))
    alone = read(first)
    assert [note.code for note in alone.notes] == ["parts_missing"]
    both = read(second, first)
    assert both.notes == ()
    assert both.reading is not None
    assert both.weights is not None
    assert (both.weights.files, both.weights.parameters, both.weights.size_bytes) == (2, 128, 136)


def test_a_later_part_alone_says_nothing_of_layers() -> None:
    """The second part of a split holds tensors and no geometry."""
    assert read(gguf_bytes(split=(1, 2))).reading is None


def test_safetensors_headers_add_up() -> None:
    """Shards are summed by dtype, in order of first appearance."""
    found = read(
        safetensors_bytes(),
        safetensors_bytes("F32", 2, 8, name="x"),
        safetensors_bytes(name="y"),
    )
    assert found.reading is None
    assert found.weights is not None
    assert found.weights.by_type == (
        TypeTotal(type="BF16", tensors=2, parameters=12, size_bytes=24),
        TypeTotal(type="F32", tensors=1, parameters=2, size_bytes=8),
    )
    assert (found.weights.size_bytes, found.weights.parameters) == (32, 14)


def test_a_config_with_its_header() -> None:
    """Both together say what layers keep and what the weights take."""
    found = read(CONFIG_BYTES, safetensors_bytes())
    assert found.reading is not None
    assert found.weights is not None
    assert found.weights.size_bytes == 12


def test_an_index_alone_declares() -> None:
    """Its total is the writer's word; there is nothing by type."""
    found = read(index_bytes("a", "b"))
    assert found.weights == FileWeights(
        basis="index", files=2, tensors=2, size_bytes=36, parameters=None
    )
    assert found.files[0].says["tensors_by_shard"] == {"a": 1, "b": 1}
    assert found.notes == ()


def test_an_index_with_some_headers() -> None:
    """With headers missing the index's total stands, and a note says so; with all, the sum."""
    partly = read(index_bytes("a", "b"), safetensors_bytes())
    assert partly.weights is not None
    assert partly.weights.basis == "index"
    assert [note.code for note in partly.notes] == ["total_declared"]
    whole = read(index_bytes("a"), safetensors_bytes())
    assert whole.weights is not None
    assert (whole.weights.basis, whole.weights.size_bytes) == ("header", 12)


def test_a_gguf_without_tensors() -> None:
    """A header of keys alone has no weights."""
    keys = b"".join([
        _string("general.architecture") + struct.pack("<I", 8) + _string("llama"),
        _number("llama.block_count", 2),
        _number("llama.embedding_length", 64),
        _number("llama.attention.head_count", 8),
    ])  # fmt: skip
    assert read(b"GGUF" + struct.pack("<IQQ", 3, 0, 4) + keys).weights is None


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ([], OutOfRange),
        ([CONFIG_BYTES] * 65, OutOfRange),
        ([b""], Malformed),
        ([b"\x00" * 20], Malformed),
        ([b"PK\x03\x04 a zip"], Malformed),
        ([b"<html>"], Malformed),
        ([b"[1]"], Malformed),
        ([struct.pack("<Q", 2**60) + b"{}"], Malformed),
        ([struct.pack("<Q", 2**40) + b"{}"], Malformed),
        ([safetensors_bytes()[:-3]], HeaderTruncated),
        ([gguf_bytes()[:60]], HeaderTruncated),
        ([CONFIG_BYTES[:-5]], Malformed),
        ([b'{"a": NaN}'], Malformed),
        ([b'{"a": 1e999}'], Malformed),
        ([b'{"a": "\\ud800"}'], Malformed),
        ([b'{"a": "\xff"}'], Malformed),
        ([b'{"a": ' + b"[" * 200_000], Malformed),
        ([b'{"a": ' + b"9" * 5000 + b"}"], Malformed),
        ([b'{"weight_map": 3}'], Malformed),
        ([CONFIG_BYTES, CONFIG_BYTES], Conflict),
        ([CONFIG_BYTES, gguf_bytes()], Conflict),
        ([gguf_bytes(), safetensors_bytes()], Conflict),
        ([gguf_bytes(split=(1, 2)), CONFIG_BYTES], Conflict),
        ([gguf_bytes(split=(1, 2)), index_bytes("a")], Conflict),
        ([index_bytes("a"), index_bytes("a")], Conflict),
        ([safetensors_bytes(), safetensors_bytes()], Conflict),
        ([gguf_bytes(split=(1, 2)), gguf_bytes(split=(1, 2))], Conflict),
    ],
)
def test_what_cannot_be_read_is_refused(files: list[bytes], error: type[DomainError]) -> None:
    """Damaged, foreign and contradicting files each get one clear error."""
    with pytest.raises(error):
        read(*files)


def test_a_config_that_decides_nothing_names_its_field() -> None:
    """The config's own refusal comes through."""
    with pytest.raises(DomainError, match="made_up"):
        read(b'{"model_type": "made_up", "num_hidden_layers": 3}')


def test_a_config_that_names_a_key_twice_is_refused() -> None:
    """Which of the two counts nobody can know; the key is named."""
    with pytest.raises(Malformed, match="file names 'num_hidden_layers' twice"):
        read(CONFIG_BYTES[:-1] + b', "num_hidden_layers": 3}')


def test_the_encoders_length_reaches_the_reader() -> None:
    """What the caller says of the encoder is used for the cross-attention's part."""
    t5 = {"model_type": "t5", "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_model": 32,
          "vocab_size": 100, "d_ff": 64}  # fmt: skip
    found = read(json.dumps(t5).encode(), encoder_tokens=77)
    assert found.reading is not None
    assert "cross_attention" in found.reading.state.kinds


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Nothing but a refusal comes of bytes that are no file of these."""
    try:
        read(data)
    except DomainError:
        return


@given(st.sampled_from([gguf_bytes(), safetensors_bytes(), CONFIG_BYTES, index_bytes("a")]),
       st.integers(0, 400), st.integers(0, 255))  # fmt: skip
def test_mutated_files_are_read_or_refused(data: bytes, place: int, value: int) -> None:
    """One byte changed anywhere gives an answer or a refusal, never a crash."""
    place %= len(data)
    try:
        read(data[:place] + bytes([value]) + data[place + 1 :])
    except DomainError:
        return
