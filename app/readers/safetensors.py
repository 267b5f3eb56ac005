"""Bounded reader of a safetensors header, and of the index file of a model in several shards.

Format: https://huggingface.co/docs/safetensors: eight bytes with the header's length (little
endian), then JSON that gives each tensor's dtype, shape and place in the data. The rules that the
reference implementation enforces are enforced here too: the data has no gap and no overlap, and
each tensor's place is as long as its dtype and shape say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from app.domain.errors import Malformed, Unknown, shown
from app.domain.notes import Note
from app.readers.headers import MAX_HEADER_BYTES, HeaderTruncated, refuse_truncated
from app.readers.json_cursor import JsonCursor

# Bits of one element. Sub-byte formats are packed; a tensor must fill whole bytes.
DTYPE_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F16": 16, "BF16": 16, "U16": 16, "I16": 16,
    "F32": 32, "U32": 32, "I32": 32,
    "F64": 64, "U64": 64, "I64": 64, "C64": 64,
}  # fmt: skip
MAX_TENSORS = 262_144  # a Kimi-K2 with each expert apart has about 140,000 in all its shards
MAX_DIMENSIONS = 8
MAX_ELEMENTS = 2**50
MAX_SHARDS = 4096
MAX_ENTRY_CHARACTERS = 1024  # a name apart, an entry takes about a hundred
MAX_DECLARED_CHARACTERS = 65_536
MAX_SIZE = 2**62
_LENGTH_BYTES = 8
_PLACE_NUMBERS = 2  # a place is its begin and its end
_SHORTEST_HEADER = 2  # an empty object
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}
# The form that every known writer uses; it is taken in one match, any other by decoding the JSON.
_NUMBER = "(?:0|[1-9][0-9]{0,18})"
_USUAL_ENTRY = re.compile(
    rf'\{{"dtype": ?"(\w+)", ?"shape": ?\[((?:{_NUMBER}(?:, ?{_NUMBER}){{0,7}})?)\], ?'
    rf'"data_offsets": ?\[({_NUMBER}), ?({_NUMBER})\]\}}'
)

_Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsTensor:
    """One tensor and its place in the data, counted from the data's first byte."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin_bytes: int
    end_bytes: int

    @property
    def size_bytes(self) -> int:
        """Return the bytes that the tensor takes."""
        return self.end_bytes - self.begin_bytes

    @property
    def elements(self) -> int:
        """Return the number of elements; packed bytes (U8) count as bytes, F4 as values."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class DTypeTotal:
    """What a header stores in one dtype."""

    dtype: str
    tensors: int
    elements: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsHeader:
    """The tensors of one file in the order of their bytes."""

    metadata: dict[str, str]
    tensors: tuple[SafetensorsTensor, ...]
    header_bytes: int

    @property
    def weight_bytes(self) -> int:
        """Return the exact bytes of the tensors."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    @property
    def file_bytes(self) -> int:
        """Return the length that the file must have."""
        return _LENGTH_BYTES + self.header_bytes + self.weight_bytes

    @property
    def by_dtype(self) -> tuple[DTypeTotal, ...]:
        """Return totals by dtype, as the Hub shows them, in order of first appearance."""
        return totals_by_dtype(self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsIndex:
    """What `model.safetensors.index.json` says; its total is declared by whoever wrote it."""

    total_size_bytes: int | None
    total_parameters: int | None
    tensors_by_shard: dict[str, int]

    @property
    def tensors(self) -> int:
        """Return the number of tensors in all shards."""
        return sum(self.tensors_by_shard.values())


def totals_by_dtype(tensors: Iterable[SafetensorsTensor]) -> tuple[DTypeTotal, ...]:
    """Add tensors up by dtype, whatever files they come from."""
    sums: dict[str, list[int]] = {}
    for tensor in tensors:
        row = sums.setdefault(tensor.dtype, [0, 0, 0])
        row[0] += 1
        row[1] += tensor.elements
        row[2] += tensor.size_bytes
    return tuple(
        DTypeTotal(dtype=dtype, tensors=count, elements=elements, size_bytes=size)
        for dtype, (count, elements, size) in sums.items()
    )


def header_length(data: bytes, *, name: str = "safetensors") -> int:
    """Return how many bytes the JSON takes, from a file's first eight bytes.

    Raises:
        HeaderTruncated: with fewer than eight bytes.
        Malformed: for an empty header, or one longer than is read.

    """
    if len(data) < _LENGTH_BYTES:
        raise HeaderTruncated(name, part=Note("", "the header's length"), have_bytes=len(data),
                              more_bytes=_LENGTH_BYTES - len(data))  # fmt: skip
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if not _SHORTEST_HEADER <= length <= MAX_HEADER_BYTES:
        raise Malformed(
            "{field} claims a header of {length} bytes; 2 to {limit} are read, so this is no "
            "safetensors file or a damaged one",
            field=name,
            length=length,
            limit=MAX_HEADER_BYTES,
        )
    return length


def read_safetensors(data: bytes, *, name: str = "safetensors") -> SafetensorsHeader:
    """Read the header of one file from its first bytes.

    `name` is what errors call the input.

    Raises:
        HeaderTruncated: when the bytes end before the header does; it says how many are missing.
        Malformed: when the header is no such JSON, or contradicts itself.
        Unknown: for a dtype that is not in the table.

    """
    length = header_length(data, name=name)
    if len(data) < _LENGTH_BYTES + length:
        refuse_truncated(name, Note("", "the header"), have_bytes=len(data),
                         need_bytes=_LENGTH_BYTES + length)  # fmt: skip
    cursor = JsonCursor(text=_text(data[_LENGTH_BYTES : _LENGTH_BYTES + length], name), name=name)
    if not cursor.text.startswith("{"):
        cursor.refuse("the header must begin with a brace")
    metadata: dict[str, str] = {}
    tensors: list[SafetensorsTensor] = []
    shapes: dict[str | _Shape, _Shape] = {}
    for key in cursor.entries():
        if key == "__metadata__":
            metadata = {label: cursor.string() for label in cursor.entries()}
        elif len(tensors) == MAX_TENSORS:
            cursor.refuse("more than {tensors} tensors", tensors=MAX_TENSORS)
        else:
            tensors.append(_tensor(key, cursor, shapes))
    cursor.end()
    # By begin, an empty tensor first; two stable sorts build no key for each of the tensors.
    tensors.sort(key=attrgetter("end_bytes"))
    tensors.sort(key=attrgetter("begin_bytes"))
    _check_places(tensors, name)
    return SafetensorsHeader(metadata=metadata, tensors=tuple(tensors), header_bytes=length)


def read_safetensors_index(data: bytes, *, name: str = "index") -> SafetensorsIndex:
    """Read `model.safetensors.index.json`.

    Raises:
        Malformed: for anything but such an index, or one beyond the bounds.

    """
    if len(data) > MAX_HEADER_BYTES:
        raise Malformed("{field} is {size} bytes long; at most {limit} are read", field=name,
                        size=len(data), limit=MAX_HEADER_BYTES)  # fmt: skip
    cursor = JsonCursor(text=_text(data, name), name=name)
    declared: dict[str, object] = {}
    shards: dict[str, int] | None = None
    for key in cursor.entries():
        if key == "weight_map":
            shards = _shards(cursor)
            continue
        value = cursor.value(MAX_DECLARED_CHARACTERS)
        if key == "metadata" and isinstance(value, dict):
            declared = value
    cursor.end()
    if shards is None:
        raise Malformed("{field} has no weight_map: it is no index of shards", field=name)
    return SafetensorsIndex(
        total_size_bytes=_declared(declared, "total_size", name),
        total_parameters=_declared(declared, "total_parameters", name),
        tensors_by_shard=shards,
    )


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Malformed("{field} is not UTF-8 at byte {position} of its JSON", field=name,
                        position=error.start) from None  # fmt: skip


def _tensor(
    label: str, cursor: JsonCursor, shapes: dict[str | _Shape, _Shape]
) -> SafetensorsTensor:
    """Take one entry, check it and return it; equal shapes are kept once, in `shapes`.

    A BF16 tensor of shape [2, 3] at [0, 12] is 6 elements of 2 bytes.
    """
    dtype, shape, begin, end = _entry(label, cursor, shapes)
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        raise Unknown(
            "{field} has tensor {tensor} in dtype {dtype}; known are {known}",
            field=cursor.name,
            tensor=shown(label),
            dtype=shown(dtype),
            known=", ".join(DTYPE_BITS),
        )
    elements = math.prod(shape)
    if elements > MAX_ELEMENTS or elements * bits != 8 * (end - begin):
        raise Malformed(
            "{field} has tensor {tensor} of {elements} {dtype} elements in {size} bytes, which "
            "do not fit",
            field=cursor.name,
            tensor=shown(label),
            elements=elements,
            dtype=dtype,
            size=end - begin,
        )
    return SafetensorsTensor(name=label, dtype=dtype, shape=shape, begin_bytes=begin,
                             end_bytes=end)  # fmt: skip


def _entry(
    label: str, cursor: JsonCursor, shapes: dict[str | _Shape, _Shape]
) -> tuple[str, _Shape, int, int]:
    """Return (dtype, shape, begin, end) of the entry here, whose parts have the right types."""
    usual = _USUAL_ENTRY.match(cursor.text, cursor.position)
    if usual is not None:
        cursor.position = usual.end()
        dtype, sizes, begin, end = usual.groups()
        shape = shapes.get(sizes)
        if shape is None:
            shape = shapes[sizes] = tuple(map(int, sizes.split(","))) if sizes else ()
        return dtype, shape, int(begin), int(end)
    value = cursor.value(MAX_ENTRY_CHARACTERS)
    if isinstance(value, dict) and value.keys() == _ENTRY_KEYS and isinstance(value["dtype"], str):
        shape, place = _sizes(value["shape"]), _sizes(value["data_offsets"])
        if shape is not None and place is not None and len(place) == _PLACE_NUMBERS:
            return value["dtype"], shapes.setdefault(shape, shape), place[0], place[1]
    raise Malformed(
        "{field} has no readable dtype, shape and data_offsets for tensor {tensor}",
        field=cursor.name,
        tensor=shown(label),
    )


def _sizes(value: object) -> tuple[int, ...] | None:
    """Return a short list of sizes, or None for anything else."""
    if not isinstance(value, list) or len(value) > MAX_DIMENSIONS:
        return None
    for item in value:
        if type(item) is not int or not 0 <= item <= MAX_SIZE:
            return None
    return tuple(value)


def _check_places(tensors: list[SafetensorsTensor], name: str) -> None:
    """Refuse a gap or an overlap between tensors, as the reference implementation does."""
    end = 0
    for tensor in tensors:
        if tensor.begin_bytes != end:
            raise Malformed(
                "{field} puts tensor {tensor} at byte {begin}, where {end} is next",
                field=name,
                tensor=shown(tensor.name),
                begin=tensor.begin_bytes,
                end=end,
            )
        end = tensor.end_bytes


def _shards(cursor: JsonCursor) -> dict[str, int]:
    counts: dict[str, int] = {}
    for count, _ in enumerate(cursor.entries(), start=1):
        shard = cursor.string()
        counts[shard] = counts.get(shard, 0) + 1
        if count > MAX_TENSORS or len(counts) > MAX_SHARDS:
            cursor.refuse("more than {tensors} tensors or {shards} shards", tensors=MAX_TENSORS,
                          shards=MAX_SHARDS)  # fmt: skip
    return counts


def _declared(declared: dict[str, object], key: str, name: str) -> int | None:
    """Return a declared total; some writers store it as a float, which is taken when whole."""
    value = declared.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or (type(value) is int and 0 <= value <= 2**62):
        return value
    raise Malformed("{field} declares {key} as {value}", field=name, key=key, value=shown(value))
