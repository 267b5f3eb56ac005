"""The GGUF header reader, against the `gguf` package and against bytes that lie."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gguf import GGUFEndian, GGUFReader, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import DomainError, Malformed, Unknown, Unsupported
from app.domain.ggml_types import GGML_TYPES, ggml_type
from app.readers.gguf import GgufSplit, OmittedValue, read_gguf
from app.readers.headers import MAX_HEADER_BYTES, HeaderTruncated

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = [f"token {number}" for number in range(5000)]


def _write(path: Path, endianess: GGUFEndian = GGUFEndian.LITTLE) -> bytes:
    """Let the reference implementation write a small model, with its data."""
    writer = GGUFWriter(str(path), "llama", endianess=endianess)
    writer.add_block_count(2)
    writer.add_head_count_kv([4, 0])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_bool("llama.flag", val=True)
    writer.add_int64("llama.negative", -7)
    writer.add_chat_template("{{ messages }}")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.5] * 5000)
    writer.add_tags(["text", "测试"])
    writer.add_tensor("token_embd.weight", np.zeros((100, 64), dtype=np.float16))
    writer.add_tensor(
        "blk.0.attn_k.weight",
        np.zeros((16, 68), dtype=np.uint8),
        raw_dtype=GGMLQuantizationType.Q8_0,
    )
    writer.add_tensor("output_norm.weight", np.zeros(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def _string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _string(name) + struct.pack("<I", kind) + value


def _tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return _string(name) + sizes + struct.pack("<IQ", kind, offset)


def _file(keys: list[bytes], tensors: list[bytes], version: int = 3) -> bytes:
    counts = struct.pack("<IQQ", version, len(tensors), len(keys))
    return b"GGUF" + counts + b"".join(keys) + b"".join(tensors)


ARCHITECTURE = _key("general.architecture", 8, _string("llama"))
SMALL = _file(
    [
        ARCHITECTURE,
        _key("llama.block_count", 4, struct.pack("<I", 2)),
        _key("llama.attention.head_count_kv", 9, struct.pack("<IQII", 4, 2, 8, 0)),
        _key("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 70) + _string("ab") * 70),
    ],
    [
        _tensor("token_embd.weight", (256, 10), 12, 0),
        _tensor("output_norm.weight", (256,), 0, 1440),
    ],
)


@pytest.mark.parametrize("endianess", [GGUFEndian.LITTLE, GGUFEndian.BIG])
def test_agrees_with_the_reference_reader(tmp_path: Path, endianess: GGUFEndian) -> None:
    """Keys, tensors, types, offsets and bytes are those that the reference package reads."""
    data = _write(tmp_path / "model.gguf", endianess)
    header = read_gguf(data)
    reference = GGUFReader(str(tmp_path / "model.gguf"))
    assert header.version == 3
    assert header.byte_order == ("big" if endianess is GGUFEndian.BIG else "little")
    assert header.architecture == "llama"
    for name, field in reference.fields.items():
        if name in header.metadata:
            value: Any = field.contents()
            kept = tuple(value) if isinstance(value, list) else value
            assert header.metadata[name] == kept, name
        else:
            assert name in header.omitted or name.startswith("GGUF."), name
    assert [(t.name, t.shape, t.type.name, t.parameters, t.size_bytes) for t in header.tensors] == [
        (t.name, tuple(map(int, t.shape)), t.tensor_type.name, t.n_elements, t.n_bytes)
        for t in reference.tensors
    ]
    starts = [header.data_offset_bytes + tensor.offset_bytes for tensor in header.tensors]
    assert starts == [tensor.data_offset for tensor in reference.tensors]
    assert header.file_bytes <= len(data) < header.file_bytes + header.alignment_bytes


def test_values_of_the_small_model(tmp_path: Path) -> None:
    """Each kind of value comes out as the plain Python value that was written."""
    header = read_gguf(_write(tmp_path / "model.gguf"))
    assert header.metadata["llama.attention.head_count_kv"] == (4, 0)
    assert header.metadata["llama.flag"] is True
    assert header.metadata["llama.negative"] == -7
    assert header.metadata["general.tags"] == ("text", "测试")
    assert header.omitted == {
        "tokenizer.ggml.tokens": OmittedValue(holds="string", length=5000),
        "tokenizer.ggml.scores": OmittedValue(holds="f32", length=5000),
    }
    # 100 x 64 halves, 16 rows of 64 in blocks of 32 at 34 bytes, 64 floats.
    assert header.weight_bytes == 12_800 + 16 * 68 + 256
    assert header.parameters == 6400 + 1024 + 64


def test_table_of_types_is_the_reference_table() -> None:
    """Every type of the reference package has the same number, name, block and bytes here."""
    assert len(GGML_QUANT_SIZES) > 30
    for kind, (elements, size) in GGML_QUANT_SIZES.items():
        ours = GGML_TYPES[int(kind)]
        assert (ours.name, ours.block_elements, ours.block_bytes) == (kind.name, elements, size)
    ours_alone = {row.name for row in GGML_TYPES.values()} - {
        kind.name for kind in GGML_QUANT_SIZES
    }
    assert ours_alone == {"Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8", "IQ4_NL_4_4", "IQ4_NL_4_8",
                          "IQ4_NL_8_8"}  # fmt: skip


@pytest.mark.parametrize(
    ("number", "shape", "size"),
    [
        (12, (4096, 4096), 9_437_184),  # Q4_K: 16 blocks of 144 bytes a row
        (39, (2880, 5760, 32), 282_009_600),  # MXFP4: 90 blocks of 17 bytes a row
        (0, (), 4),
        (8, (32,), 34),
    ],
)
def test_bytes_of_a_tensor(number: int, shape: tuple[int, ...], size: int) -> None:
    """A tensor takes its rows' blocks times the other dimensions."""
    assert ggml_type(number, field="x").bytes_for(shape, field="x") == size


def test_every_prefix_says_that_more_is_needed() -> None:
    """Wherever the bytes are cut, the error says so, and asks for no more than the header has."""
    assert len(SMALL) > 700
    for cut in range(len(SMALL)):
        if cut == 0:
            continue
        with pytest.raises(HeaderTruncated) as caught:
            read_gguf(SMALL[:cut])
        assert 1 <= caught.value.more_bytes <= len(SMALL) - cut


def test_asking_for_what_the_error_names_ends_at_the_whole_header() -> None:
    """Fetching what each error asks for reaches the header without ever overshooting it."""
    have, rounds = 1, 0
    while True:
        try:
            header = read_gguf(SMALL[:have])
            break
        except HeaderTruncated as error:
            have += error.more_bytes
            rounds += 1
    assert have == len(SMALL) == header.header_bytes
    assert rounds < 60


@pytest.mark.parametrize("version", [1, 2, 3])
def test_versions(version: int) -> None:
    """Version 1 has lengths of 32 bits; 2 and 3 have 64."""
    if version == 1:
        text = struct.pack("<I", 20) + b"general.architecture"
        value = struct.pack("<II", 8, 5) + b"llama"
        data = b"GGUF" + struct.pack("<III", 1, 0, 1) + text + value
    else:
        data = _file([ARCHITECTURE], [], version)
    assert read_gguf(data).architecture == "llama"


def test_a_split_names_its_part() -> None:
    """The first part of a split carries the keys, some of the tensors and how many parts exist."""
    keys = [
        ARCHITECTURE,
        _key("split.no", 2, struct.pack("<H", 0)),
        _key("split.count", 2, struct.pack("<H", 3)),
        _key("split.tensors.count", 5, struct.pack("<i", 291)),
    ]
    assert read_gguf(_file(keys, [])).split == GgufSplit(number=0, count=3, tensors_in_all=291)
    assert read_gguf(SMALL).split is None
    without_total = read_gguf(_file(keys[:3], [])).split
    assert without_total is not None
    assert without_total.tensors_in_all is None


def test_numbers_that_are_not_finite_become_none() -> None:
    """NaN and infinity have no JSON form, so they are kept as None."""
    keys = [
        _key("a", 6, struct.pack("<f", float("nan"))),
        _key("b", 9, struct.pack("<IQdd", 12, 2, float("inf"), 1.5)),
    ]
    assert read_gguf(_file(keys, [])).metadata == {"a": None, "b": (None, 1.5)}


def test_values_that_are_not_utf8_are_read_with_a_mark() -> None:
    """A value cut inside a character does not spoil a header; a key does."""
    header = read_gguf(_file([_key("a", 8, _string(b"ab\xff"))], []))
    assert header.metadata["a"] == "ab\ufffd"
    with pytest.raises(Malformed, match="not UTF-8"):
        read_gguf(_file([_string(b"\xff") + struct.pack("<I", 8) + _string("x")], []))


def test_long_values_are_measured_not_kept() -> None:
    """A long string, long numbers and what exceeds the bound in all are kept by length alone."""
    megabyte = _key("many", 9, struct.pack("<IQ", 0, 4096) + bytes(4096))
    keys = [
        _key("template", 8, _string("x" * 70_000)),
        _key("numbers", 9, struct.pack("<IQ", 0, 5000) + bytes(5000)),
        _key("texts", 9, struct.pack("<IQ", 8, 2) + _string("a") + _string("y" * 70_000)),
        *(megabyte.replace(b"many", f"m{number:03}".encode()) for number in range(200)),
    ]
    header = read_gguf(_file(keys, []))
    assert header.omitted["template"] == OmittedValue(holds="bytes of text", length=70_000)
    assert header.omitted["numbers"] == OmittedValue(holds="u8", length=5000)
    assert header.omitted["texts"] == OmittedValue(holds="string", length=2)
    kept = [key for key in header.metadata if key.startswith("m")]
    assert len(kept) == 113  # 16 MiB at 4096 numbers of 36 bytes
    assert header.omitted["m199"] == OmittedValue(holds="u8", length=4096)


ONE = [ARCHITECTURE]
LIES: list[tuple[str, bytes, type[DomainError], str]] = [
    ("nothing", b"", Malformed, "does not start"),
    ("another format", b"PK\x03\x04" + bytes(40), Malformed, "does not start"),
    ("old llama format", b"lmgg" + bytes(40), Malformed, "does not start"),
    ("version 0", b"GGUF" + bytes(40), Unsupported, "version 0"),
    ("version 9", b"GGUF" + struct.pack("<IQQ", 9, 0, 0), Unsupported, "version 9"),
    ("tensors without end", b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), Malformed, "tensors"),
    ("keys without end", b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40), Malformed, "keys"),
    ("key of 2^60 bytes", _file([struct.pack("<Q", 2**60)], []), Malformed, "length of a key"),
    ("text of 2^60 bytes", _file([_key("a", 8, struct.pack("<Q", 2**60))], []), Malformed,
     "claims a header"),
    ("2^61 numbers", _file([_key("a", 9, struct.pack("<IQ", 4, 2**61))], []), Malformed,
     "claims a header"),
    ("2^61 texts", _file([_key("a", 9, struct.pack("<IQ", 8, 2**61))], []), Malformed,
     "claims a header"),
    ("array of arrays", _file([_key("a", 9, struct.pack("<IQ", 9, 1))], []), Unsupported, "nests"),
    ("value type 13", _file([_key("a", 13, b"")], []), Malformed, "type of"),
    ("element type 99", _file([_key("a", 9, struct.pack("<IQ", 99, 1))], []), Malformed,
     "element type"),
    ("a key twice", _file([*ONE, *ONE], []), Malformed, "twice"),
    ("alignment 0", _file([_key("general.alignment", 4, bytes(4))], []), Malformed, "alignment"),
    ("alignment 24", _file([_key("general.alignment", 4, struct.pack("<I", 24))], []), Malformed,
     "alignment"),
    ("alignment in words", _file([_key("general.alignment", 8, _string("32"))], []), Malformed,
     "alignment"),
    ("five dimensions", _file(ONE, [_tensor("t", (1, 1, 1, 1, 1), 0, 0)]), Malformed, "dimensions"),
    ("2^60 elements", _file(ONE, [_tensor("t", (2**30, 2**30), 0, 0)]), Malformed, "elements"),
    ("one long dimension", _file(ONE, [_tensor("t", (2**60,), 0, 0)]), Malformed, "dimension"),
    ("odd offset", _file(ONE, [_tensor("t", (1,), 0, 7)]), Malformed, "multiple"),
    ("offset 2^63", _file(ONE, [_tensor("t", (1,), 0, 2**63)]), Malformed, "multiple"),
    ("type 77", _file(ONE, [_tensor("t", (1,), 77, 0)]), Unknown, "type 77"),
    ("type Q4_2", _file(ONE, [_tensor("t", (32,), 4, 0)]), Unsupported, "Q4_2"),
    ("broken blocks", _file(ONE, [_tensor("t", (33, 2), 8, 0)]), Malformed, "blocks of 32"),
    ("a tensor twice", _file(ONE, [_tensor("t", (1,), 0, 0), _tensor("t", (1,), 0, 32)]),
     Malformed, "twice"),
    ("shared bytes", _file(ONE, [_tensor("t", (16,), 0, 0), _tensor("u", (16,), 0, 32)]),
     Malformed, "same bytes"),
    ("long name", _file(ONE, [_tensor("t" * 1025, (1,), 0, 0)]), Malformed, "tensor's name"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "error", "words"), [row[1:] for row in LIES],
                         ids=[row[0] for row in LIES])  # fmt: skip
def test_lies_are_refused(data: bytes, error: type[DomainError], words: str) -> None:
    """A header that contradicts itself or exceeds a bound gets one clear error."""
    with pytest.raises(error, match=words) as caught:
        read_gguf(data, name="upload")
    assert caught.value.field[0] == "upload"
    assert not isinstance(caught.value, HeaderTruncated)


def test_strings_that_run_past_the_end_say_how_far() -> None:
    """A vocabulary cut in the middle of a token asks for the rest of it."""
    tokens = struct.pack("<IQ", 8, 100) + _string("abc") * 99
    cut = _file([_key("tokens", 9, tokens)], [])
    with pytest.raises(HeaderTruncated) as caught:
        read_gguf(cut)
    assert caught.value.more_bytes == 8
    with pytest.raises(HeaderTruncated) as caught:
        read_gguf(cut + struct.pack("<Q", 50))
    assert caught.value.more_bytes == 50
    with pytest.raises(Malformed, match=str(MAX_HEADER_BYTES)):
        read_gguf(cut + struct.pack("<Q", 2**40))


@given(st.binary(max_size=400))
def test_any_bytes_get_an_answer(data: bytes) -> None:
    """Whatever follows the magic, the reader answers or refuses; nothing else escapes."""
    for start in (b"", b"GGUF", b"GGUF\x03\x00\x00\x00"):
        try:
            read_gguf(start + data)
        except DomainError:
            continue


@given(
    st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.binary(min_size=1, max_size=9)),
             min_size=1, max_size=4),
    st.integers(0, len(SMALL)),
)  # fmt: skip
def test_mutated_headers_get_an_answer(changes: list[tuple[int, bytes]], cut: int) -> None:
    """A real header with bytes overwritten and its end cut is read or refused."""
    data = bytearray(SMALL)
    for place, piece in changes:
        data[place : place + len(piece)] = piece
    for candidate in (bytes(data), bytes(data[:cut])):
        try:
            header = read_gguf(candidate)
        except DomainError:
            continue
        assert header.header_bytes <= len(candidate)
        assert header.weight_bytes >= 0
