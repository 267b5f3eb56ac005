"""`/prefix-hashes`: textbook and engine chains, two prompts compared, refusals by field."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.cli import app as cli

DATA = Path(__file__).parents[1] / "data"
IDENTITY = {
    "model": "m", "adapter": "none", "tokenizer": "t", "position": "p", "dtype": "fp16", "salt": "",
}  # fmt: skip
VLLM: dict[str, Any] = {"scheme": "vllm", "tokens": [1, 2, 3, 4], "block_size": 2}


def post(client: TestClient, body: dict[str, Any]) -> Any:
    """Return the answer of a call."""
    return client.post("/api/v1/prefix-hashes", json=body)


def chain(client: TestClient, tokens: list[int], **identity: str) -> dict[str, Any]:
    """Return the textbook chain of a prompt in blocks of two."""
    body = {"tokens": tokens, "block_size": 2, "identity": IDENTITY | identity}
    answer = post(client, body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_the_textbook_chain(client: TestClient) -> None:
    """Two full blocks, one token over; the hit ends before the last position."""
    got = chain(client, [1, 2, 3, 4, 5])
    assert (len(got["hashes"]), got["tail_tokens"], got["max_hit_tokens"]) == (2, 1, 4)
    assert got["max_hit_reason"]["code"] == "hit_ends_at_block"
    assert (got["scheme"], got["algorithm"], got["version"]) == ("textbook", None, None)
    assert [block["parent"] for block in got["blocks"]] == ["", got["hashes"][0]]
    assert [block["first_token"] for block in got["blocks"]] == [0, 2]
    assert {part["kind"]: part["value"] for part in got["blocks"][0]["parts"]} == IDENTITY
    assert chain(client, [1, 2, 3, 4])["max_hit_tokens"] == 2
    assert chain(client, [1])["hashes"] == []
    assert chain(client, [])["max_hit_reason"]["code"] == "hit_needs_full_block"


def test_a_hash_covers_parent_tokens_and_identity(client: TestClient) -> None:
    """Another parent, adapter, salt or dtype is another hash; a longer prompt keeps the first."""
    first = chain(client, [1, 2, 3, 4])["hashes"]
    assert chain(client, [9, 2, 3, 4])["hashes"][1] != first[1]
    assert chain(client, [1, 2, 3, 4, 5])["hashes"] == first
    for name in IDENTITY:
        assert not set(chain(client, [1, 2, 3, 4], **{name: "other"})["hashes"]) & set(first)


@pytest.mark.parametrize("name", list(IDENTITY))
def test_a_missing_identity_field_is_refused_by_name(name: str, client: TestClient) -> None:
    """None of the six may be left out, or null."""
    for identity in ({k: v for k, v in IDENTITY.items() if k != name}, IDENTITY | {name: None}):
        answer = post(client, {"tokens": [1, 2], "block_size": 2, "identity": identity})
        assert answer.status_code == 422
        assert answer.json()["detail"][0]["loc"] == ["body", "identity", name]
    assert post(client, {"tokens": [1, 2], "block_size": 2}).status_code == 422


def measured_body(case: dict[str, Any]) -> dict[str, Any]:
    """Return a measured case as a request."""
    body = {
        "scheme": "vllm", "algorithm": case["algo"], "hash_seed": case["PYTHONHASHSEED"],
        "tokens": case["tokens"], "block_size": case["block_size"],
        "lookahead_tokens": case["lookahead"], "cache_salt": case["cache_salt"],
    }  # fmt: skip
    if case["lora"]:
        body["lora"] = {"name": case["lora"][0], "path": case["lora"][2]}
    if case["mm"]:
        body["multimodal"] = [
            {"identifier": name, "offset": offset, "length": length}
            for name, offset, length in case["mm"]
        ]
    return body


def test_every_measured_chain_is_equal(client: TestClient) -> None:
    """The hashes of every measured prompt without vectors equal the engine's, seed included."""
    cases = json.loads((DATA / "vllm_prefix_hash_cases.json").read_text())
    asked = [case for case in cases if not case["prompt_embeds"]]
    assert len(asked) >= 160
    for case in asked:
        got = post(client, measured_body(case)).json()
        assert got["hashes"] == case["block_hashes"], case["id"]
        assert got["seed_hash"] == case["NONE_HASH"], case["id"]


def test_prompt_embeddings(client: TestClient) -> None:
    """Vectors come as base64, count as token 0, and change the hash."""
    given = {"data": base64.b64encode(bytes(range(8))).decode(), "bytes_per_position": 4}
    body = VLLM | {"hash_seed": "7", "tokens": [5, 6]}
    with_vectors = post(client, body | {"embeddings": given}).json()
    assert with_vectors["prompt_tokens"] == 4
    assert [part["kind"] for part in with_vectors["blocks"][0]["parts"]] == ["embeddings"]
    plain = post(client, body | {"tokens": [0, 0, 5, 6]}).json()
    assert with_vectors["hashes"][0] != plain["hashes"][0]


@pytest.mark.parametrize(
    ("second", "matched", "breaks_at", "hit", "codes"),
    [
        ([9, 2, 3, 4], 0, 0, 0, [["other_token"], ["other_parent"]]),
        ([1, 2, 3, 4, 5], 2, 2, 4, [[], [], ["incomplete_block", "incomplete_block"]]),
        ([1, 2, 3, 4], 2, None, 2, [[], []]),
    ],
)
def test_two_prompts_are_compared(
    second: list[int],
    matched: int,
    breaks_at: int | None,
    hit: int,
    codes: list[list[str]],
    client: TestClient,
) -> None:
    """Where the chain breaks is named with its causes; a hit leaves the last position over."""
    body = {"tokens": [1, 2, 3, 4], "block_size": 2, "identity": IDENTITY,
            "compare_with": {"tokens": second, "identity": IDENTITY}}  # fmt: skip
    got = post(client, body).json()
    comparison = got["comparison"]
    assert (comparison["matched_blocks"], comparison["breaks_at"]) == (matched, breaks_at)
    assert comparison["hit_tokens"] == hit
    found = [[note["code"] for note in block["reasons"]] for block in comparison["blocks"]]
    assert found == codes
    assert got["compare_with"]["hashes"] == chain(client, second)["hashes"]


def test_an_adapter_and_a_salt_are_named(client: TestClient) -> None:
    """What differs beside the tokens is named for either scheme."""
    other = IDENTITY | {"adapter": "sql"}
    body = {"tokens": [1, 2], "block_size": 2, "identity": IDENTITY,
            "compare_with": {"tokens": [1, 2], "identity": other}}  # fmt: skip
    block = post(client, body).json()["comparison"]["blocks"][0]
    assert [note["code"] for note in block["reasons"]] == ["other_adapter"]
    body = VLLM | {"compare_with": {"tokens": [1, 2, 3, 4], "cache_salt": "mine"}}
    blocks = post(client, body).json()["comparison"]["blocks"]
    assert [note["code"] for note in blocks[0]["reasons"]] == ["other_salt"]


def test_blocks_come_in_pages(client: TestClient) -> None:
    """All hashes are listed; their inputs a page at a time."""
    body = {"tokens": list(range(600)), "block_size": 2, "identity": IDENTITY,
            "compare_with": {"tokens": list(range(600)), "identity": IDENTITY}}  # fmt: skip
    got = post(client, body | {"offset": 290, "limit": 20}).json()
    assert len(got["hashes"]) == 300
    assert [block["index"] for block in got["blocks"]] == list(range(290, 300))
    assert len(got["comparison"]["blocks"]) == len(got["compare_with"]["blocks"]) == 10
    assert len(post(client, body).json()["blocks"]) == 100


@pytest.mark.parametrize(
    ("fields", "loc"),
    [
        ({"identity": IDENTITY}, ["identity"]),
        ({"scheme": "textbook", "identity": IDENTITY, "algorithm": "sha256"}, ["algorithm"]),
        ({"scheme": "textbook", "identity": IDENTITY, "hash_seed": ""}, ["hash_seed"]),
        ({"scheme": "textbook", "identity": IDENTITY, "cache_salt": "x"}, ["cache_salt"]),
        ({"scheme": "textbook", "identity": IDENTITY, "drops_last_block": True},
         ["drops_last_block"]),
        ({"scheme": "md5"}, ["scheme"]),
        ({"algorithm": "md5"}, ["algorithm"]),
        ({"algorithm": "xxhash"}, ["hash_seed"]),
        ({"version": "0.9.0"}, ["version"]),
        ({"version": "0.20.0"}, ["hash_seed"]),
        ({"version": "nine"}, ["version"]),
        ({"lora": {"name": "sql"}}, ["lora", "path"]),
        ({"none_hash": "xyz"}, ["none_hash"]),
        ({"none_hash": "0" * 64, "hash_seed": "1"}, ["none_hash"]),
        ({"tokens": [1, -1]}, ["tokens", 1]),
        ({"tokens": [True]}, ["tokens", 0]),
        ({"block_size": 0}, ["block_size"]),
        ({"block_size": 1, "tokens": [0] * 40_000}, ["block_size"]),
        ({"lookahead_tokens": 65}, ["lookahead_tokens"]),
        ({"multimodal": [{"identifier": "c", "offset": 9, "length": 1}]},
         ["multimodal", 0, "offset"]),
        ({"embeddings": {"data": "*", "bytes_per_position": 1}},
         ["embeddings", "data"]),
        ({"embeddings": {"data": "AAAA", "bytes_per_position": 2}},
         ["embeddings", "data"]),
        ({"compare_with": {"tokens": [1, 2], "lora": {"name": "sql"}}},
         ["compare_with", "lora", "path"]),
        ({"compare_with": {"tokens": [1], "identity": IDENTITY}}, ["compare_with", "identity"]),
        ({"compare_with": {}}, ["compare_with", "tokens"]),
        ({"limit": 1001}, ["limit"]),
        ({"surprise": 1}, ["surprise"]),
    ],
)  # fmt: skip
def test_refusals_name_their_field(
    fields: dict[str, Any], loc: list[str | int], client: TestClient
) -> None:
    """What is wrong, or belongs to the other scheme, is refused with 422 at its field."""
    answer = post(client, VLLM | fields)
    assert answer.status_code == 422, answer.text
    assert answer.json()["detail"][0]["loc"] == ["body", *loc]


def identity_options(prefix: str, identity: dict[str, str]) -> list[str]:
    """Return the options that give an identity."""
    return [f"--{prefix}identity={name}={value}" for name, value in identity.items()]


@pytest.mark.parametrize(
    ("options", "body"),
    [
        (["--tokens", "1..4", *identity_options("", IDENTITY)],
         {"tokens": [1, 2, 3, 4], "identity": IDENTITY}),
        (["--text", "abcd", *identity_options("", IDENTITY), "--other-text", "abce",
          *identity_options("other-", IDENTITY)],
         {"tokens": [97, 98, 99, 100], "identity": IDENTITY,
          "compare_with": {"tokens": [97, 98, 99, 101], "identity": IDENTITY}}),
        (["--scheme", "vllm", "--tokens-file", "-", "--hash-seed", "0", "--algorithm",
          "xxhash_cbor", "--lora", "sql", "--lora-path", "/sql", "--media", "cat @ 1 + 2",
          "--cache-salt", "s", "--lookahead-tokens", "1"],
         {"scheme": "vllm", "tokens": [1, 2, 3, 4, 5], "hash_seed": "0",
          "algorithm": "xxhash_cbor", "lora": {"name": "sql", "path": "/sql"},
          "multimodal": [{"identifier": "cat", "offset": 1, "length": 2}], "cache_salt": "s",
          "lookahead_tokens": 1}),
        (["--scheme", "vllm", "--tokens", "1..4", "--other-tokens", "1..6", "--other-lora", "sql",
          "--other-lora-path", "/sql", "--other-cache-salt", "s", "--other-media", "cat @ 0 + 1"],
         {"scheme": "vllm", "tokens": [1, 2, 3, 4],
          "compare_with": {"tokens": [1, 2, 3, 4, 5, 6], "lora": {"name": "sql", "path": "/sql"},
                           "multimodal": [{"identifier": "cat", "offset": 0, "length": 1}],
                           "cache_salt": "s"}}),
    ],
)  # fmt: skip
def test_the_command_line_prints_the_same(
    options: list[str], body: dict[str, Any], client: TestClient
) -> None:
    """`--json` prints exactly what the API answers; without it, every hash in full."""
    arguments = ["hashes", "--block-size=2", *options]
    done = CliRunner().invoke(cli, [*arguments, "--json"], input="1 2 3 4 5")
    assert done.exit_code == 0, done.output
    answer = post(client, {"block_size": 2} | body)
    assert done.stdout.strip() == answer.text
    told = CliRunner().invoke(cli, arguments, input="1 2 3 4 5")
    assert all(digest in told.stdout for digest in answer.json()["hashes"])
    assert len(answer.json()["hashes"]) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "give one of --tokens, --text or a file"),
        (["--tokens", "1", "--text", "a"], "give one of --tokens"),
        (["--tokens", "1", "--identity", "model"], "--identity takes name=value"),
        (["--tokens", "1 2", "--identity", "model=m"], "identity.adapter"),
        (["--tokens", "x"], "'x' at character 1"),
        (["--tokens", "1", "--other-cache-salt", "x"], "give one of --other-tokens"),
        (["--tokens", "1", "--media", "cat"], "'cat' is no item"),
        (["--tokens", "1", "--scheme", "md5"], "scheme"),
    ],
)
def test_the_command_line_says_what_is_wrong(options: list[str], words: str) -> None:
    """Bad input ends with one line and exit code 2."""
    done = CliRunner().invoke(cli, ["hashes", *options])
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
