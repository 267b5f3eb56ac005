"""What a person may paste to name a model of the Hub."""

from __future__ import annotations

import pytest
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import Conflict, DomainError, Malformed, Unsupported
from app.readers.hub_address import HubAddress, parse_hub_address

MIRROR = "https://mirror.example.org:8443/hf"
HUB = "https://huggingface.co"


@pytest.mark.parametrize(
    ("text", "repo", "revision", "file"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B", "main", None),
        ("  gpt2 ", "gpt2", "main", None),
        (f"{HUB}/Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "main", None),
        (f"{HUB}/Qwen/Qwen3-8B/", "Qwen/Qwen3-8B", "main", None),
        (f"{HUB}/models/Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "main", None),
        (f"{HUB}/Qwen/Qwen3-8B?library=vllm#files", "Qwen/Qwen3-8B", "main", None),
        ("huggingface.co/Qwen/Qwen3-8B?x=1", "Qwen/Qwen3-8B", "main", None),
        ("hf.co/gpt2", "gpt2", "main", None),
        (f"{HUB}/gpt2/tree/dev", "gpt2", "dev", None),
        (f"{HUB}/Qwen/Qwen3-8B/tree/main", "Qwen/Qwen3-8B", "main", None),
        (f"{HUB}/Qwen/Qwen3-8B/tree/refs%2Fpr%2F3", "Qwen/Qwen3-8B", "refs/pr/3", None),
        (f"{HUB}/a/b/blob/refs/pr/3/config.json", "a/b", "refs/pr/3", "config.json"),
        (f"{HUB}/a/b/blob/main/config.json", "a/b", "main", "config.json"),
        (f"{HUB}/a/b/resolve/v1.0/sub/x-Q4_K_M.gguf", "a/b", "v1.0", "sub/x-Q4_K_M.gguf"),
        (f"{HUB}/a/b/blob/main/README.md", "a/b", "main", None),
        (f"{HUB}/a/b/tree", "a/b", "main", None),
        ("https://mirror.example.org:8443/Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "main", None),
    ],
)
def test_ids_and_addresses(text: str, repo: str, revision: str, file: str | None) -> None:
    """An id, and every address that the Hub shows for a model, name that model."""
    expected = HubAddress(repo=repo, revision=revision, file=file)
    assert parse_hub_address(text, endpoint=MIRROR) == expected


def test_the_revision_may_be_said_twice_but_not_differently() -> None:
    """A field of its own may repeat the address's revision; a different one is a conflict."""
    text = f"{HUB}/a/b/tree/dev"
    assert parse_hub_address("a/b", revision="dev").revision == "dev"
    assert parse_hub_address(text, revision="dev").revision == "dev"
    with pytest.raises(Conflict):
        parse_hub_address(text, revision="main")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", Malformed),
        ("   ", Malformed),
        ("x" * 1001, Malformed),
        ("a/b/c", Malformed),
        ("../etc", Malformed),
        ("a/..", Malformed),
        ("a--b/c", Malformed),
        ("a/b.git", Malformed),
        ("a b/c", Malformed),
        ("-a/b", Malformed),
        ("https://huggingface.co/", Malformed),
        ("https://huggingface.co:bad/a/b", Malformed),
        ("https://[::1/a/b", Malformed),
        ("https:///a/b", Malformed),
        ("file:///etc/passwd", Malformed),
        ("https://user:secret@huggingface.co/a/b", Malformed),
        ("http://169.254.169.254/latest/meta-data", Unsupported),
        ("https://example.com/a/b", Unsupported),
        ("https://huggingface.co.example.com/a/b", Unsupported),
        ("https://mirror.example.org/a/b", Unsupported),
        (f"{HUB}/datasets/a/b", Unsupported),
        (f"{HUB}/spaces/a/b", Unsupported),
        ("datasets/a/b", Unsupported),
        (f"{HUB}/a/b/blob/main/x//y.gguf", Malformed),
        (f"{HUB}/a/b/blob/main/..%2F..%2Fx.json", Malformed),
        (f"{HUB}/a/b/tree/..", Malformed),
        (f"{HUB}/a/b/tree/{'x' * 201}", Malformed),
    ],
)
def test_anything_else_is_refused(text: str, error: type[DomainError]) -> None:
    """Another host, another kind of thing, a path that climbs: refused by name."""
    with pytest.raises(error):
        parse_hub_address(text, endpoint=MIRROR)


def test_without_a_mirror_only_the_hub_is_read() -> None:
    """An address elsewhere names its host in the refusal."""
    with pytest.raises(Unsupported, match=r"example\.com"):
        parse_hub_address("https://example.com/a/b")


@given(st.text(alphabet="aZ9-_./ ", min_size=1, max_size=30))
def test_ids_are_those_that_the_hub_takes(text: str) -> None:
    """No id is sent that the Hub's own library would refuse."""
    try:
        repo = parse_hub_address(text).repo
    except DomainError:
        return
    try:
        validate_repo_id(repo)
    except HFValidationError as error:  # pragma: no cover - the failure itself
        raise AssertionError(repo) from error


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing that can be typed gives anything but an address or a refusal."""
    try:
        found = parse_hub_address(text, endpoint=MIRROR)
    except DomainError:
        return
    assert not set(found.repo) & set(" ?#%\\")
