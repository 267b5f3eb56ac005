"""`/sharing`: worked values through API, page's export and command line; refusals by field."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.cli import app as cli

MIB = 2**20
BASE: dict[str, Any] = {
    "model": {"layers": 32, "kv_heads": 8, "head_dim": 128},
    "kv_dtype": "fp16",
    "block_size": 16,
}
MODEL = ["--layers=32", "--kv-heads=8", "--head-dim=128", "--kv-dtype=fp16"]
TWO = [{"prefix_tokens": 32, "branches": [1, 1]}]


def ask(client: TestClient, **fields: Any) -> dict[str, Any]:
    """Return the answer to the base with these fields."""
    answer = client.post("/api/v1/sharing", json=BASE | fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_two_requests_share_32_tokens(client: TestClient) -> None:
    """6 table entries, 4 unique blocks, 8 MiB against 12, 34 effective positions."""
    got = ask(client, groups=TWO)
    wanted = {
        "policy": "copy_on_write", "sequence_count": 2,
        "logical_blocks": 6, "unique_blocks": 4, "saved_blocks": 2,
        "logical_bytes": 12 * MIB, "paged_bytes": 8 * MIB, "saved_bytes": 4 * MIB,
        "effective_tokens": 34, "effective_bytes": 34 * 131_072,
        "logical_tokens": 66, "unshared_effective_bytes": 66 * 131_072,
        "block_tables": [[0, 1, 2], [0, 1, 3]],
        "ref_counts": {"0": 2, "1": 2, "2": 1, "3": 1},
        "filled_tokens": {"0": 16, "1": 16, "2": 1, "3": 1},
        "blocks_by_holders": {"1": 2, "2": 2},
        "copy_on_write_blocks": 0, "tables_listed": True,
        "saved_bytes_text": "4 MiB",
    }  # fmt: skip
    assert {name: got[name] for name in wanted} == wanted
    assert got["formula"].endswith("131072 B/token × 16 tokens × 4 unique blocks = 8388608 B")
    assert "2 × 32 layers × 8 KV heads × 128 × 2 B = 131072 B/token" in got["formula"]
    assert got["assumptions"][0]["code"] == "sharing_copy_on_write"
    assert "weights" in {note["code"] for note in got["not_counted"]}


def test_the_rule_decides_who_copies(client: TestClient) -> None:
    """Two branches after 20 tokens: forks share a block and copy one, engines compute it twice."""
    branches = [{"prefix_tokens": 20, "branches": [1, 1]}]
    forks = ask(client, groups=branches)
    assert (forks["unique_blocks"], forks["copy_on_write_blocks"]) == (3, 1)
    assert forks["duplicate_tokens"] == 4
    full = ask(client, groups=branches, policy="full_blocks")
    assert (full["unique_blocks"], full["copy_on_write_blocks"]) == (3, 0)
    # Without a token of one's own the last block is shared by forks alone.
    same = [{"prefix_tokens": 20, "branches": [0, 0]}]
    assert ask(client, groups=same)["unique_blocks"] == 2
    assert ask(client, groups=same, policy="full_blocks")["unique_blocks"] == 3


def test_token_ids_share_full_blocks(client: TestClient) -> None:
    """A=[1,2,3,4] and B=[9,2,3,4] share nothing; C=[1,2,3,4,5] shares A's two blocks."""
    got = ask(client, block_size=2, sequences=[[1, 2, 3, 4], [9, 2, 3, 4], [1, 2, 3, 4, 5]])
    assert got["policy"] == "full_blocks"
    assert got["block_tables"] == [[0, 1], [2, 3], [0, 1, 4]]
    assert (got["logical_blocks"], got["unique_blocks"]) == (7, 5)


def test_groups_nest_and_repeat(client: TestClient) -> None:
    """512 → 40 × 200 → 3 × 60: 120 sequences of 772 over one prefix of 32 blocks."""
    got = ask(
        client,
        groups=[
            {"prefix_tokens": 512,
             "branches": [{"prefix_tokens": 200, "count": 40, "branches": [60, 60, 60]}]}
        ],
    )  # fmt: skip
    assert (got["sequence_count"], got["logical_blocks"]) == (120, 120 * 49)
    assert got["effective_tokens"] == 512 + 40 * 200 + 120 * 60
    assert got["blocks_by_holders"] == {"1": 600, "3": 480, "120": 32}
    assert got["unique_blocks"] == 1112
    assert got["copy_on_write_blocks"] == 80
    assert sum(got["ref_counts"].values()) == got["logical_blocks"]


def test_samples_are_a_group(client: TestClient) -> None:
    """Four samples of a prompt are a prefix with four branches."""
    sampled = ask(client, samples={"prompt_tokens": 100, "samples": 4, "own_tokens": 7})
    grouped = ask(client, groups=[{"prefix_tokens": 100, "branches": [7, 7, 7, 7]}])
    assert sampled == grouped


def test_each_kind_of_state_goes_its_own_way(client: TestClient) -> None:
    """A recurrent state is one a sequence; full attention shares its prefix."""
    rows = [
        {"kind": "full_attention", "kv_heads": 1, "k_dim": 1, "v_dim": 1, "count": 2},
        {"kind": "recurrent", "state_bytes": 100, "conv_bytes": 10, "count": 3},
    ]
    got = ask(client, model={"layer_states": rows}, groups=TWO)
    assert [
        (state["kind"], state["layers"], state["logical_bytes"], state["paged_bytes"])
        for state in got["states"]
    ] == [("full_attention", 2, 6 * 16 * 8, 4 * 16 * 8), ("recurrent", 3, 660, 660)]
    assert "sharing_recurrent" in {note["code"] for note in got["assumptions"]}


def test_what_is_too_long_to_list_is_counted(client: TestClient) -> None:
    """Ten million requests are counted exactly, and the answer says that tables are left out."""
    got = ask(client, groups=[{"prefix_tokens": 15, "branches": [1], "count": 10_000_000}])
    assert (got["logical_blocks"], got["unique_blocks"]) == (10_000_000, 10_000_000)
    assert (got["tables_listed"], got["block_tables"], got["ref_counts"]) == (False, None, None)
    assert (got["filled_tokens"], got["blocks_by_holders"]) == (None, None)
    assert "sharing_not_listed" in {note["code"] for note in got["assumptions"]}


@pytest.mark.parametrize("fields", [{"groups": []}, {"sequences": []}, {"sequences": [[]]}])
def test_nothing_takes_nothing(fields: dict[str, Any], client: TestClient) -> None:
    """No sequence, or an empty one, has no block."""
    got = ask(client, **fields)
    assert (got["logical_blocks"], got["paged_bytes"], got["ref_counts"]) == (0, 0, {})


DEEP: Any = 1
for _ in range(40):
    DEEP = {"prefix_tokens": 1, "branches": [DEEP]}


@pytest.mark.parametrize(
    ("fields", "loc"),
    [
        ({}, ["sequences"]),
        ({"groups": TWO, "sequences": [[1]]}, ["groups"]),
        ({"groups": TWO, "samples": {"prompt_tokens": 1, "samples": 1, "own_tokens": 1}},
         ["samples"]),
        ({"groups": TWO, "policy": "all"}, ["policy"]),
        ({"groups": TWO, "block_size": 0}, ["block_size"]),
        ({"groups": TWO, "surprise": 1}, ["surprise"]),
        ({"groups": [5]}, ["groups", 0]),
        ({"groups": [{"prefix_tokens": 1, "branches": []}]}, ["groups", 0, "branches"]),
        ({"groups": [{"prefix_tokens": 1}]}, ["groups", 0, "branches"]),
        ({"groups": [{"prefix_tokens": -1, "branches": [1]}]}, ["groups", 0, "prefix_tokens"]),
        ({"groups": [{"prefix_tokens": 1, "branches": [True]}]}, ["groups", 0, "branches", 0]),
        ({"groups": [{"prefix_tokens": 1, "branches": [1, "x"]}]}, ["groups", 0, "branches", 1]),
        ({"groups": [{"prefix_tokens": 1, "branches": [{"prefix_tokens": 1}]}]},
         ["groups", 0, "branches", 0, "branches"]),
        ({"groups": [{"prefix_tokens": 1, "branches": [1], "count": 0}]}, ["groups", 0, "count"]),
        ({"groups": [DEEP]}, ["groups"]),
        ({"sequences": [[1], [2, -1]]}, ["sequences", 1, 1]),
        ({"sequences": [[2**32]]}, ["sequences", 0, 0]),
        ({"sequences": [[1.5]]}, ["sequences", 0, 0]),
        ({"sequences": 5}, ["sequences"]),
        ({"samples": {"prompt_tokens": 1, "samples": 0, "own_tokens": 1}},
         ["samples", "samples"]),
        ({"groups": [{"prefix_tokens": 10**9, "branches": [1]}]},
         ["groups", 0, "branches", 0]),
        ({"groups": [{"prefix_tokens": 10**8, "branches": [0] * 10_000}]}, ["groups"]),
    ],
)  # fmt: skip
def test_refusals_name_their_field(
    fields: dict[str, Any], loc: list[str | int], client: TestClient
) -> None:
    """A spoiled body is refused with 422 at the field that is at fault."""
    answer = client.post("/api/v1/sharing", json=BASE | fields)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", *loc]


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        (["--groups", "32 -> 1, 1"], {"groups": TWO}),
        (["--sequences", "1 2 3; 1 2 4", "--policy", "copy_on_write", "--block-size", "2"],
         {"sequences": [[1, 2, 3], [1, 2, 4]], "policy": "copy_on_write", "block_size": 2}),
        (["--samples", "4", "--prompt-tokens", "100", "--own-tokens", "7"],
         {"samples": {"prompt_tokens": 100, "samples": 4, "own_tokens": 7}}),
        (["--sequences-file", "-"], {"sequences": [[1, 2, 3], [1, 5]]}),
    ],
)  # fmt: skip
def test_the_command_line_prints_the_same(
    options: list[str], fields: dict[str, Any], client: TestClient
) -> None:
    """`--json` prints exactly what the API answers, and without it the figures are in the table."""
    done = CliRunner().invoke(cli, ["sharing", *MODEL, *options, "--json"], input="1 2 3\n1 5\n")
    assert done.exit_code == 0, done.output
    answer = client.post("/api/v1/sharing", json=BASE | fields)
    assert done.stdout.strip() == answer.text
    told = CliRunner().invoke(cli, ["sharing", *MODEL, *options], input="1 2 3\n1 5\n")
    assert str(answer.json()["paged_bytes"]) in told.stdout
    assert f"Memory saved: {answer.json()['saved_bytes']} B" in told.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "one of --groups"),
        (["--groups", "1", "--samples", "2", "--prompt-tokens", "3"], "one of --groups"),
        (["--samples", "2"], "--prompt-tokens"),
        (["--groups", "32 ->"], "groups end where"),
        (["--groups", "32 -> 1", "--policy", "all"], "policy"),
        (["--sequences", "1 x"], "'x' at character 3"),
        (["--sequences-file", "/nowhere/at/all"], "No such file"),
        (["--sequences-file", "-"], "not UTF-8 at byte 0"),
    ],
)
def test_the_command_line_says_what_is_wrong(options: list[str], words: str) -> None:
    """Bad input ends with one line and exit code 2."""
    done = CliRunner().invoke(cli, ["sharing", *MODEL, *options], input=b"\xff")
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
