"""A stream of bytes as numbered lines, each of bounded length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from app.readers.trace_errors import TraceMistake

MAX_LINE_BYTES = 16 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024

_BOM = b"\xef\xbb\xbf"
# First bytes of what looks like a log by its name and is none yet.
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"PK\x03\x04": "ZIP",
}


def pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of at most a mebibyte, none of them empty."""
    for chunk in chunks:
        for start in range(0, len(chunk), _PIECE_BYTES):
            yield chunk[start : start + _PIECE_BYTES]


def numbered_lines(
    chunks: Iterable[bytes], read: Callable[[int], None]
) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text) of each line that is not blank.

    `read` is told of the number of bytes after each piece whose lines have been yielded.

    Raises:
        TraceMistake: for a line of more than MAX_LINE_BYTES (before it is held as a whole), bytes
            that are not UTF-8 text, or a file that is packed.

    """
    number = 1
    held: list[bytes] = []
    held_bytes = 0
    for piece in pieces(chunks):
        *ended, rest = piece.split(b"\n")
        if ended:
            ended[0] = b"".join((*held, ended[0]))
            held, held_bytes = [], 0
        for line in ended:
            if text := _text(line, number):
                yield number, text
            number += 1
        held.append(rest)
        held_bytes += len(rest)
        if held_bytes > MAX_LINE_BYTES:
            raise TraceMistake(
                "line {line} is longer than {high} bytes", line=number, high=MAX_LINE_BYTES
            )
        read(len(piece))
    if text := _text(b"".join(held), number):
        yield number, text


def _text(line: bytes, number: int) -> str:
    if len(line) > MAX_LINE_BYTES:
        raise TraceMistake(
            "line {line} is longer than {high} bytes", line=number, high=MAX_LINE_BYTES
        )
    if number == 1:
        line = line.removeprefix(_BOM)
        for magic, packing in _PACKED.items():
            if line.startswith(magic):
                raise TraceMistake(
                    "line {line}: this is {packing} data; unpack it first",
                    line=number,
                    packing=packing,
                )
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise TraceMistake("line {line} is not UTF-8 text but binary data", line=number)
    return text.strip()
