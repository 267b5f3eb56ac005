"""Builds the catalogue's data files: `python -m app.catalog.build CONFIGS.jsonl DEVICES.json`.

CONFIGS.jsonl has a line a checkpoint: `hf_id`, `config`, `confidence`, `source`, `note`,
`num_params`, `agreeing_sources`, `conflict`. Facts are copied; lists of a quantisation config that
say nothing about what a layer keeps (names of modules) are reduced to their length.

Without arguments only the index is made anew, from the configs that the catalogue holds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from app.catalog.models import CONFIGS, INDEX, summary_of

LONGEST_KEPT_LIST = 64


def source_of(source: Mapping[str, Any]) -> dict[str, str]:
    """Return where an entry's config is public: a URL where there is one, and what lies there."""
    kind = source["kind"]
    what = str(source.get("what", "")).split(";")[0]
    if kind == "github":
        at = source.get("commit") or "HEAD"
        url = f"https://github.com/{source['repo']}/blob/{at}/{source['path']}"
        return {"what": what, "url": url}
    if kind == "pypi":
        url = f"https://pypi.org/project/{source['package']}/{source['version']}/"
        return {"what": f"{what} ({source['path']})", "url": url}
    return {"what": what, "url": source["url"]}


def _reduced(quantization: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in quantization.items():
        long_list = isinstance(value, list) and len(value) > LONGEST_KEPT_LIST
        long_dict = isinstance(value, dict) and len(json.dumps(value)) > LONGEST_KEPT_LIST * 32
        if long_list or long_dict:
            kept[f"{key}_count"] = len(value)
        else:
            kept[key] = value
    return kept


def entry_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a catalogue entry of one input row."""
    config = dict(row["config"])
    if isinstance(config.get("quantization_config"), dict):
        config["quantization_config"] = _reduced(config["quantization_config"])
    parameters = row.get("num_params") or {}
    return {
        "id": row["hf_id"],
        "confidence": row["confidence"],
        "source": source_of(row["source"]),
        "note": row.get("note") or "",
        "parameters": parameters.get("value"),
        "parameters_source": parameters.get("source", ""),
        "agreeing_sources": len(row.get("agreeing_sources") or ()),
        "differing_sources": len(row.get("conflict") or ()),
        "config": config,
    }


def write_configs(rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the entries, one a line, sorted by id."""
    entries = sorted((entry_of(row) for row in rows), key=lambda entry: entry["id"].casefold())
    lines = [json.dumps(entry, ensure_ascii=False, separators=(",", ":")) for entry in entries]
    CONFIGS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_index() -> None:
    """Write the index: where each entry lies, and what a listing shows of it."""
    index = []
    offset = 0
    for line in CONFIGS.read_bytes().splitlines(keepends=True):
        entry = json.loads(line)
        index.append({**summary_of(entry), "offset": offset, "size": len(line)})
        offset += len(line)
    rows = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in index)
    INDEX.write_text(f"[\n{rows}\n]\n", encoding="utf-8")


def write_devices(path: Path) -> None:
    """Write the devices, one a line, as they are given."""
    from app.catalog.devices import DEVICES  # noqa: PLC0415 - only this step needs it

    rows = json.loads(path.read_text(encoding="utf-8"))
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
    DEVICES.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Build from the given files, or only the index."""
    if arguments:
        rows = Path(arguments[0]).read_text(encoding="utf-8").splitlines()
        write_configs(json.loads(row) for row in rows)
    if len(arguments) > 1:
        write_devices(Path(arguments[1]))
    write_index()


if __name__ == "__main__":
    main(sys.argv[1:])
