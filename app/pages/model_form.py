"""The model and format fields that every calculator page shares, from a query string."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.api.model_input import pasted_model
from app.catalog import models
from app.domain.dtypes import DTYPES
from app.domain.errors import DomainError, Missing, OutOfRange, WrongType, shown
from app.readers.json_text import parse_json, parse_json_object

SOURCES = ("catalogue", "numbers", "config")
MAX_CONFIG_CHARACTERS = 2_000_000
MAX_DIGITS = 40
EXAMPLE_MODEL = "meta-llama/Llama-3.1-8B"
# Left out of a pasted config before it goes into an address: they say nothing about the cache.
_BULKY = ("quantization_config", "compression_config", "id2label", "label2id", "vision_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelForm:
    """What the fields hold, as text, so that a mistake can be shown as it was typed."""

    source: str
    model: str
    layers: str
    kv_heads: str
    head_dim: str
    v_head_dim: str
    config: str
    kv: str
    v: str


def model_form(query: Mapping[str, str]) -> ModelForm:
    """Return the form's fields, with the first example where nothing is given."""
    source = query.get("source", "")
    if source not in SOURCES:
        source = "config" if query.get("config") else "catalogue"
    return ModelForm(
        source=source,
        model=query.get("model", EXAMPLE_MODEL).strip(),
        layers=query.get("layers", "32").strip(),
        kv_heads=query.get("kv_heads", "8").strip(),
        head_dim=query.get("head_dim", "128").strip(),
        v_head_dim=query.get("v_head_dim", "").strip(),
        config=query.get("config", "").strip(),
        kv=query.get("kv", "fp16").strip(),
        v=query.get("v", "").strip(),
    )


def integer(field: str, text: str) -> int:
    """Return the integer that a field holds; spaces inside it are ignored.

    Raises:
        WrongType: for anything but an optional sign and digits.

    """
    plain = "".join(text.split())
    if not plain.isascii() or not plain.removeprefix("-").isdigit() or len(plain) > MAX_DIGITS:
        raise WrongType(
            "{field} must be a whole number, got {value}", field=field, value=shown(text)
        )
    return int(plain)


def model_body(form: ModelForm) -> dict[str, Any]:
    """Return the request's `model` and `kv_dtype` as the API takes them.

    Raises:
        DomainError: for a field whose text cannot be read.

    """
    body: dict[str, Any] = {"kv_dtype": {"k": form.kv, "v": form.v} if form.v else form.kv}
    if form.source == "catalogue":
        body["model"] = {"id": form.model}
    elif form.source == "numbers":
        numbers = {name: integer(name, getattr(form, name)) for name in ("layers", "kv_heads")}
        numbers["head_dim"] = integer("head_dim", form.head_dim)
        if form.v_head_dim:
            numbers["v_head_dim"] = integer("v_head_dim", form.v_head_dim)
        body["model"] = numbers
    else:
        body["model"] = pasted_model(parsed_config(form.config))
    return body


def parsed_config(text: str) -> dict[str, Any]:
    """Return a pasted config as an object.

    Raises:
        Missing: for an empty field.
        OutOfRange: for one that is too long.
        Malformed: for one that is not a JSON object, or names a key twice.

    """
    if not text:
        raise Missing("Paste a config.json here", field="config")
    if len(text) > MAX_CONFIG_CHARACTERS:
        raise OutOfRange("{field} must be at most {high} characters", field="config",
                         high=MAX_CONFIG_CHARACTERS)  # fmt: skip
    return parse_json_object(text, field="config")


def model_query(form: ModelForm) -> list[tuple[str, str]]:
    """Return the shortest query that gives the same model and formats."""
    kept: list[tuple[str, str]] = []
    if form.source == "catalogue":
        kept.append(("model", form.model))
    else:
        kept.append(("source", form.source))
        if form.source == "numbers":
            # An emptied field is kept as such: left out, it would come back as the example's.
            kept += [(name, getattr(form, name)) for name in ("layers", "kv_heads", "head_dim")]
            if form.v_head_dim:
                kept.append(("v_head_dim", form.v_head_dim))
        else:
            kept.append(("config", short_config(form.config)))
    kept.append(("kv", form.kv))
    if form.v:
        kept.append(("v", form.v))
    return kept


def short_config(text: str) -> str:
    """Return a config without white space and without what says nothing about the cache.

    One with a mistake stays as it was typed, so that a link to it shows the same mistake.
    """
    try:
        value = parse_json(text, field="config")
    except DomainError:
        return text
    if isinstance(value, dict):
        value = {key: item for key, item in value.items() if key not in _BULKY}
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def format_names() -> list[str]:
    """Return the formats that a page offers."""
    return list(DTYPES)


# Shown before anything is typed; the rest comes as one types.
POPULAR = (
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.3-70B-Instruct",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-R1",
    "google/gemma-3-27b-it",
    "openai/gpt-oss-20b",
    "openai/gpt-oss-120b",
    "mistralai/Mistral-7B-Instruct-v0.3",
    "zai-org/GLM-4.5",
)


def offered_models(typed: str = "", limit: int = 30) -> list[str]:
    """Return ids to offer for what is typed: every word must occur."""
    words = typed.casefold().split()
    if not words:
        known = models.index()
        return [model_id for model_id in POPULAR if model_id in known]
    found = (
        model_id
        for model_id in models.model_ids()
        if all(word in model_id.casefold() for word in words)
    )
    return [model_id for model_id, _ in zip(found, range(limit), strict=False)]
