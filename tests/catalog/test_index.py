"""The catalogue's index says what the readers say now, and reads its entries where they lie."""

from __future__ import annotations

import json

import pytest

from app.catalog import build, models
from app.domain.context_table import CONTEXT_TOKENS, context_table
from app.domain.dtypes import dtype_named
from app.domain.errors import DomainError, Unknown
from app.domain.formats import KvFormats

ROWS = list(models.index().values())


def test_there_are_entries() -> None:
    """572 public checkpoints, in the order of their ids."""
    assert len(ROWS) == 572
    ids = [row["id"] for row in ROWS]
    assert ids == sorted(ids, key=str.casefold)


def test_the_index_is_what_the_readers_say_now() -> None:
    """Every line of it, made anew from the configs: `python -m app.catalog.build` makes it so."""
    stale = []
    for row in ROWS:
        entry = models.entry(row["id"])
        now = json.loads(json.dumps(models.summary_of(entry)))
        if now != {key: value for key, value in row.items() if key not in ("offset", "size")}:
            stale.append(row["id"])
    assert stale == []


def test_most_entries_are_read_and_the_others_say_why() -> None:
    """What is not read names the field of its config, and the reason."""
    unread = [row for row in ROWS if not row["readable"]]
    assert len(unread) <= 60
    assert all(row["field"] and row["reason"] for row in unread)
    assert all(row["field"] in row["reason"] for row in unread)


def test_an_entry_is_read_where_the_index_points() -> None:
    """First, last and one in the middle have their own id, a config and a source."""
    for row in (ROWS[0], ROWS[300], ROWS[-1]):
        entry = models.entry(row["id"])
        assert entry["id"] == row["id"]
        assert entry["config"]
        assert entry["source"]["url"].startswith("https://")


def test_upper_and_lower_case_are_alike() -> None:
    """An id typed in small letters finds its entry; another is refused."""
    assert models.entry("meta-llama/llama-3.1-8b")["id"] == "meta-llama/Llama-3.1-8B"
    with pytest.raises(Unknown, match="572 models"):
        models.entry("nobody/nothing")


def test_a_refusal_names_the_field_of_the_config() -> None:
    """An entry that is not read is refused under its config."""
    unread = next(row["id"] for row in ROWS if not row["readable"])
    with pytest.raises(DomainError) as caught:
        models.read_entry(unread)
    assert caught.value.field[0] == "config"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"kind": "github", "repo": "a/b", "path": "c.json", "commit": "1f", "what": "copy; more"},
         {"what": "copy", "url": "https://github.com/a/b/blob/1f/c.json"}),
        ({"kind": "github", "repo": "a/b", "path": "c.json"},
         {"what": "", "url": "https://github.com/a/b/blob/HEAD/c.json"}),
        ({"kind": "pypi", "package": "p", "version": "1", "path": "x.py", "what": "table"},
         {"what": "table (x.py)", "url": "https://pypi.org/project/p/1/"}),
        ({"kind": "page", "url": "https://example.org/x", "what": "page"},
         {"what": "page", "url": "https://example.org/x"}),
    ],
)  # fmt: skip
def test_sources_become_addresses(source: dict[str, str], expected: dict[str, str]) -> None:
    """Where a config is public: a commit's file, a package, or a page."""
    assert build.source_of(source) == expected


def test_long_lists_of_modules_are_counted() -> None:
    """What a quantisation config lists at length says nothing about a cache."""
    row = {
        "hf_id": "a/b", "confidence": "c", "source": {"kind": "page", "url": "https://x.org"},
        "config": {"model_type": "m", "quantization_config": {
            "bits": 4, "modules": ["x"] * 65, "short": ["y"], "map": {str(i): "z" * 40
                                                                     for i in range(80)}}},
        "num_params": {"value": 7, "source": "s"}, "agreeing_sources": [1, 2],
    }  # fmt: skip
    entry = build.entry_of(row)
    assert entry["config"]["quantization_config"] == {
        "bits": 4, "modules_count": 65, "short": ["y"], "map_count": 80,
    }  # fmt: skip
    assert (entry["parameters"], entry["agreeing_sources"], entry["note"]) == (7, 2, "")


def test_in_every_table_over_context_lengths_more_tokens_never_take_less() -> None:
    """Every entry that is read, at the table's lengths and around a chunk's boundary."""
    read = [row["id"] for row in ROWS if row["readable"]]
    assert len(read) > 500
    bf16 = KvFormats.same(dtype_named("bf16"))
    lengths = (0, 1, 3, 4, 5, 127, 128, 129, 8191, 8192, 8193, *CONTEXT_TOKENS)
    fallen = []
    for name in read:
        rows = context_table(models.read_entry(name).state, bf16, sorted(set(lengths)))
        totals = [row.total_bytes for row in rows]
        if totals != sorted(totals):
            fallen.append(name)
    assert fallen == []
