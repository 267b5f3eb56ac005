"""Everything an operator can set, from environment variables named KV_LEDGER_*."""

from __future__ import annotations

from functools import lru_cache

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

MIB = 2**20


class Settings(BaseSettings):
    """Bounds and switches; every default is safe for a public server."""

    model_config = SettingsConfigDict(env_prefix="KV_LEDGER_", frozen=True)

    max_body_bytes: int = Field(default=16 * MIB, ge=1024, description="Bound of a JSON body.")
    max_upload_bytes: int = Field(default=64 * MIB, ge=1024, description="Bound of an upload.")
    hub_enabled: bool = Field(default=False, description="Let users name a model on the Hub.")
    hub_endpoint: str = Field(default="", description="Endpoint; empty takes HF_ENDPOINT's.")
    hub_allow_private: bool = Field(default=False, description="Allow a private-address endpoint.")
    hub_timeout_s: float = Field(default=10.0, gt=0, le=120)
    hub_cache_bytes: int = Field(default=256 * MIB, ge=0)
    hub_cache_dir: str = Field(default="", description="Empty: the user's cache directory.")
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    shutdown_grace_s: int = Field(default=1, ge=0, le=60)


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return the process's settings, read once."""
    return Settings()
