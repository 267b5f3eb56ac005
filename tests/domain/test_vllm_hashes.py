"""vLLM's own chains: measured ones to the byte, older releases by their rule written out."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import (
    Conflict,
    DomainError,
    Malformed,
    Missing,
    OutOfRange,
    Unknown,
    Unsupported,
    WrongType,
)
from app.domain.vllm_hashes import ALGORITHMS, vllm_chain
from app.domain.vllm_prompt import (
    LoraAdapter,
    MultimodalItem,
    PromptEmbeddings,
    VllmPrompt,
    release_of,
)

CASES = Path(__file__).parents[1] / "data" / "vllm_prefix_hash_cases.json"


@cache
def measured() -> list[dict[str, Any]]:
    """Return the chains that vLLM 0.33.0 computed itself."""
    cases: list[dict[str, Any]] = json.loads(CASES.read_text())
    assert len(cases) >= 100
    return cases


def sevenths(positions: int, width: int) -> PromptEmbeddings:
    """Return the float32 vectors of the measured cases: 0, 1, 2, … each divided by 7."""
    values = [struct.unpack("<f", struct.pack("<f", n / 7))[0] for n in range(positions * width)]
    return PromptEmbeddings(data=struct.pack(f"<{len(values)}f", *values), bytes_per_position=32)


def prompt_of(case: dict[str, Any]) -> VllmPrompt:
    """Return a measured case as a prompt."""
    return VllmPrompt(
        tokens=case["tokens"],
        block_size=case["block_size"],
        algorithm=case["algo"],
        hash_seed=case["PYTHONHASHSEED"],
        lora=LoraAdapter(name=case["lora"][0], path=case["lora"][2]) if case["lora"] else None,
        multimodal=[
            MultimodalItem(identifier=identifier, offset=offset, length=length)
            for identifier, offset, length in case["mm"] or ()
        ],
        cache_salt=case["cache_salt"],
        lookahead_tokens=case["lookahead"],
        embeddings=sevenths(32, 8) if case["prompt_embeds"] else None,
    )


def test_every_measured_chain_is_equal() -> None:
    """Each block hash and the chain's start equal the engine's."""
    differing = []
    for case in measured():
        chain = vllm_chain(prompt_of(case))
        if (list(chain.hashes), chain.seed_hash) != (case["block_hashes"], case["NONE_HASH"]):
            differing.append(case["id"])
    assert differing == []


def test_the_measured_cases_cover_each_algorithm_and_extra() -> None:
    """The cases hold every algorithm, with and without a seed, and each kind of extra key."""
    assert {case["algo"] for case in measured()} == set(ALGORITHMS)
    assert {case["PYTHONHASHSEED"] for case in measured()} == {None, "0", "42"}
    for name in ("mm", "lora", "cache_salt", "prompt_embeds", "lookahead"):
        assert any(case[name] for case in measured())


def sha256_of(value: object) -> bytes:
    """Return what every release since 0.10.2 takes of a value by default."""
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


EMBEDDED = PromptEmbeddings(data=bytes(range(8)), bytes_per_position=4)
DIGEST = hashlib.sha256(bytes(range(8))).digest()
BASE = VllmPrompt(tokens=(5, 6), block_size=2, hash_seed="7")
WITH_LORA = replace(BASE, lora=LoraAdapter(name="sql", path="/sql", int_id=3))
WITH_IMAGE = replace(BASE, multimodal=[MultimodalItem(identifier="cat", offset=1, length=1)])
WITH_SALT = replace(BASE, cache_salt="tenant")
WITH_VECTORS = replace(BASE, tokens=(), embeddings=EMBEDDED)


@pytest.mark.parametrize(
    ("prompt", "version", "extra"),
    [
        (WITH_LORA, "0.10.2", (3,)),
        (WITH_LORA, "0.11.0", (3,)),
        (WITH_LORA, "0.11.1", ("sql",)),
        (WITH_LORA, "0.30.0", ("sql",)),
        (WITH_LORA, "0.31.0", (("lora", "sql", "/sql"),)),
        (WITH_IMAGE, "0.10.2", ("cat",)),
        (WITH_IMAGE, "0.18.1", ("cat",)),
        (WITH_IMAGE, "0.19.1", (("cat", 1),)),
        (WITH_IMAGE, "0.30.0", (("cat", 1),)),
        (WITH_IMAGE, "0.31.0", (("mm", "cat", 1),)),
        (WITH_SALT, "0.10.2", ("tenant",)),
        (WITH_SALT, "0.30.0", ("tenant",)),
        (WITH_SALT, "v0.33", (("cache_salt", "tenant"),)),
        (replace(BASE, cache_salt=""), "0.33.0", None),
        (WITH_VECTORS, "0.11.0", None),
        (WITH_VECTORS, "0.16.0", (bytes(range(8)),)),
        (WITH_VECTORS, "0.17.1", (DIGEST,)),
        (WITH_VECTORS, "0.31.0", (("prompt_embeds", DIGEST),)),
        (BASE, "0.10.2", None),
        (BASE, "0.11.2.post1", None),
        (BASE, "0.33.0rc1", None),
    ],
)
def test_extra_keys_have_each_releases_form(
    prompt: VllmPrompt, version: str, extra: tuple[object, ...] | None
) -> None:
    """What beside the tokens is hashed, and how it is written, changed with the releases named."""
    tokens = (0, 0) if prompt.embeddings else (5, 6)
    chain = vllm_chain(replace(prompt, version=version))
    assert chain.hashes == (sha256_of((sha256_of("7"), tokens, extra)).hex(),)


def test_all_extras_stand_in_the_engines_order() -> None:
    """Adapter, items, salt (block 0 only), vectors, which may run out before the tokens do."""
    prompt = replace(
        WITH_LORA,
        tokens=(5, 6),
        embeddings=EMBEDDED,
        cache_salt="t",
        multimodal=[
            MultimodalItem(identifier="dog", offset=3, length=1),
            MultimodalItem(identifier="cat", offset=1, length=2),
        ],
    )
    lora = ("lora", "sql", "/sql")
    first = (lora, ("mm", "cat", 1), ("cache_salt", "t"), ("prompt_embeds", DIGEST))
    nothing = hashlib.sha256(b"").digest()
    second = (lora, ("mm", "cat", -1), ("mm", "dog", 1), ("prompt_embeds", nothing))
    parent = sha256_of((sha256_of("7"), (0, 0), first))
    chain = vllm_chain(prompt)
    assert chain.hashes == (parent.hex(), sha256_of((parent, (5, 6), second)).hex())
    assert [(part.kind, part.value) for part in chain.blocks[1].parts] == [
        ("adapter", "sql (/sql)"),
        ("image", "cat @ -1"),
        ("image", "dog @ 1"),
        ("embeddings", nothing.hex()),
    ]


def test_equal_texts_of_two_items_are_two_objects() -> None:
    """Two items of one image hash as if their identifiers had arrived apart, not as one object."""
    same = "image-of-a-cat"
    items = [MultimodalItem(identifier=same, offset=at, length=1) for at in (0, 1)]
    copies = [same.encode().decode() for _ in range(2)]
    assert copies[0] is not copies[1]
    extra = (("mm", copies[0], 0), ("mm", copies[1], 1))
    chain = vllm_chain(replace(BASE, multimodal=items))
    assert chain.hashes[0] == sha256_of((sha256_of("7"), (5, 6), extra)).hex()
    assert "pickle_by_object" in [note.code for note in chain.assumptions]


def test_a_lookahead_hash_waits_for_the_tokens_it_covers() -> None:
    """With one token of look-ahead, 4 tokens in blocks of 2 have one hash; the fifth adds one."""
    ahead = replace(BASE, tokens=(5, 6, 7, 8), lookahead_tokens=1)
    first = sha256_of((sha256_of("7"), (5, 6), (None, 7)))
    assert vllm_chain(ahead).hashes == (first.hex(),)
    assert vllm_chain(ahead).tail == (7, 8)
    longer = vllm_chain(replace(ahead, tokens=(5, 6, 7, 8, 9)))
    assert longer.hashes == (first.hex(), sha256_of((first, (7, 8), (None, 9))).hex())
    assert longer.max_hit_tokens == 4


def test_a_lookahead_window_covers_items_of_the_next_block() -> None:
    """An image that begins in the look-ahead range is in the hash of the block before it."""
    image = MultimodalItem(identifier="cat", offset=2, length=2)
    prompt = replace(BASE, tokens=(5, 6, 7, 8, 9), lookahead_tokens=2, multimodal=[image])
    extra = ((("mm", "cat", 2),), 7, 8)
    assert vllm_chain(prompt).hashes == (sha256_of((sha256_of("7"), (5, 6), extra)).hex(),)


def test_the_chain_may_start_from_a_hash_read_off_the_engine() -> None:
    """A known NONE_HASH takes the place of a seed, also where the seed is random."""
    start = "ab" * 16
    prompt = replace(BASE, hash_seed=None, none_hash=start, algorithm="xxhash", version="0.20.0")
    chain = vllm_chain(prompt)
    assert chain.seed_hash == start
    assert "default_seed" not in [note.code for note in chain.assumptions]


def test_the_answer_names_its_assumptions() -> None:
    """Default seed, unread release and vectors that no hash covers are each said."""
    codes = [note.code for note in vllm_chain(replace(BASE, hash_seed=None)).assumptions]
    assert codes == ["engine_instance", "default_seed"]
    codes = [note.code for note in vllm_chain(replace(BASE, version="0.19.0")).assumptions]
    assert "release_not_read" in codes
    codes = [note.code for note in vllm_chain(replace(WITH_VECTORS, version="0.11.0")).assumptions]
    assert "embeddings_not_hashed" in codes


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        ({"version": "latest"}, Malformed, ("version",)),
        ({"version": "0.8.5"}, Unsupported, ("version",)),
        ({"version": "0.10.1"}, Unsupported, ("version",)),
        ({"version": "0.34.0"}, Unsupported, ("version",)),
        ({"version": "1.0.0"}, Unsupported, ("version",)),
        ({"algorithm": "md5"}, Unknown, ("algorithm",)),
        ({"algorithm": "xxhash", "version": "0.12.0"}, Conflict, ("algorithm",)),
        ({"algorithm": "xxhash", "hash_seed": None}, Missing, ("hash_seed",)),
        ({"hash_seed": None, "version": "0.28.0"}, Missing, ("hash_seed",)),
        ({"hash_seed": 0}, WrongType, ("hash_seed",)),
        ({"none_hash": "00" * 32}, Conflict, ("none_hash",)),
        ({"none_hash": "xyz", "hash_seed": None}, Malformed, ("none_hash",)),
        ({"lora": LoraAdapter(name="sql")}, Missing, ("lora", "path")),
        ({"lora": LoraAdapter(name="a"), "version": "0.11.0"}, Missing, ("lora", "int_id")),
        ({"lora": LoraAdapter(name="\ud800", path="/")}, Malformed, ("lora", "name")),
        ({"lora": LoraAdapter(name="a", path="/", int_id=0)}, OutOfRange, ("lora", "int_id")),
        ({"cache_salt": "\udfff"}, Malformed, ("cache_salt",)),
        ({"lookahead_tokens": 1, "version": "0.32.0"}, Conflict, ("lookahead_tokens",)),
        ({"lookahead_tokens": 1, "drops_last_block": True}, Conflict, ("lookahead_tokens",)),
        ({"lookahead_tokens": 65}, OutOfRange, ("lookahead_tokens",)),
        ({"lookahead_tokens": -1}, OutOfRange, ("lookahead_tokens",)),
        ({"block_size": 0}, OutOfRange, ("block_size",)),
        ({"tokens": (1, -2)}, OutOfRange, ("tokens", 1)),
        (
            {"multimodal": [MultimodalItem(identifier="cat", offset=2, length=1)]},
            OutOfRange,
            ("multimodal", 0, "offset"),
        ),
        (
            {"multimodal": [MultimodalItem(identifier="cat", offset=1, length=2)]},
            OutOfRange,
            ("multimodal", 0, "length"),
        ),
        (
            {"multimodal": [MultimodalItem(identifier="cat", offset=0, length=0)]},
            OutOfRange,
            ("multimodal", 0, "length"),
        ),
        (
            {
                "multimodal": [
                    MultimodalItem(identifier="cat", offset=n, length=2 - n) for n in (0, 1)
                ]
            },
            Conflict,
            ("multimodal",),
        ),
        (
            {"embeddings": PromptEmbeddings(data=b"", bytes_per_position=4)},
            OutOfRange,
            ("embeddings", "data"),
        ),
        (
            {"embeddings": PromptEmbeddings(data=b"12345", bytes_per_position=4)},
            OutOfRange,
            ("embeddings", "data"),
        ),
        (
            {"embeddings": PromptEmbeddings(data=b"1234", bytes_per_position=0)},
            OutOfRange,
            ("embeddings", "bytes_per_position"),
        ),
    ],
)
def test_what_cannot_be_hashed_is_refused(
    change: dict[str, Any], error: type[DomainError], field: tuple[str | int, ...]
) -> None:
    """Each refusal names its field: an unread release, a random seed, an item out of place."""
    with pytest.raises(error) as caught:
        vllm_chain(replace(BASE, **change))
    assert caught.value.field == field


def test_release_numbers_are_read_leniently() -> None:
    """A leading v, a missing patch number and a post or rc suffix do not matter."""
    assert release_of("v0.33") == (0, 33, 0)
    assert release_of("0.11.2.post1") == (0, 11, 2)


@given(
    st.lists(st.integers(0, 2**32 - 1), max_size=20),
    st.integers(1, 6),
    st.sampled_from(ALGORITHMS),
    st.integers(0, 3),
)
def test_a_chain_is_a_prefix_of_its_continuation(
    tokens: list[int], size: int, algorithm: str, ahead: int
) -> None:
    """More tokens never change a hash that exists, whatever the algorithm and the look-ahead."""
    prompt = VllmPrompt(
        tokens=tokens,
        block_size=size,
        algorithm=algorithm,
        hash_seed="0",
        lookahead_tokens=ahead,
    )
    hashes = vllm_chain(prompt).hashes
    longer = vllm_chain(replace(prompt, tokens=[*tokens, 1, 2, 3])).hashes
    assert longer[: len(hashes)] == hashes
    assert len(hashes) == max(len(tokens) - ahead, 0) // size
