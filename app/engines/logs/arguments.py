"""Settings as a log shows them: in a dictionary or a call of arguments, or as a command's flags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from app.engines.logs.text import LogText

# Where arguments name the model, best first.
MODEL_FIELDS = ("model", "model_path", "model_tag", "served_model_name")
# A line of arguments is long; what decides the cache stands within this of its beginning.
_REACH = 16_000
_MOST_CHARACTERS = 256_000
_WORDS = (
    b"non-default args", b"config: model=", b"namespace(", b"vllm serve", b"vllm.entrypoints",
    b"--tensor-parallel", b"--max-model-len", b"--kv-cache", b"--max-num", b"--speculative",
    b"server_args=", b"sglang.launch_server", b"--tp", b"--mem-fraction", b"engineargs(",
    b"llama-server", b"llama-cli", b"--ctx-size", b"--cache-type", b"--parallel", b"--model ",
    b"--gpu-memory", b"--block-size", b"ollama", b"starting to load model", b"serving model",
    b"model   ",
)  # fmt: skip
_PAIR = re.compile(
    # Ollama's layers.model counts the model's layers.
    r"[\"']?\b(?<!layers\.)([A-Za-z]\w{1,50})[\"']?\s?(?:=|:)\s?"
    # A word that a value follows is a name itself: "with config: model='…'".
    r"(?:'([^'\n]{0,300})'|\"([^\"\n]{0,300})\"|(-?[\w./+-]{1,200}+)(?!\s?=))"
)
# A dictionary writes its pairs 'name': value, and so does a JSON value of a flag.
_FLAG = re.compile(
    r"(?<![\w-])(--?[a-zA-Z][\w-]{0,50})(?:(?:=|\s{1,4})(?:'([^'\n]{1,600})'|\"([^\"\n]{1,600})\""
    r"|((?!--?[a-zA-Z])[^\s'\"]{1,300})))?"
)
# Lines that name the model in words: a command, the loader's, the greeting in one line, and the
# banner, where the name stands alone behind the word (block characters may stand before).
_SERVED = re.compile(
    r"\bvllm serve\s{1,4}(?!-)([\w./:@-]{1,300})"
    r"|\bStarting to load model\s{1,4}([\w./:@-]{1,300}?)\.{0,3}(?:\s|$)"
    r"|\bserving model\s{1,4}([\w./:@-]{1,300})"
    r"|(?:^|[\u2580-\u259f\]])\s{0,12}model\s{3,8}([\w./:@-]{1,300})\s{0,8}$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Names (underscores, lower case) and their values as texts; the first that is seen stays."""

    values: Mapping[str, str] = field(default_factory=dict)

    def text(self, *names: str) -> str | None:
        """Return the first of these that is given and not None."""
        for name in names:
            value = self.values.get(name)
            if value is not None and value not in ("None", "null", ""):
                return value
        return None

    def integer(self, *names: str, high: int = 2**53) -> int | None:
        """Return the first of these that is a whole number from 0 to `high`."""
        for name in names:
            value = self.values.get(name, "")
            if value.isascii() and value.isdigit() and len(value) < 18 and int(value) <= high:  # noqa: PLR2004
                return int(value)
        return None

    def number(self, *names: str) -> float | None:
        """Return the first of these that is a decimal number, not negative."""
        for name in names:
            value = self.values.get(name, "")
            if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", value):
                return float(value)
        return None

    def flag(self, name: str) -> bool | None:
        """Return a truth value, also of `--name` and `--no-name` without a value."""
        value = self.values.get(name, "").lower()
        if value in ("true", "1", "on", "yes"):
            return True
        return False if value in ("false", "0", "off", "no") else None


def read_arguments(log: LogText, first: int = 1, end: int | None = None) -> Arguments:
    """Return what the argument lines and commands of a log say.

    Of its lines only those from number `first` on, up to but without `end`.
    """
    lines, _ = log.found(_WORDS, after=_REACH)
    seen: dict[int, str] = {}
    for own in lines.values():
        for line in own[:32]:
            if line.number < first or (end is not None and line.number >= end):
                continue
            if len(line.text) > len(seen.get(line.number, "")):
                seen[line.number] = line.text
    values: dict[str, str] = {}
    budget = _MOST_CHARACTERS
    for text in seen.values():
        budget -= len(text)
        if budget < 0:
            break
        served = _SERVED.search(text)
        if served is not None:
            values.setdefault("model", served[served.lastindex or 1])
        _pairs(text, values)
        _flags(text, values)
    return Arguments(values=values)


def _pairs(text: str, values: dict[str, str]) -> None:
    for name, single, double, plain in _PAIR.findall(text):
        value = single or double or plain
        if value or not plain:
            values.setdefault(name.lower(), value)


def _flags(text: str, values: dict[str, str]) -> None:
    for name, single, double, plain in _FLAG.findall(text):
        key = name.lstrip("-").replace("-", "_").lower()
        value = single or double or plain.rstrip(",;")
        if not value:
            negated = key.startswith("no_") and name.startswith("--")
            values.setdefault(key.removeprefix("no_") if negated else key,
                              "false" if negated else "true")  # fmt: skip
            continue
        if value.startswith("{"):
            _pairs(value.replace("\\", ""), values)
        values.setdefault(key, value)


def model_names(arguments: Arguments, names: Iterable[str]) -> list[str]:
    """Return what may name the model, best first: Hub ids and the ends of paths."""
    found: list[str] = []
    for name in names:
        value = arguments.text(name)
        if value is None:
            continue
        hub = re.search(r"models--([\w.-]{1,96})--([\w.-]{1,96})", value)
        if hub is not None:
            found.append(f"{hub[1]}/{hub[2]}")
        parts = [part for part in value.replace("\\", "/").split("/") if part]
        if len(parts) >= 2:  # noqa: PLR2004 - an owner and a name
            found.append("/".join(parts[-2:]))
        found += parts[-1:]
    return list(dict.fromkeys(found))
