"""Any file that says what a model is: config.json, a GGUF's or safetensors' first bytes, an index.

`read_model_files` takes one or several (a config and the header of its weights) and says which each
is by its first bytes, never by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from app.domain.errors import Conflict, Malformed, OutOfRange, shown
from app.domain.notes import Note
from app.readers.gguf import GgufHeader, OmittedValue, read_gguf
from app.readers.gguf_model import read_gguf_model
from app.readers.headers import MAX_FILES
from app.readers.hf_config import read_config
from app.readers.json_text import parse_json_object
from app.readers.reading import ModelReading
from app.readers.safetensors import (
    SafetensorsHeader,
    SafetensorsIndex,
    read_safetensors,
    read_safetensors_index,
)

CONFIG, GGUF, SAFETENSORS, INDEX = "config", "gguf", "safetensors", "safetensors_index"
LONGEST_NAME = 200
_GGUF_MAGIC = b"GGUF"
_LENGTH_BYTES = 8
_LONGEST_FILE_BYTES = 2**43
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeTotal:
    """What is stored in one type."""

    type: str
    tensors: int
    parameters: int
    size_bytes: int

    def plus(self, other: TypeTotal) -> TypeTotal:
        """Return both together."""
        return TypeTotal(
            type=self.type,
            tensors=self.tensors + other.tensors,
            parameters=self.parameters + other.parameters,
            size_bytes=self.size_bytes + other.size_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWeights:
    """Weights as files hold them.

    `basis` is "header" where tensors were added up, "index" where a total is what its writer
    declared (then there is nothing by type). `file_bytes` is how long the files must be, headers
    included, where that is known.
    """

    basis: str
    files: int
    tensors: int
    by_type: tuple[TypeTotal, ...] = ()
    size_bytes: int | None = None
    parameters: int | None = None
    file_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFile:
    """One file: what it is, how much of it was given, and all that it says."""

    name: str
    format: str
    given_bytes: int
    says: Mapping[str, object]
    omitted: Mapping[str, OmittedValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """All files together; `reading` is None where none of them says what layers keep."""

    files: tuple[ReadFile, ...]
    reading: ModelReading | None
    config: Mapping[str, object] | None
    weights: FileWeights | None
    notes: tuple[Note, ...]


def read_model_files(
    files: Sequence[tuple[str, bytes]], *, encoder_tokens: int | None = None
) -> ModelFiles:
    """Return what these files say, each given as (name, first bytes).

    Raises:
        Malformed: for a file that is none of the four kinds, or a damaged one.
        HeaderTruncated: when more of a file is needed; it says how many bytes.
        Conflict: for two files that each say what layers keep.
        DomainError: when a config or header does not decide what layers keep.

    """
    if not 1 <= len(files) <= MAX_FILES:
        raise OutOfRange("{field} must be 1 to {high} files, got {value}", field="file",
                         high=MAX_FILES, value=len(files))  # fmt: skip
    gathered = _Gathered(encoder_tokens=encoder_tokens)
    for name, data in files:
        gathered.add(name, data)
    return gathered.result()


def merged(rows: Iterable[TypeTotal]) -> tuple[TypeTotal, ...]:
    """Return totals by type, in order of first appearance."""
    sums: dict[str, TypeTotal] = {}
    for row in rows:
        before = sums.get(row.type)
        sums[row.type] = row if before is None else before.plus(row)
    return tuple(sums.values())


def weights_of_types(
    by_type: tuple[TypeTotal, ...], *, files: int, file_bytes: int | None = None
) -> FileWeights:
    """Return weights whose tensors were added up."""
    return FileWeights(
        basis="header",
        files=files,
        tensors=sum(total.tensors for total in by_type),
        by_type=by_type,
        size_bytes=sum(total.size_bytes for total in by_type),
        parameters=sum(total.parameters for total in by_type),
        file_bytes=file_bytes,
    )


def types_of_header(header: SafetensorsHeader) -> tuple[TypeTotal, ...]:
    """Return what one safetensors file holds by dtype."""
    return tuple(
        TypeTotal(type=total.dtype, tensors=total.tensors, parameters=total.elements,
                  size_bytes=total.size_bytes)
        for total in header.by_dtype
    )  # fmt: skip


def weights_of_index(index: SafetensorsIndex) -> FileWeights:
    """Return what an index declares of its shards."""
    return FileWeights(
        basis="index",
        files=len(index.tensors_by_shard),
        tensors=index.tensors,
        size_bytes=index.total_size_bytes,
        parameters=index.total_parameters,
    )


@dataclass(slots=True, kw_only=True)
class _Gathered:
    """What has been read so far."""

    encoder_tokens: int | None
    files: list[ReadFile] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    headers: list[SafetensorsHeader] = field(default_factory=list)
    ggufs: list[GgufHeader] = field(default_factory=list)
    index: SafetensorsIndex | None = None
    reading: ModelReading | None = None
    config: Mapping[str, object] | None = None
    names: set[str] = field(default_factory=set)

    def add(self, name: str, data: bytes) -> None:
        """Read one file as what its first bytes say it is."""
        start = data[:64].removeprefix(_BOM).lstrip()
        if data.startswith(_GGUF_MAGIC):
            self._add_gguf(name, data)
        elif start.startswith(b"{") and b'"weight_map"' in data:
            self._add_index(name, data)
        elif start.startswith(b"{"):
            self._add_json(name, data)
        elif _looks_like_safetensors(data):
            header = read_safetensors(data, name="file")
            self._note_names(tensor.name for tensor in header.tensors)
            self._note_file(name, SAFETENSORS, data, header.metadata)
            self.headers.append(header)
        else:
            raise Malformed(
                "{field}: {name} is no config.json, no GGUF, and no safetensors file or index",
                field="file",
                name=shown(name),
            )

    def _add_gguf(self, name: str, data: bytes) -> None:
        """Read a GGUF; parts of a split after the first hold tensors alone."""
        header = read_gguf(data, name="file")
        self._note_names(tensor.name for tensor in header.tensors)
        self._note_file(name, GGUF, data, header.metadata, header.omitted)
        self.ggufs.append(header)
        if header.split is None or header.split.number == 0:
            self._set_reading(read_gguf_model(header.metadata))

    def _add_index(self, name: str, data: bytes) -> None:
        if self.index is not None:
            raise Conflict("{field}: two indexes of shards are given", field="file")
        self.index = read_safetensors_index(data, name="file")
        says: dict[str, object] = {
            "total_size": self.index.total_size_bytes,
            "total_parameters": self.index.total_parameters,
            "tensors_by_shard": self.index.tensors_by_shard,
        }
        self._note_file(name, INDEX, data, says)

    def _add_json(self, name: str, data: bytes) -> None:
        """Read a config, or a GGUF's key-values as JSON (as the API takes them)."""
        value = parse_json_object(data, field="file")
        if "general.architecture" in value:
            self._note_file(name, GGUF, data, value)
            self._set_reading(read_gguf_model(value))
            return
        self._note_file(name, CONFIG, data, value)
        self._set_reading(read_config(value, encoder_tokens=self.encoder_tokens))
        self.config = value

    def _note_names(self, names: Iterable[str]) -> None:
        """Remember a file's tensors; a checkpoint has each of them once."""
        for name in names:
            if name in self.names:
                raise Conflict("{field}: the tensor {name} is in two of the files; give each once",
                               field="file", name=shown(name))  # fmt: skip
            self.names.add(name)

    def _note_file(
        self,
        name: str,
        kind: str,
        data: bytes,
        says: Mapping[str, object],
        omitted: Mapping[str, OmittedValue] | None = None,
    ) -> None:
        self.files.append(
            ReadFile(name=name[:LONGEST_NAME], format=kind, given_bytes=len(data), says=says,
                     omitted=omitted or {})
        )  # fmt: skip

    def _set_reading(self, reading: ModelReading) -> None:
        if self.reading is not None:
            raise Conflict("{field}: two of the files say what layers keep; give one of them",
                           field="file")  # fmt: skip
        self.reading = reading

    def result(self) -> ModelFiles:
        """Return all of it, the weights added up."""
        if self.ggufs and (self.headers or self.index or self.config):
            raise Conflict("{field}: a GGUF and a checkpoint's own files are two models",
                           field="file")  # fmt: skip
        weights = self._gguf_weights() if self.ggufs else self._safetensors_weights()
        return ModelFiles(
            files=tuple(self.files),
            reading=self.reading,
            config=self.config,
            weights=weights,
            notes=tuple(self.notes),
        )

    def _gguf_weights(self) -> FileWeights | None:
        by_type = merged(
            TypeTotal(type=tensor.type.name, tensors=1, parameters=tensor.parameters,
                      size_bytes=tensor.size_bytes)
            for header in self.ggufs for tensor in header.tensors
        )  # fmt: skip
        split = self.ggufs[0].split
        if split is not None and len(self.ggufs) < split.count:
            self._note_parts(split.count, len(self.ggufs))
        if not by_type:
            return None
        file_bytes = sum(header.file_bytes for header in self.ggufs)
        return weights_of_types(by_type, files=len(self.ggufs), file_bytes=file_bytes)

    def _safetensors_weights(self) -> FileWeights | None:
        index, read = self.index, len(self.headers)
        if index is not None and read < len(index.tensors_by_shard):
            if read:
                self.notes.append(
                    Note(
                        "total_declared",
                        "The index names {count} files, and the headers of {given} were read: the "
                        "total is the one that the index declares.",
                        {"count": len(index.tensors_by_shard), "given": read},
                    )
                )
            return weights_of_index(index)
        if not read:
            return None
        by_type = merged(total for header in self.headers for total in types_of_header(header))
        file_bytes = sum(header.file_bytes for header in self.headers)
        return weights_of_types(by_type, files=read, file_bytes=file_bytes)

    def _note_parts(self, count: int, given: int) -> None:
        self.notes.append(
            Note(
                "parts_missing",
                "The model is split over {count} files, and {given} of them were read: the weights "
                "are those of what was read.",
                {"count": count, "given": given},
            )
        )


def _looks_like_safetensors(data: bytes) -> bool:
    """Return whether the bytes begin with a length that a file could have, and a JSON object."""
    if len(data) <= _LENGTH_BYTES:
        return False
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    return data[_LENGTH_BYTES : _LENGTH_BYTES + 1] == b"{" and length < _LONGEST_FILE_BYTES
