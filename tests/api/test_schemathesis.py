"""Every call of the OpenAPI schema, drawn and spoiled: no 5xx, nothing undeclared."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS

from app.accuracy.run import process_run
from app.main import create_app

schema = schemathesis.openapi.from_asgi("/openapi.json", create_app())
EXAMPLES = int(os.environ.get("KV_LEDGER_SCHEMATHESIS_EXAMPLES", "25"))
CHECKED = CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
    ]
)


@pytest.fixture(scope="module", autouse=True)
def _accuracy_is_asked() -> None:
    """Let the table of accuracy be full first: its first answer takes longer than a call may."""
    run = process_run()
    run.start()
    assert run.wait(240)


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_every_call_answers_as_declared(case: schemathesis.Case[Any]) -> None:
    """Whatever is sent, the answer is one that the schema declares."""
    case.call_and_validate(checks=cast("Any", CHECKED))
