"""Puts the cross-cutting concerns around the application, outermost last."""

from __future__ import annotations

import sys

from fastapi import FastAPI
from servestatic import ServeStaticASGI
from starlette_compress import CompressMiddleware

from app.web import assets, metrics
from app.web.headers import SecurityHeaders
from app.web.methods import HeadAsGet
from app.web.observability import AccessLog
from app.web.patience import Patience

COMPRESSION_LEVEL = 4
# Below this, compressing costs more time than the bytes it saves.
SMALLEST_COMPRESSED_BYTES = 4096
# How long a thread that computes may keep the interpreter while the loop waits for it; the
# language's own 5 ms add up where several threads compute and an answer needs several turns.
SWITCH_SECONDS = 0.001


def install(app: FastAPI) -> None:
    """Add static files, metrics, compression, logs, request ids and security headers."""
    sys.setswitchinterval(SWITCH_SECONDS)
    static = ServeStaticASGI(
        None,
        root=assets.root(),
        prefix=assets.PREFIX,
        # Unbuilt sources may change under a running server; built names never do.
        autorefresh=not assets.manifest(),
        max_age=60 if assets.manifest() else 0,
        allow_all_origins=False,
        immutable_file_test=assets.is_immutable,
    )
    app.mount(assets.PREFIX.rstrip("/"), static)
    app.include_router(metrics.router)
    app.add_middleware(Patience)
    app.add_middleware(
        CompressMiddleware,
        minimum_size=SMALLEST_COMPRESSED_BYTES,
        zstd_level=COMPRESSION_LEVEL,
        brotli_quality=COMPRESSION_LEVEL,
        gzip_level=COMPRESSION_LEVEL,
    )
    app.add_middleware(HeadAsGet)
    app.add_middleware(metrics.Metrics)
    app.add_middleware(AccessLog)
    app.add_middleware(SecurityHeaders)
