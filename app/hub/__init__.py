"""Reads a model's config and headers from the Hub: the only part that opens a connection.

Off unless `KV_LEDGER_HUB_ENABLED` is set; the endpoint is the operator's alone
(`KV_LEDGER_HUB_ENDPOINT`, else `HF_ENDPOINT`), and a token is the asker's alone: it comes with a
request, is used for it, and is neither logged nor kept. Calls block, so they belong in a thread.

    access = hub_access(settings()).with_token(token)
    found = fetch_config(access, read_hub_address(access, "Qwen/Qwen3-8B"))
    found.config, found.commit, fetch_weights(access, found)
"""

from __future__ import annotations

from app.hub.models import (
    HubAccess,
    HubConfig,
    endpoint_of,
    fetch_config,
    fetch_header,
    fetch_weights,
    hub_access,
    read_hub_address,
)

__all__ = [
    "HubAccess",
    "HubConfig",
    "endpoint_of",
    "fetch_config",
    "fetch_header",
    "fetch_weights",
    "hub_access",
    "read_hub_address",
]
