"""The settings of a llama.cpp context, as its log shows them: lines before the command."""

from __future__ import annotations

import re
from collections.abc import Mapping

from app.engines.logs.arguments import Arguments
from app.engines.logs.kinds import Found, Reads

_FLAGS = {
    "1": True, "true": True, "enabled": True, "on": True,
    "0": False, "false": False, "disabled": False, "off": False,
}  # fmt: skip
_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "n_ctx": ("ctx_size", "c"),
    "n_seq_max": ("parallel", "np"),
    "n_batch": ("batch_size", "b"),
    "n_ubatch": ("ubatch_size", "ub"),
    "mla": ("mla", "mla_use"),
}
_TYPES: Mapping[str, tuple[str, ...]] = {
    "cache_type_k": ("cache_type_k", "ctk"),
    "cache_type_v": ("cache_type_v", "ctv"),
}
_LINES = (("context", "n_ctx"), ("sequences", "n_seq_max"), ("batch", "n_batch"),
          ("ubatch", "n_ubatch"))  # fmt: skip
_SWITCHES = (("flash", "flash_attn"), ("unified", "kv_unified"), ("swa_full", "swa_full"))

Settings = dict[str, object]


def known_settings(reads: Reads, arguments: Arguments, given: Mapping[str, object]) -> Settings:
    """Return what the log says of its context, under what the request says."""
    settings: Settings = {}
    for name, spellings in _NUMBERS.items():
        value = arguments.integer(*spellings, high=2**30)
        if value:
            settings[name] = value
    for name, spellings in _TYPES.items():
        text = arguments.text(*spellings)
        if text is not None and re.fullmatch(r"\w{2,8}", text):
            settings[name] = text
    _from_context(reads, settings)
    _from_announcement(reads, settings)
    _from_sizes(reads, settings)
    for name in ("n_ctx", "n_seq_max"):
        if settings.get(name) == 0:
            del settings[name]
    settings.update({key: value for key, value in given.items() if value is not None})
    return settings


def said_version(reads: Reads) -> str | None:
    """Return the build that the log names."""
    for found in reads.get("build", ()):
        return f"b{found.groups[0]}"
    for found in reads.get("build_info", ()):
        return found.groups[0]
    return None


def _from_context(reads: Reads, settings: Settings) -> None:
    """Take what the lines of the context say."""
    for code, name in _LINES:
        value = _own_value(reads, code, name)
        if value:
            settings[name] = value
    for code, name in _SWITCHES:
        for found in reads.get(code, ()):
            flag = _FLAGS.get((found.groups[0] or "").lower())
            if flag is not None:
                settings.setdefault(name, flag)


def _own_value(reads: Reads, code: str, name: str) -> int | None:
    """Return a number whose name is exactly this one (n_ctx, not n_ctx_train)."""
    for found in reads.get(code, ()):
        if found.groups[0] == name:
            return int(found.groups[1] or 0)
    return None


def _from_announcement(reads: Reads, settings: Settings) -> None:
    """Take what the line says that comes before a cache of the years of one cache."""
    for found in reads.get("announced", ()):
        cells, offload, key, value_type, _ = found.groups
        settings.setdefault("n_ctx", int(cells or 0))
        settings.setdefault("cache_type_k", key)
        settings.setdefault("cache_type_v", value_type)
        if offload == "0":
            settings.setdefault("kv_offload", False)
    for found in reads.get("old_shape", ()):
        settings.setdefault("n_ctx", int(found.groups[0] or 0))


def _from_sizes(reads: Reads, settings: Settings) -> None:
    """Take from the size lines what they show: the longest cache, slots, streams and types."""
    longest = 0
    for found in reads.get("size", ()):
        if found.groups[6] == "R":
            _from_states(found, settings)
            continue
        _from_size(found, settings)
        longest = max(longest, int(found.groups[1] or 0) * int(found.groups[4] or 1))
    for found in reads.get("self_size", ()):
        _, _, kind, key_type, _, second, value_type, _ = found.groups
        if kind is not None and key_type:
            settings.setdefault("cache_type_k", key_type)
        if second is not None and value_type:
            settings.setdefault("cache_type_v", value_type)
    if longest:
        settings.setdefault("n_ctx", longest)
    for found in reads.get("creating", ()):
        if "non-SWA" in (found.groups[0] or "") and int(found.groups[1] or 0):
            settings.setdefault("n_ctx", int(found.groups[1] or 0))


def _from_states(found: Found, settings: Settings) -> None:
    sequences, rollback = found.groups[3], found.groups[5]
    if sequences:
        settings.setdefault("n_seq_max", int(sequences))
    if rollback is not None and int(rollback):
        settings.setdefault("n_rs_seq", int(rollback))


def _from_size(found: Found, settings: Settings) -> None:
    sequences, streams = found.groups[3], found.groups[4]
    if sequences:
        settings.setdefault("n_seq_max", int(sequences))
    if streams and sequences and int(streams) == 1 and int(sequences) > 1:
        settings.setdefault("kv_unified", True)
    for name, own in (
        ("cache_type_k", found.groups[7] or _type_in(found, "K")),
        ("cache_type_v", found.groups[10] or _type_in(found, "V")),
    ):
        if own:
            settings.setdefault(name, own)


def _type_in(found: Found, name: str) -> str | None:
    """Return the type that a line names beside K or V, also without a size."""
    match = re.search(rf"\b{name} \((\w{{2,8}})\)", found.line.text)
    return match[1] if match else None
