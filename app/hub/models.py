"""A model's config and the headers of its weights, read from the Hub."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote, urlsplit

from app.domain.errors import (
    DomainError,
    Malformed,
    Missing,
    Unavailable,
    Unknown,
    Unsupported,
    shown,
)
from app.hub.cache import BRANCH_SECONDS, HubCache, default_folder
from app.hub.client import Client, Deadline, Reply
from app.readers.headers import MAX_HEADER_BYTES, HeaderTruncated
from app.readers.hub_address import HubAddress, parse_hub_address
from app.readers.json_text import MAX_CONFIG_BYTES, parse_json_object
from app.readers.model_files import (
    FileWeights,
    TypeTotal,
    merged,
    types_of_header,
    weights_of_index,
    weights_of_types,
)
from app.readers.safetensors import header_length, read_safetensors, read_safetensors_index
from app.settings import Settings

PUBLIC_ENDPOINT = "https://huggingface.co"
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_INDEX_BYTES = 32 * 2**20
# Headers of most shards fit into the first piece; a longer one takes a second request.
FIRST_HEADER_BYTES = 2**17
FIRST_GGUF_BYTES = 2**20
MAX_SHARDS_READ = 200
_PARALLEL_READS = 8
# Many small requests, where a config is one.
_WEIGHTS_PATIENCE = 4
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MAX_TOKEN_CHARACTERS = 512
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubAccess:
    """Where to read from, within which bounds, and for whom (`token`, None for anyone)."""

    client: Client
    timeout_s: float
    cache: HubCache | None
    token: str | None = field(default=None, repr=False)

    @property
    def endpoint(self) -> str:
        """Return the address of the Hub or of its mirror."""
        return self.client.endpoint

    def with_token(self, token: str | None) -> HubAccess:
        """Return the same access for the holder of a token; what it reads is kept nowhere.

        Raises:
            Malformed: for a token that could not stand in a header.

        """
        if not token:
            return self
        if len(token) > _MAX_TOKEN_CHARACTERS or not _TOKEN.fullmatch(token):
            raise Malformed("{field} is no token of the Hub", field="token")
        return replace(self, token=token, cache=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """A config.json: of which commit it is, and where a person finds it."""

    address: HubAddress
    commit: str | None
    config: dict[str, object]
    url: str


def hub_access(settings: Settings) -> HubAccess:
    """Return how this process reads from the Hub.

    Raises:
        Unsupported: where its operator has not enabled that, or the endpoint is no address.

    """
    if not settings.hub_enabled:
        raise Unsupported(
            "{field}: reading from the Hub is switched off here; paste the config.json instead, or "
            "ask the operator of this server to set KV_LEDGER_HUB_ENABLED",
            field="hub",
        )
    endpoint = endpoint_of(settings)
    parts = urlsplit(endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise Unsupported("{field}: the Hub endpoint set on this server is no http address",
                          field="hub")  # fmt: skip
    folder = Path(settings.hub_cache_dir) if settings.hub_cache_dir else default_folder()
    cache = None
    if settings.hub_cache_bytes and folder is not None:
        cache = HubCache(folder=folder, limit_bytes=settings.hub_cache_bytes)
    return HubAccess(
        client=Client(endpoint=endpoint, allow_private=settings.hub_allow_private),
        timeout_s=settings.hub_timeout_s,
        cache=cache,
    )


def endpoint_of(settings: Settings) -> str:
    """Return the endpoint: this server's own setting, else HF_ENDPOINT, else the public Hub."""
    return settings.hub_endpoint or os.environ.get("HF_ENDPOINT", "") or PUBLIC_ENDPOINT


def read_hub_address(access: HubAccess, text: str, revision: str | None = None) -> HubAddress:
    """Return which model is meant; raises as `parse_hub_address` does."""
    return parse_hub_address(text, revision=revision or None, endpoint=access.endpoint)


def fetch_config(access: HubAccess, address: HubAddress) -> HubConfig:
    """Return the config.json of a model at a revision.

    Raises:
        Unknown: when there is no such model, revision or config.json, as far as this token sees.
        Unsupported: for a gated model that this token does not open.
        Unavailable: for a Hub that does not answer, in time or at all.
        Malformed: for an answer that is no JSON object.

    """
    deadline = Deadline.after(access.timeout_s)
    commit, data = _file_at_commit(access, address, CONFIG, deadline, MAX_CONFIG_BYTES)
    if data is None:
        raise Unknown("{field}: {repo} has no {file}", field="hub", repo=address.repo, file=CONFIG)
    try:
        config = parse_json_object(data, field="hub")
        if not config:
            raise Malformed("{field}: {file} of {repo} is empty", field="hub", file=CONFIG,
                            repo=address.repo)  # fmt: skip
    except DomainError:
        if access.cache is not None and commit is not None:
            access.cache.drop(*_key(access, address.repo, commit, CONFIG))
        raise
    at = commit or address.revision
    url = f"{access.endpoint.rstrip('/')}/{address.repo}/blob/{at}/{CONFIG}"
    return HubConfig(address=address, commit=commit, config=config, url=url)


def fetch_weights(access: HubAccess, found: HubConfig) -> FileWeights | None:
    """Return what the safetensors files of a config's commit hold; None where there are none.

    Of a model in more shards than are read it is what the index declares.

    Raises:
        DomainError: as `fetch_config`, and for headers that cannot be read.

    """
    address = replace(found.address, revision=found.commit or found.address.revision)
    deadline = Deadline.after(_WEIGHTS_PATIENCE * access.timeout_s)
    _, data = _file_at_commit(access, address, INDEX, deadline, MAX_INDEX_BYTES)
    if data is None:
        try:
            totals = _shard_totals(access, address, SINGLE, deadline)
        except Missing:
            return None
        return weights_of_types(totals, files=1)
    index = read_safetensors_index(data, name="hub")
    shards = sorted(index.tensors_by_shard)
    if len(shards) > MAX_SHARDS_READ:
        return weights_of_index(index)
    pool = ThreadPoolExecutor(max_workers=_PARALLEL_READS)
    try:
        rows = pool.map(lambda shard: _shard_totals(access, address, shard, deadline), shards)
        return weights_of_types(merged(total for row in rows for total in row), files=len(shards))
    finally:
        pool.shutdown(cancel_futures=True)  # after a refusal the rest is not asked for


def fetch_header(access: HubAccess, address: HubAddress) -> tuple[str, bytes]:
    """Return (name, first bytes) of the GGUF or safetensors file that an address names.

    As many bytes are asked for as its header turns out to need.

    Raises:
        DomainError: as `fetch_config`.

    """
    file = address.file or SINGLE
    deadline = Deadline.after(_WEIGHTS_PATIENCE * access.timeout_s)
    if file.casefold().endswith(".safetensors"):
        return file, _safetensors_head(access, address, file, deadline)
    from app.readers.gguf import read_gguf  # noqa: PLC0415 - only for such a file

    size = FIRST_GGUF_BYTES
    while True:
        data = _head(access, address, file, deadline, size)
        if len(data) < size or size >= MAX_HEADER_BYTES:
            return file, data
        try:
            read_gguf(data, name="hub")
        except HeaderTruncated as error:
            size = min(MAX_HEADER_BYTES, max(2 * size, size + error.more_bytes))
        else:
            return file, data


# One file


def _file_at_commit(
    access: HubAccess, address: HubAddress, file: str, deadline: Deadline, limit_bytes: int
) -> tuple[str | None, bytes | None]:
    """Return (commit, content) of a small file; no content for one that the model lacks."""
    commit = _known_commit(access, address)
    if access.cache is not None and commit is not None:
        kept = access.cache.get(*_key(access, address.repo, commit, file))
        if kept is not None:
            # An empty entry stands for a file that the commit lacks.
            return commit, kept or None
    path = _path(address if commit is None else replace(address, revision=commit), file)
    reply = access.client.get(path, deadline=deadline, limit_bytes=limit_bytes, token=access.token)
    commit = commit or _commit_of(reply)
    missing = _is_missing_file(reply)
    if not missing:
        _check_status(reply, address, access)
    if access.cache is not None and commit is not None:
        content = b"" if missing else reply.body
        access.cache.put(content, *_key(access, address.repo, commit, file))
        if not _COMMIT.fullmatch(address.revision):
            access.cache.put(commit.encode(), *_branch_key(access, address))
    return commit, None if missing else reply.body


def _key(access: HubAccess, repo: str, commit: str, file: str) -> tuple[str, ...]:
    return ("file", access.endpoint, repo, commit, file)


def _branch_key(access: HubAccess, address: HubAddress) -> tuple[str, ...]:
    return ("branch", access.endpoint, address.repo, address.revision)


def _known_commit(access: HubAccess, address: HubAddress) -> str | None:
    """Return the commit that a revision stands for, as far as it is known without asking."""
    if _COMMIT.fullmatch(address.revision):
        return address.revision
    if access.cache is None:
        return None
    kept = access.cache.get(*_branch_key(access, address), newer_than_s=BRANCH_SECONDS)
    text = (kept or b"").decode("ascii", "replace")
    return text if _COMMIT.fullmatch(text) else None


def _commit_of(reply: Reply) -> str | None:
    commit = reply.headers.get("x-repo-commit", "")
    return commit if _COMMIT.fullmatch(commit) else None


def _path(address: HubAddress, file: str) -> str:
    revision = quote(address.revision, safe="")
    return f"{address.repo}/resolve/{revision}/{quote(file)}"


def _is_missing_file(reply: Reply) -> bool:
    """Return whether the model is there and lacks this file (the Hub says which in a header)."""
    return (
        reply.status == HTTPStatus.NOT_FOUND
        and reply.headers.get("x-error-code", "EntryNotFound") == "EntryNotFound"
    )


def _check_status(reply: Reply, address: HubAddress, access: HubAccess) -> None:
    """Refuse an answer that is no file, in the Hub's own terms.

    Without a right to see it a model looks like one that is not there: the Hub answers 401 to both.
    """
    status, code = reply.status, reply.headers.get("x-error-code", "")
    if status in {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}:
        return
    if code == "GatedRepo" or status == HTTPStatus.FORBIDDEN:
        if access.token is None:
            raise Unsupported("{field}: {repo} is gated; a token of somebody who accepted its "
                              "terms opens it", field="hub", repo=address.repo)  # fmt: skip
        raise Unsupported("{field}: the token given does not open {repo}", field="hub",
                          repo=address.repo)  # fmt: skip
    if code == "RevisionNotFound":
        raise Unknown("{field} {value} does not exist in {repo}", field="revision",
                      value=shown(address.revision), repo=address.repo)  # fmt: skip
    if status in {HTTPStatus.NOT_FOUND, HTTPStatus.UNAUTHORIZED}:
        raise Unknown("{field}: {repo} does not exist on the Hub, or is not public", field="hub",
                      repo=address.repo)  # fmt: skip
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        raise Unavailable("{field}: the Hub asks to be left alone for a while (429)", field="hub")
    raise Unavailable("{field}: the Hub answered with status {status}", field="hub",
                      status=int(status))  # fmt: skip


# Headers by range


def _head(
    access: HubAccess, address: HubAddress, file: str, deadline: Deadline, size: int, start: int = 0
) -> bytes:
    """Return up to `size` bytes of a file from `start` on.

    Raises:
        Missing: when the model lacks the file.

    """
    reply = access.client.get(
        _path(address, file), deadline=deadline, limit_bytes=size, token=access.token,
        first_byte=start,
    )  # fmt: skip
    if _is_missing_file(reply):
        raise Missing("{field}: {repo} has no {file}", field="hub", repo=address.repo,
                      file=shown(file))  # fmt: skip
    _check_status(reply, address, access)
    return reply.body


def _safetensors_head(
    access: HubAccess, address: HubAddress, file: str, deadline: Deadline
) -> bytes:
    data = _head(access, address, file, deadline, FIRST_HEADER_BYTES)
    length = 8 + header_length(data, name="hub")
    if length > len(data) == FIRST_HEADER_BYTES:
        data += _head(access, address, file, deadline, length - len(data), len(data))
    return data


def _shard_totals(
    access: HubAccess, address: HubAddress, file: str, deadline: Deadline
) -> tuple[TypeTotal, ...]:
    """Return what one file holds by dtype; kept as these few numbers, not as the header."""
    key = ("totals", access.endpoint, address.repo, address.revision, file)
    keeps = access.cache is not None and _COMMIT.fullmatch(address.revision)
    if access.cache is not None and keeps:
        kept = _totals_of(access.cache.get(*key))
        if kept is not None:
            return kept
    header = read_safetensors(_safetensors_head(access, address, file, deadline), name="hub")
    totals = types_of_header(header)
    if access.cache is not None and keeps:
        rows = [[t.type, t.tensors, t.parameters, t.size_bytes] for t in totals]
        access.cache.put(json.dumps(rows).encode(), *key)
    return totals


def _totals_of(kept: bytes | None) -> tuple[TypeTotal, ...] | None:
    if kept is None:
        return None
    try:
        return tuple(
            TypeTotal(type=str(kind), tensors=int(tensors), parameters=int(parameters),
                      size_bytes=int(size))
            for kind, tensors, parameters, size in json.loads(kept)
        )  # fmt: skip
    except (ValueError, TypeError):
        return None
