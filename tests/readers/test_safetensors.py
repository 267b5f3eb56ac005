"""The safetensors header and index readers, against the `safetensors` package and against lies."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from app.domain.errors import DomainError, Malformed, Unknown
from app.readers.headers import MAX_HEADER_BYTES, HeaderTruncated
from app.readers.safetensors import (
    DTYPE_BITS,
    DTypeTotal,
    SafetensorsTensor,
    header_length,
    read_safetensors,
    read_safetensors_index,
    totals_by_dtype,
)


def _file(header: object, *, data: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data)


def _reference(data: bytes) -> list[tuple[str, Any]]:
    """Let the reference implementation read a whole file."""
    return list(deserialize(data))  # type: ignore[no-untyped-call]


def _entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


SMALL = save(
    {
        "model.embed_tokens.weight": np.zeros((7, 4), dtype=np.float16),
        "model.layers.0.mlp.weight": np.zeros((2, 3), dtype=np.float32),
        "empty": np.zeros((0, 5), dtype=np.int64),
        "scalar": np.array(3, dtype=np.uint8),
    },
    metadata={"format": "pt", "说明": "{}"},
)


def test_agrees_with_the_reference_implementation() -> None:
    """Names, dtypes, shapes and sizes are those that the reference implementation reads."""
    header = read_safetensors(SMALL)
    expected = {
        name: (tensor["dtype"], tuple(tensor["shape"]), len(tensor["data"]))
        for name, tensor in _reference(SMALL)
    }
    assert len(expected) == 4
    assert {t.name: (t.dtype, t.shape, t.size_bytes) for t in header.tensors} == expected
    assert header.file_bytes == len(SMALL)
    assert header.metadata == {"format": "pt", "说明": "{}"}
    assert header.weight_bytes == 56 + 24 + 0 + 1


def test_totals_by_dtype() -> None:
    """Elements and bytes add up by dtype in order of the data, over one file or several."""
    header = read_safetensors(SMALL)
    assert sorted(header.by_dtype, key=lambda row: row.dtype) == [
        DTypeTotal(dtype="F16", tensors=1, elements=28, size_bytes=56),
        DTypeTotal(dtype="F32", tensors=1, elements=6, size_bytes=24),
        DTypeTotal(dtype="I64", tensors=1, elements=0, size_bytes=0),
        DTypeTotal(dtype="U8", tensors=1, elements=1, size_bytes=1),
    ]
    both = totals_by_dtype([*header.tensors, *header.tensors])
    assert sum(row.size_bytes for row in both) == 2 * header.weight_bytes


@pytest.mark.parametrize(("dtype", "bits"), DTYPE_BITS.items())
def test_every_dtype_is_the_reference_s(dtype: str, bits: int) -> None:
    """Each dtype is known to the reference implementation, with the same size."""
    data = _file({"t": _entry(dtype, [4, 8], 0, 4 * bits)}, data=4 * bits)
    assert [name for name, _ in _reference(data)] == ["t"]
    assert read_safetensors(data).tensors == (
        SafetensorsTensor(name="t", dtype=dtype, shape=(4, 8), begin_bytes=0, end_bytes=4 * bits),
    )


def test_spacing_and_key_order_do_not_matter() -> None:
    """Any JSON that says the same is read the same, escapes and all."""
    odd = (
        b'{ "a\\u0041" : {\t"shape":[ ],"data_offsets":[0 , 2],"dtype":"BF16" } ,'
        b'"b":{"data_offsets":[2,2],"shape":[0],"dtype":"F32"}} \n'
    )
    assert [tensor.name for tensor in read_safetensors(_file(odd)).tensors] == ["aA", "b"]
    assert read_safetensors(_file({})).tensors == ()


def test_every_prefix_says_how_much_is_missing() -> None:
    """Wherever the bytes are cut inside the header, the error names what is missing, exactly."""
    length = 8 + header_length(SMALL)
    for cut in range(length):
        with pytest.raises(HeaderTruncated) as caught:
            read_safetensors(SMALL[:cut])
        assert caught.value.more_bytes == (8 - cut if cut < 8 else length - cut)
    assert len(read_safetensors(SMALL[:length]).tensors) == 4


HALF = _entry("F16", [2], 0, 4)
LIES: list[tuple[str, bytes, type[DomainError]]] = [
    ("a header of nothing", struct.pack("<Q", 0) + bytes(20), Malformed),
    ("a header beyond the bound", struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}", Malformed),
    ("a pickle", b"\x80\x02}q\x00(X\x05\x00\x00\x00", Malformed),
    ("a zip", b"PK\x03\x04" + bytes(40), Malformed),
    ("not UTF-8", _file(b'{"\xff": 1}'), Malformed),
    ("a list", _file([]), Malformed),
    ("a space before the object", _file(b" {}"), Malformed),
    ("text after the object", _file(b"{} x"), Malformed),
    ("no quotes", _file(b"{a: 1}"), Malformed),
    ("a key without end", _file(b'{"a'), Malformed),
    ("a key without value", _file(b'{"a"}'), Malformed),
    ("an escaped key without value", _file(b'{"\\n"}'), Malformed),
    ("no comma", _file(b'{"__metadata__":{} "b":1}'), Malformed),
    ("no end", _file(b'{"__metadata__":{}'), Malformed),
    ("a comma at the end", _file(b'{"__metadata__":{},}'), Malformed),
    ("a tensor twice", _file(b'{"t":%b,"t":%b}' % ((json.dumps(HALF).encode(),) * 2)), Malformed),
    ("a part twice", _file(b'{"t":{"dtype":"F16","dtype":"F16","shape":[2],"data_offsets":[0,4]}}'),
     Malformed),
    ("metadata that is no object", _file({"__metadata__": []}), Malformed),
    ("metadata that is no text", _file({"__metadata__": {"a": 1}}), Malformed),
    ("a tensor that is a number", _file({"t": 1}), Malformed),
    ("a part missing", _file({"t": {"dtype": "F16", "shape": [2]}}), Malformed),
    ("a part more", _file({"t": {**HALF, "x": 1}}), Malformed),
    ("dtype as number", _file({"t": {**HALF, "dtype": 16}}), Malformed),
    ("shape as number", _file({"t": {**HALF, "shape": 2}}), Malformed),
    ("shape with text", _file({"t": {**HALF, "shape": ["2"]}}), Malformed),
    ("shape with true", _file({"t": {**HALF, "shape": [True]}}), Malformed),
    ("shape with a fraction", _file({"t": {**HALF, "shape": [2.0]}}), Malformed),
    ("negative shape", _file({"t": {**HALF, "shape": [-2]}}), Malformed),
    ("nine dimensions", _file({"t": {**HALF, "shape": [1] * 9}}), Malformed),
    ("one offset", _file({"t": {**HALF, "data_offsets": [4]}}), Malformed),
    ("offsets turned round", _file({"t": {**HALF, "data_offsets": [4, 0]}}), Malformed),
    ("an offset of 400 digits", _file({"t": {**HALF, "data_offsets": [0, 10**400]}}), Malformed),
    ("an offset of 5000 digits", _file(b'{"t":{"dtype":"F16","shape":[2],"data_offsets":[0,'
                                       + b"9" * 5000 + b"]}}"), Malformed),
    ("NaN", _file(b'{"t":{"dtype":"F16","shape":[NaN],"data_offsets":[0,4]}}'), Malformed),
    ("bytes that do not fit", _file({"t": _entry("F16", [3], 0, 4)}), Malformed),
    ("half a byte", _file({"t": _entry("F4", [3], 0, 1)}), Malformed),
    ("2^60 elements", _file({"t": _entry("U8", [2**30, 2**30], 0, 2**60)}), Malformed),
    ("an unknown dtype", _file({"t": _entry("Q4_K", [2], 0, 4)}), Unknown),
    ("a gap at the front", _file({"t": _entry("F16", [2], 4, 8)}), Malformed),
    ("a gap", _file({"t": HALF, "u": _entry("F16", [2], 8, 12)}), Malformed),
    ("an overlap", _file({"t": HALF, "u": _entry("F16", [2], 2, 6)}), Malformed),
    ("nesting", _file(b'{"t":' + b"[" * 900 + b"]" * 900 + b"}"), Malformed),
    ("an entry of a megabyte", _file(b'{"t":[' + b"[]," * 300_000 + b"0]}"), Malformed),
    ("a number cut by the bound", _file(b'{"t":' + b"1" * 1100 + b"}"), Malformed),
]  # fmt: skip


@pytest.mark.parametrize(("data", "error"), [row[1:] for row in LIES], ids=[row[0] for row in LIES])
def test_lies_are_refused(data: bytes, error: type[DomainError]) -> None:
    """A header that is broken, contradicts itself or exceeds a bound gets one clear error."""
    with pytest.raises(error) as caught:
        read_safetensors(data, name="upload")
    assert caught.value.field == ("upload",)
    assert not isinstance(caught.value, HeaderTruncated)


def test_more_tensors_than_the_bound_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of tensors is bounded before the list grows."""
    monkeypatch.setattr("app.readers.safetensors.MAX_TENSORS", 3)
    with pytest.raises(Malformed, match="more than 3 tensors"):
        read_safetensors(SMALL)


@given(
    st.lists(st.tuples(st.integers(0, 450), st.binary(min_size=1, max_size=4)), max_size=4),
)
def test_what_we_read_the_reference_reads_too(changes: list[tuple[int, bytes]]) -> None:
    """A mutated file is read or refused; when read whole, the reference reads the same bytes."""
    data = bytearray(SMALL)
    for place, piece in changes:
        data[place : place + len(piece)] = piece
    try:
        header = read_safetensors(bytes(data))
    except DomainError:
        return
    if header.file_bytes != len(data):
        return
    try:
        reference = _reference(bytes(data))
    except SafetensorError:
        pytest.fail("read here, refused by the reference")
    sizes = {name: len(tensor["data"]) for name, tensor in reference}
    assert sizes == {tensor.name: tensor.size_bytes for tensor in header.tensors}


@given(st.text(max_size=200))
def test_any_text_gets_an_answer(text: str) -> None:
    """Whatever stands in place of the JSON, the readers answer or refuse."""
    for read in (read_safetensors, read_safetensors_index):
        raw = text.encode("utf-8", "surrogatepass")
        try:
            read(_file(raw) if read is read_safetensors else raw)
        except DomainError:
            continue


INDEX = {
    "metadata": {"total_size": 16_060_522_496, "total_parameters": 8_030_261_248.0},
    "weight_map": {
        "lm_head.weight": "model-00002-of-00002.safetensors",
        "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
        "model.norm.weight": "model-00002-of-00002.safetensors",
    },
}


def test_an_index_counts_tensors_by_shard() -> None:
    """The index gives its declared total and how many tensors each shard holds."""
    index = read_safetensors_index(json.dumps(INDEX).encode())
    assert index.total_size_bytes == 16_060_522_496
    assert index.total_parameters == 8_030_261_248
    assert index.tensors == 3
    assert index.tensors_by_shard == {
        "model-00002-of-00002.safetensors": 2,
        "model-00001-of-00002.safetensors": 1,
    }
    bare = read_safetensors_index(b'{"weight_map": {}, "metadata": null}')
    assert (bare.total_size_bytes, bare.tensors) == (None, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"metadata": {}}',
        b'{"weight_map": []}',
        b'{"weight_map": {"a": 1}}',
        b'{"weight_map": {"a": "b", "a": "c"}}',
        b'{"weight_map": {}, "weight_map": {}}',
        b'{"weight_map": {"a": "b\\x"}}',
        b'{"metadata": {"total_size": "1"}, "weight_map": {}}',
        b'{"metadata": {"total_size": -1}, "weight_map": {}}',
        b'{"metadata": {"total_size": 1.5}, "weight_map": {}}',
        b'{"metadata": {"total_size": true}, "weight_map": {}}',
        b'{"metadata": {"total_size": NaN}, "weight_map": {}}',
        b'{"metadata": {"total_size": 1e400}, "weight_map": {}}',
        b'{"weight_map": {}} x',
        b"\xff",
        b"[" * 100_000,
        b'{"a":' + b"[" * 60_000,
    ],
)
def test_a_broken_index_is_refused(data: bytes) -> None:
    """Anything but an index of shards gets one clear error."""
    with pytest.raises(Malformed):
        read_safetensors_index(data)


def test_an_index_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes, tensors and shards of an index are bounded."""
    data = json.dumps(INDEX).encode()
    monkeypatch.setattr("app.readers.safetensors.MAX_SHARDS", 1)
    with pytest.raises(Malformed, match="shards"):
        read_safetensors_index(data)
    monkeypatch.setattr("app.readers.safetensors.MAX_HEADER_BYTES", 10)
    with pytest.raises(Malformed, match="at most 10"):
        read_safetensors_index(data)
