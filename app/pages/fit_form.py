"""The fields of `/fit` as text, and the request that they make; shared with `/compare`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from app.api.fit_schemas import FitRequest
from app.domain.errors import WrongType, shown
from app.pages.model_form import ModelForm, integer, model_body, model_form, model_query
from app.readers.amounts import parse_bytes, parse_share, parse_signed_bytes
from app.readers.lengths import parse_lengths

WHOLE = {
    "tensor_parallel": "1",
    "pipeline_parallel": "1",
    "decode_context_parallel": "1",
    "data_parallel": "1",
    "expert_parallel": "1",
    "batch_tokens": "8192",
    "max_sequences": "256",
    "context_tokens": "8192",
    "concurrency": "16",
    "block_size": "",
}
# Figures of a log by field; `measured_weights` is told apart from what the weights are taken to be.
MEASURED = {
    "state": "state",
    "measured_weights": "weights",
    "activations": "activations",
    "framework": "framework",
    "communication": "communication",
    "cuda_graphs": "cuda_graphs",
}
DEFAULTS: Mapping[str, str] = {
    "device": "h100-sxm-80",
    "memory": "",
    "utilisation": "0.92",
    "engine": "none",
    "engine_version": "",
    **WHOLE,
    "layers_per_stage": "",
    "weights": "",
    "reserve": "",
    "eager": "",
    "lengths": "",
    "percentile": "99",
    **dict.fromkeys(MEASURED, ""),
    "host_memory": "",
    "host_bandwidth": "",
    "disk_memory": "",
    "disk_bandwidth": "",
    "disk_shared": "",
    "transfer_bandwidth": "",
}
FORM_FIELDS = (
    "model", "layers", "kv_heads", "head_dim", "v_head_dim", "config", "kv_dtype", *DEFAULTS,
)  # fmt: skip


def typed_fields(query: Mapping[str, str]) -> dict[str, str]:
    """Return every field's text, defaults where the query has none."""
    return {name: query.get(name, default).strip() for name, default in DEFAULTS.items()}


def fit_query(form: ModelForm, typed: Mapping[str, str]) -> str:
    """Return the shortest query that gives the same calculation."""
    kept = model_query(form)
    kept += [(name, " ".join(text.split())) for name, text in typed.items()
             if text != DEFAULTS[name]]  # fmt: skip
    return urlencode(kept)


def fit_body(form: ModelForm, typed: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of a request of `/fit`.

    Raises:
        DomainError: for a field whose text cannot be read.

    """
    body = model_body(form)
    for name, default in WHOLE.items():
        text = typed[name] or default
        if text and (text != "1" or default != "1"):
            body[name] = integer(name, text)
    body |= _place(typed) | _weights(typed)
    if typed["layers_per_stage"]:
        parts = typed["layers_per_stage"].replace(",", " ").split()
        body["layers_per_stage"] = [integer("layers_per_stage", part) for part in parts]
    measured = {
        name: (parse_signed_bytes if field == "state" else parse_bytes)(typed[field], field=field)
        for field, name in MEASURED.items()
        if typed[field]
    }
    if measured:
        body["measured"] = measured
    if typed["lengths"]:
        runs = parse_lengths(typed["lengths"]).runs
        body["lengths"] = [{"length": length, "count": count} for length, count in runs]
        body["percentile"] = float(_share("percentile", typed["percentile"]))
    return body | _beyond(typed)


def _place(typed: Mapping[str, str]) -> dict[str, Any]:
    """Return the device or its memory, the share of it, the engine, and what is kept free."""
    body: dict[str, Any] = {}
    if typed["memory"]:
        body["memory_bytes"] = parse_bytes(typed["memory"], field="memory")
    elif typed["device"]:
        body["device"] = typed["device"]
    if typed["utilisation"]:
        body["utilisation"] = float(_share("utilisation", typed["utilisation"]))
    if typed["engine"] != "none":
        body["engine"] = typed["engine"]
    if typed["engine_version"]:
        body["engine_version"] = typed["engine_version"]
    if typed["reserve"]:
        body["reserve_bytes"] = parse_bytes(typed["reserve"], field="reserve")
    if typed["eager"]:
        body["cuda_graphs"] = False
    return body


def _share(field: str, text: str) -> Any:
    """Return a share, or a percentile as it is typed: `99` and `99 %` are the same."""
    share = parse_share(text, field=field)
    return share * 100 if field == "percentile" and text.endswith("%") else share


def _weights(typed: Mapping[str, str]) -> dict[str, Any]:
    text = typed["weights"]
    if not text:
        return {}
    if text[:1].isdigit():
        return {"weights": {"bytes": parse_bytes(text, field="weights")}}
    return {"weights": {"format": text}}


def _beyond(typed: Mapping[str, str]) -> dict[str, Any]:
    """Return the tiers beyond the device and the link to another server."""
    body: dict[str, Any] = {}
    tiers = []
    for name in ("host", "disk"):
        if typed[f"{name}_memory"]:
            tier = {
                "name": name,
                "capacity_bytes": parse_bytes(typed[f"{name}_memory"], field=f"{name}_memory"),
                "bandwidth_bytes_per_s": _bandwidth(typed, f"{name}_bandwidth"),
            }
            if typed.get(f"{name}_shared"):
                tier["shared"] = True
            tiers.append(tier)
    if tiers:
        body["tiers"] = tiers
    if typed["transfer_bandwidth"]:
        body["transfer"] = {"bandwidth_bytes_per_s": _bandwidth(typed, "transfer_bandwidth")}
    return body


def _bandwidth(typed: Mapping[str, str], field: str) -> int:
    text = typed[field].casefold().removesuffix("/s").strip()
    if not text:
        raise WrongType("{field} must be a rate such as 25 GB/s, got {value}", field=field,
                        value=shown(typed[field]))  # fmt: skip
    return parse_bytes(text, field=field)


def request_of(query: Mapping[str, str]) -> tuple[FitRequest, dict[str, Any]]:
    """Return the checked request of a query, and its body.

    Raises:
        DomainError: for a field whose text cannot be read.
        ValidationError: for one that is out of bounds.

    """
    body = fit_body(model_form(query), typed_fields(query))
    return FitRequest.model_validate(body), body
