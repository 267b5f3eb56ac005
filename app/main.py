"""The application: wires the rooms together and does nothing else."""

from __future__ import annotations

from fastapi import FastAPI

from app.api import (
    accuracy,
    attention,
    block_pool,
    catalogue,
    compare,
    cost,
    devices,
    engines,
    exercises,
    fit,
    fragmentation,
    health,
    inspect,
    lab_runs,
    ledgers,
    parallel,
    prefix_hashes,
    problems,
    sharing,
    sweep,
    traces,
    transformers_plan,
)
from app.pages import accuracy as accuracy_page
from app.pages import attention as attention_page
from app.pages import compare as compare_page
from app.pages import cost as cost_page
from app.pages import docs, not_found
from app.pages import engines as engines_page
from app.pages import explain as explain_page
from app.pages import fit as fit_page
from app.pages import fragmentation as fragmentation_page
from app.pages import glossary as glossary_page
from app.pages import hashes as hashes_page
from app.pages import inspect as inspect_page
from app.pages import learn as learn_page
from app.pages import ledgers as ledgers_page
from app.pages import model as model_page
from app.pages import models as models_page
from app.pages import parallel as parallel_page
from app.pages import pool as pool_page
from app.pages import sharing as sharing_page
from app.pages import traces as traces_page
from app.settings import Settings, settings
from app.web import install as web
from app.web.observability import configure_logging
from app.web.uploads import hold_uploads

VERSION = "0.1.0"
API = "/api/v1"


def create_app(config: Settings | None = None) -> FastAPI:
    """Return the application with these settings, or the process's own."""
    config = config or settings()
    configure_logging(config.log_level)
    hold_uploads(config.max_upload_bytes)
    app = FastAPI(
        title="KV Ledger",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        max_body_size=config.max_body_bytes,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.settings = config
    problems.install(app)
    lab_runs.install(app)
    not_found.install(app)
    # The framework makes a router ready when a first request passes it: what is asked first stands
    # first.
    app.include_router(ledgers.router, prefix=API)
    app.include_router(ledgers_page.router)
    app.include_router(health.router)
    app.include_router(fragmentation.router, prefix=API)
    app.include_router(sharing.router, prefix=API)
    app.include_router(parallel.router, prefix=API)
    app.include_router(fit.router, prefix=API)
    app.include_router(compare.router, prefix=API)
    app.include_router(sweep.router, prefix=API)
    app.include_router(devices.router, prefix=API)
    app.include_router(prefix_hashes.router, prefix=API)
    app.include_router(block_pool.router, prefix=API)
    app.include_router(inspect.router, prefix=API, max_body_size=config.max_upload_bytes)
    app.include_router(traces.router, prefix=API, max_body_size=config.max_upload_bytes)
    app.include_router(catalogue.router, prefix=API)
    app.include_router(accuracy.router, prefix=API)
    app.include_router(transformers_plan.router, prefix=API)
    app.include_router(engines.router, prefix=API)
    app.include_router(cost.router, prefix=API)
    app.include_router(exercises.router, prefix=API)
    app.include_router(attention.router, prefix=API, max_body_size=attention.MAX_BODY_BYTES)
    for page in (
        fragmentation_page,
        parallel_page,
        fit_page,
        compare_page,
        engines_page,
        sharing_page,
        hashes_page,
        pool_page,
        docs,
    ):
        app.include_router(page.router)
    app.include_router(inspect_page.router, max_body_size=config.max_upload_bytes)
    for page in (models_page, model_page, accuracy_page):  # the inspection before any id
        app.include_router(page.router)
    app.include_router(explain_page.router, max_body_size=config.max_upload_bytes)
    app.include_router(traces_page.router, max_body_size=config.max_upload_bytes)
    for page in (attention_page, cost_page, glossary_page, learn_page):
        app.include_router(page.router)
    web.install(app)
    return app
