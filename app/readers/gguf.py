"""Bounded reader of a GGUF header from the first bytes of a file (or of a split's first part).

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Versions 1 to 3, both byte
orders. Nothing is trusted: every count and length is held against what the bytes could contain and
against a bound of our own before anything is allocated for it. Long arrays (a tokenizer's
vocabulary) are walked over and remembered by their length alone.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field

from app.domain.errors import Malformed, Unsupported, shown
from app.domain.ggml_types import GgmlType, ggml_type
from app.domain.notes import Note
from app.readers.headers import refuse_truncated

MetadataValue = int | float | bool | str | None | tuple["MetadataValue", ...]

NEWEST_VERSION = 3
MAX_KEY_BYTES = 65_535  # the specification's own bound on a key
MAX_KEYS = 65_536
MAX_TENSORS = 65_536  # DeepSeek-V3 with its experts unmerged has about 47,000
MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
MAX_TENSOR_NAME_BYTES = 1024
MAX_ELEMENTS = 2**50
KEPT_NUMBERS = 4096  # one number a layer and more; a vocabulary's scores and types are longer
KEPT_STRINGS = 64  # tags and languages; a vocabulary has tens of thousands
KEPT_STRING_BYTES = 65_536
# Values kept in all, so that a hostile header cannot blow up in memory: a number takes about as
# much as 36 bytes of text. Real headers keep some hundred kilobytes.
KEPT_BYTES_IN_ALL = 16 * 2**20
KEPT_NUMBER_BYTES = 36

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_TYPE_NAMES = {0: "u8", 1: "i8", 2: "u16", 3: "i16", 4: "u32", 5: "i32", 6: "f32", 7: "bool",
               8: "string", 9: "array", 10: "u64", 11: "i64", 12: "f64"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OmittedValue:
    """A value too long to keep: what it holds, and how many (elements, or bytes of a string)."""

    holds: str
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One tensor: `shape` has the row length first; `offset_bytes` counts from the data's start."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    offset_bytes: int
    size_bytes: int

    @property
    def parameters(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufSplit:
    """Which part of a model split over files this is (`split.*` keys), counted from 0."""

    number: int
    count: int
    tensors_in_all: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """All that a header says; `metadata` holds plain values, `omitted` what was only measured.

    A number that is not finite is None in `metadata`, since JSON has no word for it.
    """

    version: int
    byte_order: str
    alignment_bytes: int
    metadata: dict[str, MetadataValue]
    omitted: dict[str, OmittedValue]
    tensors: tuple[GgufTensor, ...]
    header_bytes: int
    split: GgufSplit | None

    @property
    def architecture(self) -> str | None:
        """Return `general.architecture` when it is a string."""
        name = self.metadata.get("general.architecture")
        return name if isinstance(name, str) else None

    @property
    def data_offset_bytes(self) -> int:
        """Return where the tensors' data starts in the file."""
        return padded(self.header_bytes, self.alignment_bytes)

    @property
    def weight_bytes(self) -> int:
        """Return the exact bytes of this file's tensors, padding between them not counted."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    @property
    def parameters(self) -> int:
        """Return the number of elements of this file's tensors."""
        return sum(tensor.parameters for tensor in self.tensors)

    @property
    def file_bytes(self) -> int:
        """Return how long the file must be at least to hold every tensor."""
        ends = (tensor.offset_bytes + tensor.size_bytes for tensor in self.tensors)
        return self.data_offset_bytes + max(ends, default=0)


def padded(size: int, alignment: int) -> int:
    """Return `size` rounded up to a whole number of `alignment`."""
    return -(-size // alignment) * alignment


def read_gguf(data: bytes, *, name: str = "gguf") -> GgufHeader:
    """Read a GGUF header from the first bytes of a file.

    `name` is what errors call the input. A file without tensors (a vocabulary, the first part of
    some splits) is fine.

    Raises:
        HeaderTruncated: when the bytes end before the header does; it says how many more are
            needed at least.
        Malformed: when the bytes are no GGUF, contradict themselves or exceed a bound.
        Unsupported: for a version that is not known.
        Unknown: for a tensor type that is not known.

    """
    reader = _Reader(data=data, name=name)
    version, tensor_count, key_count = _read_preamble(reader)
    metadata: dict[str, MetadataValue] = {}
    omitted: dict[str, OmittedValue] = {}
    for _ in range(key_count):
        key = reader.string("a key", MAX_KEY_BYTES)
        if key in metadata or key in omitted:
            raise Malformed("{field} names the key {key} twice", field=name, key=shown(key))
        value = _read_value(reader, key)
        if isinstance(value, OmittedValue):
            omitted[key] = value
        else:
            metadata[key] = value
    alignment = _alignment(metadata, name)
    tensors = tuple(_read_tensor(reader, alignment) for _ in range(tensor_count))
    _check_tensors(tensors, name)
    return GgufHeader(
        version=version,
        byte_order="big" if reader.order == ">" else "little",
        alignment_bytes=alignment,
        metadata=metadata,
        omitted=omitted,
        tensors=tensors,
        header_bytes=reader.position,
        split=_split(metadata),
    )


@dataclass(slots=True, kw_only=True)
class _Reader:
    """A position in the bytes, which never passes their end."""

    data: bytes
    name: str
    position: int = 0
    order: str = "<"
    length_code: str = "Q"
    kept_bytes: int = 0
    _structs: dict[str, struct.Struct] = field(default_factory=dict)

    def layout(self, code: str) -> struct.Struct:
        found = self._structs.get(code)
        if found is None:
            found = self._structs[code] = struct.Struct(self.order + code)
        return found

    def may_keep(self, size: int) -> bool:
        """Return whether a value of that size still fits among the kept ones, and count it."""
        if self.kept_bytes + size > KEPT_BYTES_IN_ALL:
            return False
        self.kept_bytes += size
        return True

    def need(self, size: int, template: str, of: object = None) -> None:
        """Refuse unless `size` more bytes are there; the template says for what.

        `of` is what stands for {part} in it, here and in the other methods.
        """
        end = self.position + size
        if end > len(self.data):
            part = Note("", template, {"part": of})
            refuse_truncated(self.name, part, have_bytes=len(self.data), need_bytes=end)

    def scalar(self, code: str, template: str, of: object = None) -> int | float | bool:
        layout = self.layout(code)
        self.need(layout.size, template, of)
        value: int | float | bool = layout.unpack_from(self.data, self.position)[0]
        self.position += layout.size
        return value

    def long_count(self, template: str, of: object = None, limit: int | None = None) -> int:
        """Read a length or a count (32 bits wide in version 1, 64 since) and hold it to a limit."""
        return self._held_to(self.length_code, template, of, limit)

    def short_count(self, template: str, of: object, limit: int) -> int:
        """Read a count that is 32 bits wide in every version."""
        return self._held_to("I", template, of, limit)

    def _held_to(self, code: str, template: str, of: object, limit: int | None) -> int:
        value = int(self.scalar(code, template, of))
        if limit is not None and value > limit:
            raise Malformed(
                "{field} claims {value} as {part}; at most {limit} are read",
                field=self.name,
                value=value,
                part=Note("", template, {"part": of}),
                limit=limit,
            )
        return value

    def string(self, template: str, limit: int) -> str:
        """Read a string of at most `limit` bytes.

        Raises:
            Malformed: when it is no UTF-8.

        """
        part = Note("", template)
        size = self.long_count("the length of {part}", part, limit)
        self.need(size, template)
        raw = self.data[self.position : self.position + size]
        try:
            decoded = raw.decode()
        except UnicodeDecodeError:
            raise Malformed(
                "{field} has {part} that is not UTF-8 at byte {position}",
                field=self.name,
                part=part,
                position=self.position,
            ) from None
        self.position += size
        return decoded


def _read_preamble(reader: _Reader) -> tuple[int, int, int]:
    """Return (version, tensors, keys), having set the reader's byte order and length width.

    A big-endian file carries its version in big-endian too, so its low 16 bits look empty.
    """
    if not reader.data.startswith(b"GGUF"[: len(reader.data)]) or not reader.data:
        raise Malformed(
            "{field} does not start with the four bytes GGUF: it is no GGUF file, or not its first "
            "part",
            field=reader.name,
        )
    reader.need(4, "the magic number")
    reader.position = 4
    version = int(reader.scalar("I", "the version"))
    if version & 0xFFFF == 0:
        reader.order, reader.position = ">", 4
        reader._structs.clear()  # noqa: SLF001  # one module, one class
        version = int(reader.scalar("I", "the version"))
    if not 1 <= version <= NEWEST_VERSION:
        raise Unsupported(
            "{field} is GGUF version {version}; versions 1 to 3 are known",
            field=reader.name,
            version=version,
        )
    reader.length_code = "I" if version == 1 else "Q"
    tensors = reader.long_count("the number of tensors", limit=MAX_TENSORS)
    keys = reader.long_count("the number of keys", limit=MAX_KEYS)
    return version, tensors, keys


def _read_value(reader: _Reader, key: str) -> MetadataValue | OmittedValue:
    part = Note("", "the value of {key}", {"key": shown(key)})
    kind = reader.short_count("the type of {part}", shown(key), 12)
    if kind == _ARRAY:
        return _read_array(reader, part)
    if kind == _STRING:
        return _read_string(reader, part)
    return _finite(reader.scalar(_SCALARS[kind], "{part}", part))


def _finite(value: float) -> MetadataValue:
    """Return the number, or None for one that is infinite or not a number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_string(reader: _Reader, part: Note) -> str | OmittedValue:
    size = reader.long_count("the length of {part}", part)
    reader.need(size, "{part}", part)
    start = reader.position
    reader.position += size
    if size > KEPT_STRING_BYTES or not reader.may_keep(size):
        return OmittedValue(holds="bytes of text", length=size)
    # A value is for reading only: bytes that are no UTF-8 (cut tokens) do not spoil the header.
    return reader.data[start : start + size].decode(errors="replace")


def _read_array(reader: _Reader, part: Note) -> MetadataValue | OmittedValue:
    kind = reader.short_count("the element type of {part}", part, 12)
    length = reader.long_count("the length of {part}", part)
    if kind == _STRING:
        return _read_strings(reader, part, length)
    if kind == _ARRAY:
        # ggml's own reader refuses these too, and no known writer makes them.
        raise Unsupported("{field} nests an array in {part}", field=reader.name, part=part)
    return _read_numbers(reader, part, _SCALARS[kind], length, _TYPE_NAMES[kind])


def _read_numbers(
    reader: _Reader, part: Note, code: str, length: int, type_name: str
) -> MetadataValue | OmittedValue:
    size = length * reader.layout(code).size
    reader.need(size, "{part}", part)
    start = reader.position
    reader.position += size
    if length > KEPT_NUMBERS or not reader.may_keep(length * KEPT_NUMBER_BYTES):
        return OmittedValue(holds=type_name, length=length)
    values = struct.unpack_from(f"{reader.order}{length}{code}", reader.data, start)
    return tuple(_finite(value) for value in values)


def _read_strings(reader: _Reader, part: Note, length: int) -> MetadataValue | OmittedValue:
    layout = reader.layout(reader.length_code)
    # Each string takes at least its own length field, so a false count is seen at once.
    reader.need(length * layout.size, "{part}", part)
    if length <= KEPT_STRINGS:
        values = [_read_string(reader, part) for _ in range(length)]
        kept = tuple(value for value in values if isinstance(value, str))
        return kept if len(kept) == length else OmittedValue(holds="string", length=length)
    position, end = reader.position, len(reader.data)
    unpack, width = layout.unpack_from, layout.size
    for _ in range(length):  # the hot loop: half a million tokens and merges in a large header
        if position + width > end:
            refuse_truncated(reader.name, part, have_bytes=end, need_bytes=position + width)
        position += width + unpack(reader.data, position)[0]
    if position > end:
        refuse_truncated(reader.name, part, have_bytes=end, need_bytes=position)
    reader.position = position
    return OmittedValue(holds="string", length=length)


def _alignment(metadata: dict[str, MetadataValue], name: str) -> int:
    """Return `general.alignment` (32 when absent): a power of two, as ggml demands."""
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or not 1 <= value <= 2**20 or value & (value - 1):
        raise Malformed(
            "{field} has general.alignment {value}; it must be a power of two",
            field=name,
            value=shown(value),
        )
    return value


def _read_tensor(reader: _Reader, alignment: int) -> GgufTensor:
    label = reader.string("a tensor's name", MAX_TENSOR_NAME_BYTES)
    part = Note("", "tensor {name}", {"name": shown(label)})
    dimensions = reader.short_count("the dimensions of {part}", part, MAX_DIMENSIONS)
    shape = tuple(
        reader.long_count("a dimension of {part}", part, MAX_ELEMENTS) for _ in range(dimensions)
    )
    if math.prod(shape) > MAX_ELEMENTS:
        raise Malformed("{field} claims {value} elements for {part}", field=reader.name,
                        value=math.prod(shape), part=part)  # fmt: skip
    number = int(reader.scalar("I", "the type of {part}", part))
    offset = int(reader.scalar("Q", "the offset of {part}", part))
    if offset % alignment or offset > 2**62:
        raise Malformed(
            "{field} puts {part} at {offset}, which is no multiple of {alignment}",
            field=reader.name,
            part=part,
            offset=offset,
            alignment=alignment,
        )
    path = (reader.name, "tensors", label)
    kind = ggml_type(number, field=path)
    return GgufTensor(
        name=label,
        shape=shape,
        type=kind,
        offset_bytes=offset,
        size_bytes=kind.bytes_for(shape, field=path),
    )


def _check_tensors(tensors: tuple[GgufTensor, ...], name: str) -> None:
    """Refuse two tensors of one name, and two that share bytes."""
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise Malformed("{field} lists the tensor {tensor} twice", field=name,
                            tensor=shown(tensor.name))  # fmt: skip
        seen.add(tensor.name)
    end, before = 0, ""
    for tensor in sorted(tensors, key=lambda item: (item.offset_bytes, item.size_bytes)):
        if tensor.offset_bytes < end:
            raise Malformed(
                "{field} stores tensors {first} and {second} in the same bytes",
                field=name,
                first=shown(before),
                second=shown(tensor.name),
            )
        end, before = tensor.offset_bytes + tensor.size_bytes, tensor.name


def _split(metadata: dict[str, MetadataValue]) -> GgufSplit | None:
    """Return what the `split.*` keys say; None for a model in one file.

    llama.cpp's splitter writes `split.no`, `split.count` and `split.tensors.count`.
    """
    number, count = metadata.get("split.no"), metadata.get("split.count")
    if type(number) is not int or type(count) is not int or not 0 <= number < count:
        return None
    tensors = metadata.get("split.tensors.count")
    return GgufSplit(
        number=number, count=count, tensors_in_all=tensors if type(tensors) is int else None
    )
