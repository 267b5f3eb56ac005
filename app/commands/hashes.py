"""`hashes`: the chained hashes of a prompt, and where a second one parts from it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from app import cli

Text = Annotated[str | None, typer.Option("--text", help="Plain text, each byte as one id.")]
Tokens = Annotated[str | None, typer.Option("--tokens", help="Token ids: '1..16 99'.")]
TokensFile = Annotated[
    Path | None, typer.Option("--tokens-file", help="A file of token ids; - for input.")
]
Identity = Annotated[
    list[str] | None, typer.Option("--identity", help="Textbook: name=value, once a name.")
]
Lora = Annotated[str | None, typer.Option("--lora", help="vLLM: an adapter's name.")]
LoraPath = Annotated[str | None, typer.Option("--lora-path", help="vLLM: an adapter's path.")]
LoraId = Annotated[int | None, typer.Option("--lora-id", help="vLLM until 0.11.0.")]
Salt = Annotated[str | None, typer.Option("--cache-salt", help="vLLM: the request's salt.")]
Media = Annotated[str | None, typer.Option("--media", help="vLLM: 'cat.png @ 4 + 8; …'.")]
OtherText = Annotated[str | None, typer.Option("--other-text", help="A second prompt.")]
OtherTokens = Annotated[str | None, typer.Option("--other-tokens", help="A second prompt.")]
OtherIdentity = Annotated[list[str] | None, typer.Option("--other-identity")]
OtherLora = Annotated[str | None, typer.Option("--other-lora")]
OtherLoraPath = Annotated[str | None, typer.Option("--other-lora-path")]
OtherSalt = Annotated[str | None, typer.Option("--other-cache-salt")]
OtherMedia = Annotated[str | None, typer.Option("--other-media")]
Scheme = Annotated[str, typer.Option("--scheme", help="textbook or vllm.")]
BlockSize = Annotated[int, typer.Option("--block-size", help="Tokens a block.")]
Algorithm = Annotated[str | None, typer.Option("--algorithm", help="vLLM's, sha256 unless given.")]
Seed = Annotated[str | None, typer.Option("--hash-seed", help="The value of PYTHONHASHSEED.")]
NoneHash = Annotated[str | None, typer.Option("--none-hash", help="Parent of block 0, hex.")]
Lookahead = Annotated[int, typer.Option("--lookahead-tokens")]
Drops = Annotated[bool, typer.Option("--drops-last-block", help="A drafter of the EAGLE kind.")]
Version = Annotated[str | None, typer.Option("--version", help="A release of vLLM.")]


def prompt_of(
    text: str | None, tokens: str | None, path: Path | None, parts: dict[str, Any], prefix: str = ""
) -> dict[str, Any]:
    """Return one prompt of the request; `parts` are the options beside its tokens."""
    from app.domain.errors import DomainError
    from app.readers.media_items import parse_media
    from app.readers.token_ids import byte_ids, parse_token_ids

    if sum(item is not None for item in (text, tokens, path)) != 1:
        cli.fail(f"give one of --{prefix}tokens, --{prefix}text" + (" or a file" * (not prefix)))
    try:
        if text is not None:
            body: dict[str, Any] = {"tokens": byte_ids(text)}
        else:
            listed = (tokens or "") if path is None else cli.text_of(path)
            body = {"tokens": parse_token_ids(listed)}
        if parts["media"]:
            body["multimodal"] = [asdict(item) for item in parse_media(parts["media"], "media")]
    except DomainError as error:
        cli.fail(str(error))
    if parts["identity"]:
        body["identity"] = _pairs(parts["identity"], prefix)
    lora = {"name": parts["lora"], "path": parts["lora_path"], "int_id": parts.get("lora_id")}
    if any(value is not None for value in lora.values()):
        body["lora"] = {name: value for name, value in lora.items() if value is not None}
    if parts["cache_salt"] is not None:
        body["cache_salt"] = parts["cache_salt"]
    return body


def _pairs(words: list[str], prefix: str) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    if not all(equals for _, equals, _ in pairs):
        cli.fail(f"--{prefix}identity takes name=value")
    return {name: value for name, _, value in pairs}


@cli.app.command("hashes")
def hashes(  # noqa: PLR0913 - one parameter an option
    *,
    tokens: Tokens = None,
    text: Text = None,
    tokens_file: TokensFile = None,
    identity: Identity = None,
    lora: Lora = None,
    lora_path: LoraPath = None,
    lora_id: LoraId = None,
    cache_salt: Salt = None,
    media: Media = None,
    other_tokens: OtherTokens = None,
    other_text: OtherText = None,
    other_identity: OtherIdentity = None,
    other_lora: OtherLora = None,
    other_lora_path: OtherLoraPath = None,
    other_cache_salt: OtherSalt = None,
    other_media: OtherMedia = None,
    scheme: Scheme = "textbook",
    block_size: BlockSize = 16,
    algorithm: Algorithm = None,
    hash_seed: Seed = None,
    none_hash: NoneHash = None,
    lookahead_tokens: Lookahead = 0,
    drops_last_block: Drops = False,
    version: Version = None,
    as_json: cli.JsonOption = False,
) -> None:
    """Print the hash of every full block of a prompt, and what a lookup may reuse."""
    from app.api.prefix_hashes import answer_hashes
    from app.api.prefix_hashes_schemas import PrefixHashesRequest

    own = {"identity": identity, "lora": lora, "lora_path": lora_path, "lora_id": lora_id,
           "cache_salt": cache_salt, "media": media}  # fmt: skip
    body = prompt_of(text, tokens, tokens_file, own) | {
        "scheme": scheme,
        "block_size": block_size,
        "algorithm": algorithm,
        "hash_seed": hash_seed,
        "none_hash": none_hash,
        "lookahead_tokens": lookahead_tokens,
        "drops_last_block": drops_last_block,
        "version": version,
    }
    other = {"identity": other_identity, "lora": other_lora, "lora_path": other_lora_path,
             "cache_salt": other_cache_salt, "media": other_media}  # fmt: skip
    if any(value is not None for value in (other_text, other_tokens, *other.values())):
        body["compare_with"] = prompt_of(other_text, other_tokens, None, other, "other-")
    answer = cli.run(answer_hashes, body, PrefixHashesRequest)
    if as_json:
        cli.print_json(answer)
        return
    _print(answer)


def _print(answer: Any) -> None:
    second = answer.compare_with.hashes if answer.compare_with else []
    typer.echo(
        f"{len(answer.hashes)} full blocks of {answer.block_size}, {answer.tail_tokens} over"
    )
    # Whole hashes a line each: a table would cut them short to fit the screen.
    for index in range(max(len(answer.hashes), len(second))):
        for name, hashes_of in (("", answer.hashes), (" of the other prompt", second)):
            if index < len(hashes_of):
                typer.echo(f"  block {index}{name}: {hashes_of[index]}")
    typer.echo(f"A hit covers at most {answer.max_hit_tokens}: {answer.max_hit_reason.text}")
    if answer.comparison:
        found = answer.comparison
        typer.echo(f"Matching blocks: {found.matched_blocks}; found: {found.hit_tokens} positions")
        for block in found.blocks:
            for reason in block.reasons:
                typer.echo(f"  block {block.index}: {reason.text}")
    cli.print_notes(answer)
