"""`/hashes`: the chained hashes of two prompts side by side, and where the chain breaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from app.api import prefix_hashes_schemas as s
from app.api.prefix_hashes import ComputedHashes, compute_hashes, hashes_answer
from app.domain.errors import DomainError
from app.domain.hashing import IDENTITY_FIELDS, HashChain
from app.domain.notes import Note
from app.domain.vllm_prompt import NEWEST_RELEASE
from app.pages import page_parts as parts
from app.pages.model_form import integer
from app.pages.problems import Path, Problems, problems_of
from app.pages.render import sentence
from app.readers.media_items import parse_media
from app.readers.token_ids import byte_ids, parse_token_ids, token_ids_text
from app.web.language import language_of
from app.web.marks import mark

if TYPE_CHECKING:
    from app.pages.hash_examples import Example

router = APIRouter(include_in_schema=False)

SCHEMES = ("textbook", "vllm")
READINGS = ("ids", "text")
ROWS_SHOWN = 100
TOKENS_SHOWN = 8
# What one configuration of an engine has in common; the two prompts of an example differ elsewhere.
USUAL_IDENTITY = {
    "model": "llama-3.1-8b",
    "adapter": "none",
    "tokenizer": "llama-3.1",
    "position": "rope, from 0",
    "dtype": "fp16",
    "salt": "",
}
IDENTITY_LABELS = {
    "model": mark("Model"),
    "adapter": mark("Adapter"),
    "tokenizer": mark("Tokenizer"),
    "position": mark("Positions"),
    "dtype": mark("KV type"),
    "salt": mark("Salt"),
}
_SETTINGS = {
    "scheme": "textbook",
    "block_size": "2",
    "read": "ids",
    "algorithm": "sha256",
    "hash_seed": "",
    "lookahead_tokens": "0",
    "version": "",
}
_VLLM_FIELDS = ("lora", "lora_path", "cache_salt", "media")
# Where a part of a request stands in the form, after the letter of its prompt.
_PLACES = {
    "tokens": "",
    "lora": "_lora",
    "path": "_lora_path",
    "cache_salt": "_cache_salt",
    "media": "_media",
    **{name: f"_{name}" for name in IDENTITY_FIELDS},
}
_FORM_FIELDS = (
    *_SETTINGS,
    "offset",
    *(side + place for side in "ab" for place in _PLACES.values()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFields:
    """What the fields of one prompt hold, as text."""

    side: str
    prompt: str
    identity: dict[str, str]
    lora: str
    lora_path: str
    cache_salt: str
    media: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One block of both prompts."""

    index: int
    first_tokens: str
    second_tokens: str
    first_hash: str
    second_hash: str
    matches: bool
    reasons: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HashesView:
    """An answer, as the page shows it."""

    computed: ComputedHashes
    breaks: tuple[Note, ...]
    rows: list[Row]
    blocks: int
    offset: int
    next_offset: int | None
    previous_offset: int | None
    curl: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HashesPage:
    """Everything that the template of `/hashes` may name."""

    settings: dict[str, str]
    first: PromptFields
    second: PromptFields
    problems: Problems
    view: HashesView | None
    algorithms: tuple[str, ...]
    labels: Mapping[str, str]
    newest: str
    examples: tuple[Example, ...]
    query: str


def _placed(path: Path) -> Path:
    """Return a request's path with the form's names: those of a prompt begin with its letter."""
    side = "b" if path[0] == "compare_with" else "a"
    if "multimodal" in path:
        return [f"{side}_media"]
    return [
        side + _PLACES[part] if isinstance(part, str) and part in _PLACES else part for part in path
    ]


def _problems(error: DomainError | ValidationError) -> Problems:
    return problems_of(error, _FORM_FIELDS, "a", place=_placed)


def _prompt_fields(query: Mapping[str, str], side: str, usual: str) -> PromptFields:
    own = {name: query.get(f"{side}_{name}", "").strip() for name in _VLLM_FIELDS}
    identity = {
        name: query.get(f"{side}_{name}", USUAL_IDENTITY[name]).strip() for name in IDENTITY_FIELDS
    }
    return PromptFields(side=side, prompt=query.get(side, usual), identity=identity, **own)


def _fields(query: Mapping[str, str]) -> HashesPage:
    """Return the page before any answer: what its fields hold."""
    from app.domain.hash_compare import COUNTER_EXAMPLES
    from app.domain.vllm_hashes import ALGORITHMS
    from app.pages.hash_examples import EXAMPLES

    settings = {name: query.get(name, usual).strip() for name, usual in _SETTINGS.items()}
    settings["scheme"] = settings["scheme"] if settings["scheme"] in SCHEMES else "textbook"
    settings["read"] = settings["read"] if settings["read"] in READINGS else "ids"
    usual = COUNTER_EXAMPLES[0]
    return HashesPage(
        settings=settings,
        first=_prompt_fields(query, "a", token_ids_text(usual.first_tokens)),
        second=_prompt_fields(query, "b", token_ids_text(usual.second_tokens)),
        problems={},
        view=None,
        algorithms=ALGORITHMS,
        labels=IDENTITY_LABELS,
        newest=NEWEST_RELEASE,
        examples=EXAMPLES,
        query="",
    )


def hashes_page(query: Mapping[str, str]) -> HashesPage:
    """Return the page's context for a query string; mistakes become sentences beside fields."""
    page = _fields(query)
    page = replace(page, query=_canonical(page))
    try:
        body = _body(page)
        request = s.PrefixHashesRequest.model_validate(body)
        offset = max(integer("offset", query.get("offset") or "0"), 0)
        return replace(page, view=_view(page, compute_hashes(request), body, offset))
    except (DomainError, ValidationError) as error:
        return replace(page, problems=_problems(error))


def _body(page: HashesPage) -> dict[str, Any]:
    """Return the API's body for what the fields hold.

    Raises:
        DomainError: for a field whose text cannot be read.

    """
    settings = page.settings
    body = _prompt_body(page, page.first)
    body["block_size"] = integer("block_size", settings["block_size"])
    body["scheme"] = settings["scheme"]
    if settings["scheme"] == "vllm":
        body["algorithm"] = settings["algorithm"]
        body["hash_seed"] = settings["hash_seed"] or None
        ahead = integer("lookahead_tokens", settings["lookahead_tokens"] or "0")
        if ahead:
            body["lookahead_tokens"] = ahead
        if settings["version"]:
            body["version"] = settings["version"]
    if page.second.prompt.strip():
        body["compare_with"] = _prompt_body(page, page.second)
    return body


def _prompt_body(page: HashesPage, prompt: PromptFields) -> dict[str, Any]:
    if page.settings["read"] == "text":
        tokens = byte_ids(prompt.prompt, prompt.side)
    else:
        tokens = parse_token_ids(prompt.prompt, prompt.side)
    body: dict[str, Any] = {"tokens": tokens}
    if page.settings["scheme"] == "textbook":
        return body | {"identity": prompt.identity}
    if prompt.lora:
        body["lora"] = {"name": prompt.lora}
        if prompt.lora_path:
            body["lora"]["path"] = prompt.lora_path
    media = parse_media(prompt.media, f"{prompt.side}_media")
    if media:
        body["multimodal"] = [asdict(item) for item in media]
    if prompt.cache_salt:
        body["cache_salt"] = prompt.cache_salt
    return body


def _canonical(page: HashesPage) -> str:
    vllm = page.settings["scheme"] == "vllm"
    kept = [
        (name, value)
        for name, value in page.settings.items()
        if value != _SETTINGS[name] and (vllm or name in {"block_size", "read"})
    ]
    for prompt in (page.first, page.second):
        side = prompt.side
        kept.append((side, prompt.prompt if page.settings["read"] == "text"
                     else " ".join(prompt.prompt.split())))  # fmt: skip
        if vllm:
            own = {name: getattr(prompt, name) for name in _VLLM_FIELDS}
        else:
            own = {
                name: value
                for name, value in prompt.identity.items()
                if value != USUAL_IDENTITY[name]
            }
        kept += [(f"{side}_{name}", value) for name, value in own.items() if value or not vllm]
    return urlencode(kept)


def _tokens_text(chain: HashChain, index: int) -> str:
    """Return the tokens of a block for a cell; of many, the first."""
    tokens = (
        chain.blocks[index].tokens
        if index < len(chain.blocks)
        else chain.tail[(index - len(chain.blocks)) * chain.block_size :][: chain.block_size]
    )
    text = token_ids_text(tokens[:TOKENS_SHOWN])
    return f"{text} …" if len(tokens) > TOKENS_SHOWN else text


def _rows(computed: ComputedHashes, offset: int, count: int) -> list[Row]:
    first, second, comparison = computed.first, computed.second, computed.comparison
    if comparison is None or second is None:
        return [
            Row(
                index=block.index,
                first_tokens=_tokens_text(first, block.index),
                second_tokens="",
                first_hash=block.hash,
                second_hash="",
                matches=False,
                reasons=(),
            )
            for block in first.blocks[offset : offset + count]
        ]
    return [
        Row(
            index=block.index,
            first_tokens=_tokens_text(first, block.index),
            second_tokens=_tokens_text(second, block.index),
            first_hash=block.first_hash,
            second_hash=block.second_hash,
            matches=block.matches,
            reasons=block.reasons,
        )
        for block in comparison.blocks[offset : offset + count]
    ]


def _block_count(computed: ComputedHashes) -> int:
    compared = computed.comparison
    return len(computed.first.blocks if compared is None else compared.blocks)


def _view(
    page: HashesPage, computed: ComputedHashes, body: dict[str, Any], offset: int
) -> HashesView:
    compared = computed.comparison
    breaks = None if compared is None else compared.breaks_at
    blocks = _block_count(computed)
    after = offset + ROWS_SHOWN
    return HashesView(
        computed=computed,
        breaks=() if compared is None or breaks is None else compared.blocks[breaks].reasons,
        rows=_rows(computed, offset, ROWS_SHOWN),
        blocks=blocks,
        offset=offset,
        next_offset=after if after < blocks else None,
        previous_offset=max(0, offset - ROWS_SHOWN) if offset else None,
        curl=parts.curl("prefix-hashes", body),
        command=_command(page, body),
    )


def _command(page: HashesPage, body: dict[str, Any]) -> str:
    settings, vllm = page.settings, page.settings["scheme"] == "vllm"
    options: dict[str, object] = {
        "scheme": settings["scheme"],
        "block_size": settings["block_size"],
    }
    if vllm:
        for name in ("algorithm", "hash_seed", "lookahead_tokens", "version"):
            options[name] = settings[name] if name in body else ""
    words: list[str] = []
    for prompt, other in ((page.first, ""), (page.second, "other-")):
        if other and "compare_with" not in body:
            break
        kind = "tokens" if settings["read"] == "ids" else "text"
        words += [f"--{other}{kind}", prompt.prompt]
        if not vllm:
            for name, value in prompt.identity.items():
                words += [f"--{other}identity", f"{name}={value}"]
            continue
        named = {"lora": prompt.lora, "lora-path": prompt.lora_path,
                 "cache-salt": prompt.cache_salt, "media": prompt.media}  # fmt: skip
        for option, value in named.items():
            words += [f"--{other}{option}", value] if value else []
    return parts.command("hashes", *words, **options)


@router.api_route("/hashes", methods=["GET", "POST"], response_class=HTMLResponse)
def show(request: Request, query: parts.Asked) -> HTMLResponse:
    """Answer the page, or only its changing part when htmx asks."""
    page = hashes_page(query)
    return parts.answer_page(request, "hashes.html", page, "/hashes")


def _checked(query: Mapping[str, str]) -> tuple[s.PrefixHashesRequest, ComputedHashes]:
    body = _body(_fields(query)) | {"limit": s.MAX_BLOCK_PAGE}
    request = s.PrefixHashesRequest.model_validate(body)
    return request, compute_hashes(request)


@router.get("/export/hashes.json", response_model=None)
def export_json(request: Request) -> Response:
    """Answer the API's own answer for the page's query, as a download."""
    try:
        asked, computed = _checked(request.query_params)
    except (DomainError, ValidationError) as error:
        return parts.refused(_problems(error))
    return parts.json_download("hashes.json", hashes_answer(asked, computed))


@router.get("/export/hashes.csv", response_model=None)
def export_csv(request: Request) -> Response:
    """Answer the blocks of both prompts as CSV, with why they do not match."""
    try:
        _, computed = _checked(request.query_params)
    except (DomainError, ValidationError) as error:
        return parts.refused(_problems(error))
    language = language_of(request)
    return parts.csv_download(
        "hashes.csv",
        ["block", "first_hash", "second_hash", "matches", "reasons"],
        (
            (
                row.index,
                row.first_hash,
                row.second_hash,
                row.matches,
                " ".join(sentence(note, language) for note in row.reasons),
            )
            for row in _rows(computed, 0, _block_count(computed))
        ),
    )
