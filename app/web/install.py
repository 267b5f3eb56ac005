"""Puts the cross-cutting concerns around the application, outermost last."""

from __future__ import annotations

from asgi_correlation_id import CorrelationIdMiddleware
from fastapi import FastAPI
from prometheus_fastapi_instrumentator import Instrumentator
from secure.middleware import SecureASGIMiddleware
from servestatic import ServeStaticASGI
from starlette_compress import CompressMiddleware

from app.web import assets
from app.web.headers import security_headers
from app.web.observability import AccessLog

COMPRESSION_LEVEL = 4


def install(app: FastAPI) -> None:
    """Add metrics, static files, compression, logs, request ids and security headers."""
    Instrumentator(excluded_handlers=["/metrics", "/healthz", "/readyz"]).instrument(app).expose(
        app, include_in_schema=False
    )
    app.add_middleware(
        CompressMiddleware,
        zstd_level=COMPRESSION_LEVEL,
        brotli_quality=COMPRESSION_LEVEL,
        gzip_level=COMPRESSION_LEVEL,
    )
    app.add_middleware(
        ServeStaticASGI,
        root=assets.root(),
        prefix=assets.PREFIX,
        max_age=0 if not assets.manifest() else 60,
        allow_all_origins=False,
        immutable_file_test=assets.is_immutable,
    )
    app.add_middleware(AccessLog)
    app.add_middleware(CorrelationIdMiddleware)
    app.add_middleware(SecureASGIMiddleware, secure=security_headers())
