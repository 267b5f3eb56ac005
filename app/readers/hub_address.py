"""Which model of the Hub a person means: `org/name`, or an address pasted from a browser.

Names follow the Hub's own rule (https://huggingface.co/docs/huggingface_hub/package_reference/
utilities#huggingface_hub.utils.validate_repo_id): one or two parts of letters, digits, `-`, `_`
and `.`, none of which begins or ends with `-` or `.`, nor holds `--` or `..`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from app.domain.errors import Conflict, Malformed, Unsupported, shown

PUBLIC_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})
DEFAULT_REVISION = "main"
MAX_ADDRESS_CHARACTERS = 1000
MAX_REPO_CHARACTERS = 96
MAX_REVISION_CHARACTERS = 200
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_REVISION = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._/+-]*[A-Za-z0-9_])?")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ /+()-]*")
# What stands between a model's name and a revision in the Hub's addresses.
_VIEWS = frozenset({"tree", "blob", "resolve", "raw"})
_OTHER_KINDS = frozenset({"datasets", "spaces", "docs", "papers", "collections", "api"})
_HEADER_FILES = (".gguf", ".safetensors", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubAddress:
    """A model, the revision asked for, and the file where the address names one."""

    repo: str
    revision: str = DEFAULT_REVISION
    file: str | None = None


def parse_hub_address(
    text: str, *, revision: str | None = None, endpoint: str = "", field: str = "hub"
) -> HubAddress:
    """Return what `text` names: an id, or an address on the Hub or on `endpoint`'s host.

    `revision` is what a field of its own says; the address may name the same, and no other.

    Raises:
        Malformed: for anything that is no id of a model and no address of one.
        Unsupported: for an address elsewhere, or of something that is no model.
        Conflict: for two different revisions.

    """
    text = text.strip()
    if not text or len(text) > MAX_ADDRESS_CHARACTERS:
        raise Malformed("{field} must be an id such as org/name, or its address on the Hub",
                        field=field)  # fmt: skip
    path, host = _path(text, field)
    if host and host not in PUBLIC_HOSTS and host != _host(endpoint):
        raise Unsupported(
            "{field} is an address on {host}; only the Hub's own, or those of the mirror that "
            "this server is set to, are read",
            field=field,
            host=shown(host),
        )
    repo, named, file = _parts(path, field, is_address=bool(host))
    if revision and named and revision != named:
        raise Conflict("{field} names revision {named}, and the revision given is {value}",
                       field=field, named=shown(named), value=shown(revision))  # fmt: skip
    return HubAddress(
        repo=_checked_repo(repo, field),
        revision=_checked_revision(revision or named or DEFAULT_REVISION),
        file=_checked_file(file, field),
    )


def _path(text: str, field: str) -> tuple[str, str]:
    """Return (path, host); the host is empty for a plain id."""
    if "://" not in text:
        first, _, rest = text.partition("/")
        if first.casefold() in PUBLIC_HOSTS:
            return rest.partition("?")[0].partition("#")[0], first.casefold()
        return text, ""
    try:
        parts = urlsplit(text)
        host = _authority(parts.hostname, parts.port)
    except ValueError:
        raise Malformed("{field} is no address: {value}", field=field,
                        value=shown(text)) from None  # fmt: skip
    if parts.scheme not in {"http", "https"} or parts.username is not None or not host:
        raise Malformed("{field} is no address: {value}", field=field, value=shown(text))
    return unquote(parts.path).strip("/"), host


def _authority(host: str | None, port: int | None) -> str:
    name = (host or "").casefold()
    return name if port in (None, 80, 443) else f"{name}:{port}"


def _host(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    return _authority(parts.hostname, parts.port)


def _parts(path: str, field: str, *, is_address: bool) -> tuple[str, str | None, str | None]:
    """Return (repo, revision, file) of a path such as org/name/blob/main/config.json."""
    pieces = path.strip("/").split("/")
    if is_address and pieces[0] == "models":
        pieces = pieces[1:]
    if pieces and pieces[0] in _OTHER_KINDS and (is_address or len(pieces) > 2):  # noqa: PLR2004
        raise Unsupported("{field} is no model: {value}", field=field, value=shown(path))
    at = next((i for i, piece in enumerate(pieces) if piece in _VIEWS and i in (1, 2)), None)
    if at is None:
        return "/".join(pieces), None, None
    repo, rest = "/".join(pieces[:at]), pieces[at + 1 :]
    if not rest:
        return repo, None, None
    if rest[:2] == ["refs", "pr"] and len(rest) > 2:  # noqa: PLR2004 - refs/pr/12 is one name
        return repo, "/".join(rest[:3]), "/".join(rest[3:]) or None
    return repo, rest[0], "/".join(rest[1:]) or None


def _checked_repo(repo: str, field: str) -> str:
    parts = repo.split("/")
    good = (
        1 <= len(parts) <= 2  # noqa: PLR2004 - org/name, or a name of the Hub's first years
        and len(repo) <= MAX_REPO_CHARACTERS
        and all(_NAME.fullmatch(part) for part in parts)
        and "--" not in repo
        and ".." not in repo
        and not repo.endswith(".git")
    )
    if not good:
        raise Malformed("{field} {value} is no id of a model; one looks like org/name",
                        field=field, value=shown(repo))  # fmt: skip
    return repo


def _checked_revision(revision: str) -> str:
    good = (
        len(revision) <= MAX_REVISION_CHARACTERS
        and _REVISION.fullmatch(revision)
        and ".." not in revision
        and "//" not in revision
    )
    if not good:
        raise Malformed("{field} {value} is no name of a branch, tag or commit",
                        field="revision", value=shown(revision))  # fmt: skip
    return revision


def _checked_file(file: str | None, field: str) -> str | None:
    """Return the file where its header can be read; a page of any other means the model."""
    if file is None or not file.casefold().endswith(_HEADER_FILES):
        return None
    if not _FILE.fullmatch(file) or ".." in file or "//" in file:
        raise Malformed("{field} is no address: {value}", field=field, value=shown(file))
    return file
