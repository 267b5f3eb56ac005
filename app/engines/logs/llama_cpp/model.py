"""A model from a llama.cpp log: the header that the loader lists, the geometry that it prints.

Where a paste holds neither, the file's own `general.name` is left. It is no id: whoever looks it up
says that the model was taken from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from app.domain.errors import DomainError
from app.engines.logs.kinds import LLAMA_CPP, Kind, Reads, read_kinds
from app.engines.logs.text import LogText
from app.engines.model import EngineModel
from app.readers.gguf_model import read_gguf_model

_MOST_ELEMENTS = 1_000
_INTEGER = re.compile(r"-?\d{1,18}")
# Names in the geometry lines and the keys of a header that say the same.
_GEOMETRY: Mapping[str, str] = {
    "n_layer": "block_count",
    "n_layer_all": "block_count",
    "n_embd": "embedding_length",
    "n_head": "attention.head_count",
    "n_head_kv": "attention.head_count_kv",
    "n_embd_head_k": "attention.key_length",
    "n_embd_head_v": "attention.value_length",
    "n_embd_head_k_mla": "attention.key_length_mla",
    "n_embd_head_v_mla": "attention.value_length_mla",
    "n_swa": "attention.sliding_window",
    "n_lora_kv": "attention.kv_lora_rank",
    "n_rot": "rope.dimension_count",
    "n_ctx_train": "context_length",
    "ssm_d_conv": "ssm.conv_kernel",
    "ssm_d_inner": "ssm.inner_size",
    "ssm_d_state": "ssm.state_size",
    "ssm_n_group": "ssm.group_count",
    "ssm_dt_rank": "ssm.time_step_rank",
}


GENERAL_NAME = Kind(
    "general_name",
    b"general.name",
    re.compile(r"general\.name\s{0,60}(?:str\s{0,20})?[=:]\s{0,4}(\S.{0,199})", re.IGNORECASE),
)


def describes_model(log: LogText) -> bool:
    """Say whether the log lists the header or the geometry of its model."""
    return model_of_log(read_kinds(log, LLAMA_CPP)[0]) is not None


def names_in(log: LogText) -> list[str]:
    """Return what the files in the log call their models."""
    return _names(read_kinds(log, (GENERAL_NAME,))[0])


def _names(reads: Reads) -> list[str]:
    texts = [(found.groups[0] or "").strip(" '\"") for found in reads.get("general_name", ())]
    return list(dict.fromkeys(text for text in texts if text))


def model_of_log(reads: Reads) -> EngineModel | None:
    """Return the model whose header or geometry the log lists; None where it lists too little."""
    header = _header(reads)
    kv = header if _enough(header) else {**_geometry(reads, header), **header}
    if not _enough(kv):
        return None
    name = next(iter(_names(reads)), kv.get("general.name") or kv.get("general.basename") or "")
    try:
        reading = read_gguf_model(kv)
    except DomainError:
        return EngineModel(name=str(name), gguf=kv)
    return EngineModel(
        name=str(name), gguf=kv, state=reading.state, max_context_tokens=reading.max_context_tokens
    )


def _enough(kv: Mapping[str, object]) -> bool:
    arch = kv.get("general.architecture")
    return isinstance(arch, str) and f"{arch}.block_count" in kv


def _header(reads: Reads) -> dict[str, object]:
    """Return the key–values that the loader lists; those it cuts short are left out."""
    kv: dict[str, object] = {}
    for found in reads.get("metadata", ()):
        key, kind, text = (group or "" for group in found.groups)
        value = _value(kind, text.strip())
        if value is not None:
            kv.setdefault(key, value)
    return kv


def _value(kind: str, text: str) -> object:
    if kind.startswith("arr["):
        return _list(text) if "i" in kind or "u" in kind or "bool" in kind else None
    if kind == "str":
        return None if text.endswith("...") else text
    if kind == "bool":
        return text.startswith("true")
    if kind.startswith(("u", "i")) and _INTEGER.fullmatch(text):
        return int(text)
    return None


def _list(text: str) -> list[int] | list[bool] | None:
    """Return a list that is printed whole."""
    if not text.startswith("[") or not text.endswith("]") or "..." in text:
        return None
    parts = [part.strip() for part in text[1:-1].split(",")][:_MOST_ELEMENTS]
    if all(part in ("true", "false") for part in parts):
        return [part == "true" for part in parts]
    if all(_INTEGER.fullmatch(part) for part in parts):
        return [int(part) for part in parts]
    return None


def _geometry(reads: Reads, header: Mapping[str, object]) -> dict[str, object]:
    """Return the header that the geometry lines amount to; a listed one may say of what kind."""
    said: dict[str, str] = {}
    for code in ("print_info", "print_meta"):
        for found in reads.get(code, ()):
            name, text = (group or "" for group in found.groups)
            said.setdefault(name, text.strip())
    arch = said.get("arch") or str(header.get("general.architecture", ""))
    kv: dict[str, object] = {"general.architecture": arch} if arch else {}
    for name, key in _GEOMETRY.items():
        text = said.get(name, "")
        value: object = _list(text)
        if value is None and _INTEGER.fullmatch(text):
            value = int(text)
        if value is not None and value != 0:
            kv[f"{arch}.{key}"] = value
    return kv
