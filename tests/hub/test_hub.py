"""Reading from the Hub, against a local server that answers as the Hub does."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import HfApi, hf_hub_url

from app.domain.errors import DomainError, Malformed, Unavailable, Unknown, Unsupported
from app.hub import (
    HubAccess,
    HubConfig,
    endpoint_of,
    fetch_config,
    fetch_header,
    fetch_weights,
    hub_access,
    read_hub_address,
)
from app.hub import client as client_module
from app.hub.cache import HubCache, default_folder
from app.hub.client import Client, Deadline, is_public
from app.readers.gguf import read_gguf
from app.readers.model_files import TypeTotal
from app.settings import Settings
from tests.hub.fake_hub import COMMIT, FILES, GOOD_TOKEN, LLAMA, Served, fake_hub

pytestmark = pytest.mark.enable_socket


@pytest.fixture(scope="module")
def running() -> Iterator[Served]:
    """Return a server that lives as long as these tests."""
    with fake_hub() as served:
        yield served


@pytest.fixture
def hub(running: Served) -> Served:
    """Return the server with nothing asked yet."""
    running.requests.clear()
    running.redirect_to = ""
    running.with_codes = running.with_ranges = running.with_commit = True
    return running


@pytest.fixture
def access(hub: Served, tmp_path: Path) -> HubAccess:
    """Return how to read from it, with a cache of its own."""
    return access_to(hub.url, tmp_path)


def access_to(url: str, folder: Path, **more: object) -> HubAccess:
    """Return access under settings as an operator of a private mirror would make them."""
    settings: dict[str, object] = {
        "hub_enabled": True,
        "hub_endpoint": url,
        "hub_allow_private": True,
        "hub_timeout_s": 0.5,
        "hub_cache_dir": str(folder / "cache"),
        **more,
    }
    return hub_access(Settings.model_validate(settings))


def config_of(access: HubAccess, text: str, revision: str | None = None) -> HubConfig:
    """Return the config that a text names."""
    return fetch_config(access, read_hub_address(access, text, revision))


# What is read


def test_a_config_comes_with_its_commit(hub: Served, access: HubAccess) -> None:
    """The config is the file's, the commit is the answer's, and the address is a person's."""
    found = config_of(access, "org/plain")
    assert found.config == LLAMA
    assert found.commit == COMMIT
    assert found.url == f"{hub.url}/org/plain/blob/{COMMIT}/config.json"
    assert hub.paths == ["/org/plain/resolve/main/config.json"]
    assert "authorization" not in hub.requests[0][1]


@pytest.mark.parametrize("revision", ["v1", COMMIT, "refs/pr/1"])
def test_a_revision_is_honoured(revision: str, hub: Served, access: HubAccess) -> None:
    """A branch, a tag, a commit or a pull request is asked for by its name."""
    config_of(access, "org/plain", revision)
    assert hub.paths == [f"/org/plain/resolve/{revision.replace('/', '%2F')}/config.json"]


def test_an_address_of_the_mirror_is_read(hub: Served, access: HubAccess) -> None:
    """What is copied from the mirror's own pages names a model as on the Hub."""
    assert config_of(access, f"{hub.url}/org/plain/tree/v1").address.revision == "v1"


def test_paths_are_those_of_the_hubs_own_library(hub: Served) -> None:
    """The address asked for is the one that huggingface_hub would ask."""
    expected = hf_hub_url("org/plain", "config.json", revision="refs/pr/1", endpoint=hub.url)
    access = access_to(hub.url, Path("/nonexistent"))
    config_of(access, "org/plain", "refs/pr/1")
    assert hub.url + hub.paths[0] == expected


def test_a_renamed_model_is_followed(access: HubAccess) -> None:
    """The Hub redirects an old name to the new one, with a relative address."""
    assert config_of(access, "org/renamed").config == LLAMA


def test_shards_are_added_up_from_their_headers(hub: Served, access: HubAccess) -> None:
    """105,000 parameters in bf16 and 10 in fp32, by range requests of the headers alone."""
    weights = fetch_weights(access, config_of(access, "org/sharded"))
    assert weights is not None
    assert weights.by_type == (
        TypeTotal(type="BF16", tensors=2, parameters=105_000, size_bytes=210_000),
        TypeTotal(type="F32", tensors=1, parameters=10, size_bytes=40),
    )
    assert (weights.files, weights.size_bytes, weights.basis) == (2, 210_040, "header")
    ranges = [headers.get("range") for path, headers in hub.requests if path.startswith("/cdn")]
    assert sorted(filter(None, ranges)) == [
        "bytes=0-131071", "bytes=0-131071", "bytes=131072-200128",
    ]  # fmt: skip


def test_the_sums_are_those_of_the_hubs_own_library(hub: Served, access: HubAccess) -> None:
    """Parameters by dtype equal what huggingface_hub reads from the same server."""
    hub.with_commit = False
    theirs = HfApi(endpoint=hub.url, token=False).get_safetensors_metadata("org/single")
    weights = fetch_weights(access, config_of(access, "org/single"))
    assert weights is not None
    assert {t.type: t.parameters for t in weights.by_type} == theirs.parameter_count == {"F16": 6}


def test_without_safetensors_there_are_no_weights(access: HubAccess) -> None:
    """A model that has none is no error."""
    assert fetch_weights(access, config_of(access, "org/plain")) is None


def test_of_very_many_shards_the_index_is_taken(hub: Served, access: HubAccess) -> None:
    """300 shards are not asked for one by one: the index's own totals stand, and say so."""
    weights = fetch_weights(access, config_of(access, "org/many"))
    assert weights is not None
    assert (weights.basis, weights.files, weights.tensors) == ("index", 300, 300)
    assert (weights.size_bytes, weights.parameters) == (7_000, 3_500)
    assert len(hub.requests) == 2


def test_a_broken_header_is_refused(access: HubAccess) -> None:
    """A shard whose header is no JSON stops the sum."""
    with pytest.raises(Malformed):
        fetch_weights(access, config_of(access, "org/broken-shard"))


def test_a_file_by_its_address(hub: Served, access: HubAccess) -> None:
    """An address of a safetensors file gives the bytes of its header."""
    address = read_hub_address(access, f"{hub.url}/org/single/blob/main/model.safetensors")
    name, data = fetch_header(access, address)
    assert (name, data) == ("model.safetensors", FILES["org/single"]["model.safetensors"])


def test_a_gguf_is_read_as_far_as_its_header_goes(
    hub: Served, access: HubAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More is asked for until the header is whole: 1 MiB, 2, then 4 of a file of 6."""
    from tests.readers.test_model_files import gguf_bytes  # noqa: PLC0415 - only here

    whole = gguf_bytes(vocabulary=2**18) + bytes(4 * 2**20)
    monkeypatch.setitem(FILES["org/plain"], "x.gguf", whole)
    address = read_hub_address(access, f"{hub.url}/org/plain/blob/main/x.gguf")
    _, data = fetch_header(access, address)
    assert len(data) < len(whole)
    assert read_gguf(data).architecture == "llama"
    small = gguf_bytes(vocabulary=3)
    monkeypatch.setitem(FILES["org/plain"], "x.gguf", small)
    assert fetch_header(access, address)[1] == small


def test_a_server_without_ranges_is_read_from_its_start(hub: Served, access: HubAccess) -> None:
    """A whole file in answer to a range is cut; a second piece of it cannot be had."""
    hub.with_ranges = False
    weights = fetch_weights(access, config_of(access, "org/single"))
    assert weights is not None
    assert weights.parameters == 6
    with pytest.raises(Unavailable, match="a part of a file"):
        fetch_weights(access, config_of(access, "org/sharded"))


# Refusals


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("org/absent", Unknown, "does not exist on the Hub, or is not public"),
        ("org/empty", Unknown, r"has no config\.json"),
        ("org/gated", Unsupported, "gated"),
        ("org/html", Malformed, "not JSON"),
        ("org/list", Malformed, "JSON object"),
        ("org/nothing", Malformed, "is empty"),
        ("org/nan", Malformed, "NaN"),
        ("org/huge", DomainError, "longer than the 8388608 bytes"),
        ("org/endless", DomainError, "longer than the 8388608 bytes"),
        ("org/silent", Unavailable, r"within 0\.5 seconds"),
        ("org/dripping", Unavailable, r"within 0\.5 seconds"),
        ("org/cut", Unavailable, "broke off"),
        ("org/garbage", Unavailable, "broke off"),
        ("org/failing", Unavailable, "status 500"),
        ("org/busy", Unavailable, "429"),
        ("org/loop", Unavailable, "more than 5 times"),
        ("org/nowhere", Unavailable, "no address"),
    ],
)
def test_each_way_to_fail_has_its_sentence(
    text: str, error: type[DomainError], words: str, access: HubAccess
) -> None:
    """Missing, gated, wrong, oversized, slow and broken answers are refused, each in its words."""
    started = time.monotonic()
    with pytest.raises(error, match=words) as caught:
        config_of(access, text)
    assert caught.value.field == ("hub",)
    assert time.monotonic() - started < 2


def test_a_missing_revision_names_that_field(access: HubAccess) -> None:
    """The revision is at fault, not the model."""
    with pytest.raises(Unknown, match="does not exist in org/plain") as caught:
        config_of(access, "org/plain", "absent")
    assert caught.value.field == ("revision",)


def test_a_mirror_without_error_codes_is_understood(hub: Served, access: HubAccess) -> None:
    """By status alone, 403 is gated, 401 not public, 404 a file that is not there."""
    hub.with_codes = False
    with pytest.raises(Unknown, match="not public"):
        config_of(access, "org/absent")
    with pytest.raises(Unknown, match=r"no config\.json"):
        config_of(access, "org/empty")


def test_nothing_listens_there(access: HubAccess) -> None:
    """A closed port is refused in words, and so is a name that does not exist."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{probe.getsockname()[1]}"
    for endpoint, words in ((closed, "takes no connection"), ("http://no.invalid", "not found")):
        client = replace(access.client, endpoint=endpoint)
        with pytest.raises(Unavailable, match=words):
            config_of(replace(access, client=client, cache=None), "org/plain")


def test_an_open_server_is_no_secure_one(hub: Served, access: HubAccess) -> None:
    """A secure connection to a server that speaks plain HTTP is refused, not downgraded."""
    client = replace(access.client, endpoint=hub.url.replace("http:", "https:"))
    with pytest.raises(Unavailable, match="no secure connection"):
        config_of(replace(access, client=client), "org/plain")


# Tokens


def test_a_token_opens_a_gated_model(hub: Served, access: HubAccess) -> None:
    """It is sent as the Hub wants it; a wrong one is said to be wrong."""
    assert config_of(access.with_token(GOOD_TOKEN), "org/gated").config == LLAMA
    assert hub.requests[-1][1]["authorization"] == f"Bearer {GOOD_TOKEN}"
    with pytest.raises(Unsupported, match="token given does not open"):
        config_of(access.with_token("hf_other"), "org/gated")


def test_a_token_stays_with_the_endpoint(hub: Served, access: HubAccess) -> None:
    """A redirect to another host or port is followed without the token."""
    with fake_hub() as other:
        hub.redirect_to = f"{other.url}/org/plain/resolve/main/config.json"
        assert config_of(access.with_token(GOOD_TOKEN), "org/moved").config == LLAMA
        assert "authorization" in hub.requests[-1][1]
        assert "authorization" not in other.requests[-1][1]


def test_nothing_read_with_a_token_is_kept(hub: Served, access: HubAccess, tmp_path: Path) -> None:
    """What only its holder may read is asked for anew, and no file holds it or the token."""
    holder = access.with_token(GOOD_TOKEN)
    config_of(holder, "org/gated")
    config_of(holder, "org/gated")
    assert len(hub.requests) == 2
    assert not list(tmp_path.rglob("*.hub"))
    with pytest.raises(Unsupported):
        config_of(access, "org/gated")


@pytest.mark.parametrize("token", ["a b", "x\r\nHost: y", "é", "x" * 513])
def test_a_token_that_is_none_is_refused(token: str, access: HubAccess) -> None:
    """What could not stand in a header never gets there, and is not repeated."""
    with pytest.raises(Malformed) as caught:
        access.with_token(token)
    assert token not in str(caught.value)
    assert access.with_token("") is access


def test_no_token_over_an_open_connection(
    access: HubAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a public host a token goes encrypted or not at all."""
    monkeypatch.setattr(client_module, "_resolved", lambda _: ["93.184.215.14"])
    client = replace(access.client, endpoint="http://hub.example")
    with pytest.raises(Unsupported, match="encrypted connection only") as caught:
        config_of(replace(access, client=client).with_token("t"), "org/plain")
    assert caught.value.field == ("token",)


# Where it may connect to


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("240.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.215.14", True),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::5db8:d70e", True),
        ("2002:7f00:1::", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:  # noqa: FBT001
    """Loopback, private, link-local, shared, multicast, and IPv6 spellings of them are not."""
    assert is_public(address) is public


def test_a_private_endpoint_needs_the_operators_word(hub: Served, access: HubAccess) -> None:
    """127.0.0.1, or a name that leads there, is refused unless the setting allows it."""
    for endpoint in (hub.url, hub.url.replace("127.0.0.1", "localhost")):
        client = Client(endpoint=endpoint)
        with pytest.raises(Unsupported, match="KV_LEDGER_HUB_ALLOW_PRIVATE"):
            config_of(replace(access, client=client), "org/plain")
    assert hub.requests == []


@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/latest",
        "http://127.0.0.1:1/x",
        "http://[::1]:1/x",
        "http://localhost",
    ],
)
def test_a_public_endpoint_leads_to_no_private_address(
    target: str, hub: Served, access: HubAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redirect is checked as the endpoint is, whatever the setting says of the endpoint."""
    real_resolved, real_connected = client_module._resolved, client_module._connected
    monkeypatch.setattr(
        client_module,
        "_resolved",
        lambda url: ["93.184.215.14"] if url.hostname == "hub.example" else real_resolved(url),
    )
    monkeypatch.setattr(
        client_module,
        "_connected",
        lambda url, _, deadline: real_connected(url, ["127.0.0.1"], deadline),
    )
    client = replace(access.client, endpoint=hub.url.replace("127.0.0.1", "hub.example"))
    hub.redirect_to = target
    with pytest.raises(Unsupported, match="redirects to"):
        config_of(replace(access, client=client, cache=None), "org/moved")


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        ("http://169.254.1.1/x", Unsupported, "private network"),
        ("ftp://127.0.0.1/x", Unsupported, "not encrypted"),
        ("http://127.0.0.1:99999/x", Unavailable, "no address"),
        ("http://[bad/x", Unavailable, "no address"),
        ("http://127.0.0.1:1/\u00e9 \t", Unavailable, "connection|broke off|no address"),
    ],
)
def test_where_a_mirrors_redirect_may_not_lead(
    target: str, error: type[DomainError], words: str, hub: Served, access: HubAccess
) -> None:
    """Even from a private mirror: no link-local address, no other scheme, nothing unreadable."""
    hub.redirect_to = target
    with pytest.raises(error, match=words):
        config_of(access, "org/moved")


def test_encryption_is_never_dropped() -> None:
    """A redirect from https to http is refused."""
    from urllib.parse import urlsplit  # noqa: PLC0415 - only here

    with pytest.raises(Unsupported, match="not encrypted"):
        client_module._redirected(urlsplit("https://hub.example/a"), "http://hub.example/b")


def test_a_time_that_is_up_is_said_so() -> None:
    """A deadline in the past gives no further wait."""
    with pytest.raises(Unavailable, match="within 0 seconds"):
        _ = Deadline.after(0).left


# Settings


def test_it_is_off_unless_enabled() -> None:
    """The refusal says what else can be done, and how an operator enables it."""
    with pytest.raises(Unsupported, match="KV_LEDGER_HUB_ENABLED") as caught:
        hub_access(Settings())
    assert caught.value.field == ("hub",)


@pytest.mark.parametrize(
    ("setting", "variable", "endpoint"),
    [
        ("", None, "https://huggingface.co"),
        ("", "https://hf-mirror.example", "https://hf-mirror.example"),
        ("https://own.example", "https://hf-mirror.example", "https://own.example"),
    ],
)
def test_the_endpoint(
    setting: str, variable: str | None, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This server's own setting wins over HF_ENDPOINT, and that over the public Hub."""
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    if variable is not None:
        monkeypatch.setenv("HF_ENDPOINT", variable)
    assert endpoint_of(Settings(hub_endpoint=setting)) == endpoint


@pytest.mark.parametrize("bad", ["file:///etc", "hub.example", "https://"])
def test_an_endpoint_that_is_no_address_is_refused(bad: str) -> None:
    """A slip of the operator is said, without repeating what may hold a password."""
    with pytest.raises(Unsupported, match="no http address"):
        hub_access(Settings(hub_enabled=True, hub_endpoint=bad))


# The cache


def test_a_second_look_asks_nobody(hub: Served, access: HubAccess) -> None:
    """A branch's commit is remembered for minutes, and what a commit holds for good."""
    first = config_of(access, "org/sharded")
    fetch_weights(access, first)
    asked = len(hub.requests)
    again = config_of(access, "org/sharded")
    assert again == first
    assert fetch_weights(access, again) == fetch_weights(access, first)
    assert len(hub.requests) == asked


def test_that_a_file_is_missing_is_remembered_too(hub: Served, access: HubAccess) -> None:
    """The index that a model lacks is not asked for again; nor is its config."""
    fetch_weights(access, config_of(access, "org/single"))
    asked = len(hub.requests)
    assert fetch_weights(access, config_of(access, "org/single")) is not None
    assert len(hub.requests) == asked


def test_a_branch_is_asked_for_again_after_a_while(
    hub: Served, access: HubAccess, tmp_path: Path
) -> None:
    """Five minutes later the branch may stand elsewhere."""
    config_of(access, "org/plain")
    past = time.time() - 301
    for path in (tmp_path / "cache").iterdir():
        os.utime(path, (past, past))
    config_of(access, "org/plain")
    assert len(hub.requests) == 2
    config_of(access, "org/plain", COMMIT)
    assert len(hub.requests) == 2


def test_what_cannot_be_read_is_not_kept(hub: Served, access: HubAccess) -> None:
    """A page of HTML in place of a config is asked for again."""
    for _ in range(2):
        with pytest.raises(Malformed):
            config_of(access, "org/html")
    assert len(hub.requests) == 2
    with pytest.raises(Malformed):
        config_of(replace(access, cache=None), "org/html")


def test_a_damaged_entry_is_read_anew(access: HubAccess, tmp_path: Path) -> None:
    """Totals that are no totals are dropped in favour of the header."""
    config = config_of(access, "org/single")
    fetch_weights(access, config)
    for path in (tmp_path / "cache").iterdir():
        if path.read_bytes().startswith(b"[["):
            path.write_bytes(b'[["F16"]]')
    weights = fetch_weights(access, config)
    assert weights is not None
    assert weights.parameters == 6


def test_the_bound_drops_what_was_used_longest_ago(tmp_path: Path) -> None:
    """Three entries of one piece each in room for two: the one not used goes."""
    cache = HubCache(folder=tmp_path / "c", limit_bytes=8192)
    for name, age in (("a", 30), ("b", 20)):
        cache.put(b"x", name)
        past = time.time() - age
        os.utime(cache._path((name,)), (past, past))
    assert cache.get("a") == b"x"
    cache.put(b"y", "c")
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (b"x", None, b"y")
    cache.put(bytes(8193), "too long")
    assert cache.get("too long") is None
    cache.drop("a")
    assert cache.get("a") is None
    (tmp_path / "c" / "not ours").write_bytes(bytes(20_000))
    cache.put(b"z", "d")
    assert (cache.get("c"), cache.get("d")) == (b"y", b"z")
    cache.put(b"", "e")
    HubCache(folder=tmp_path / "c", limit_bytes=0).put(b"", "f")
    assert cache.get("d") is None
    assert (tmp_path / "c" / "not ours").exists()


def test_a_cache_that_cannot_be_written_is_a_miss(hub: Served, tmp_path: Path) -> None:
    """A read-only file system costs speed and nothing else."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    access = access_to(hub.url, tmp_path, hub_cache_dir=str(blocked))
    config_of(access, "org/plain")
    config_of(access, "org/plain")
    assert len(hub.requests) == 2
    assert access_to(hub.url, tmp_path, hub_cache_bytes=0).cache is None


def test_a_write_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills up while an entry is written keeps no half of it."""
    cache = HubCache(folder=tmp_path / "c", limit_bytes=8192)

    def full(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(Path, "replace", full)
    cache.put(b"x", "a")
    assert list((tmp_path / "c").iterdir()) == []


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a setting it lies in the user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_folder() == Path("/caches/kv-ledger/hub")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == Path.home() / ".cache" / "kv-ledger" / "hub"


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container that runs as any number everything is read anew."""

    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert default_folder() is None
    assert hub_access(Settings(hub_enabled=True)).cache is None


def test_no_other_module_opens_a_connection(root: Path) -> None:
    """Only app/hub imports what could reach a network."""
    users = {
        path.relative_to(root / "app").parts[0]
        for path in (root / "app").rglob("*.py")
        for line in path.read_text().splitlines()
        if line.strip().startswith(("import socket", "import http.client", "import ssl",
                                    "import urllib.request", "from urllib.request",
                                    "import httpx", "import requests", "import huggingface_hub",
                                    "from huggingface_hub"))
    }  # fmt: skip
    assert users == {"hub"}
