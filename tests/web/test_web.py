"""What goes around every request: policy, assets, language, ids, logs."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.web import assets

VENDOR_ROW = re.compile(r"^\| `([^`]+)` \|.*\| `([0-9a-f]{64})` \|$", re.MULTILINE)


def test_vendored_files_are_unedited(root: Path) -> None:
    """Each vendored script and style has the hash that VENDOR.md states, and none is unlisted."""
    folder = root / "static" / "vendor"
    rows = dict(VENDOR_ROW.findall((folder / "VENDOR.md").read_text()))
    files = {path.name: path for path in folder.iterdir() if path.suffix in {".js", ".css"}}
    assert rows.keys() == files.keys()
    assert len(rows) >= 4
    for name, digest in rows.items():
        assert sha256(files[name].read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("path", ["/", "/healthz", "/static/app.css", "/nothing", "/docs"])
def test_strict_policy_on_every_answer(path: str, client: TestClient) -> None:
    """Nothing inline and nothing from elsewhere, on pages, files and errors alike."""
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-request-id"]


def test_pages_hold_no_inline_code(client: TestClient) -> None:
    """No inline script, style or handler, which the policy would refuse."""
    page = client.get("/").text
    scripts = re.findall(r"<script(?![^>]*\bsrc=)([^>]*)>", page)
    assert scripts
    assert all('type="application/json"' in attributes for attributes in scripts)
    assert not re.search(r"<[^>]+\s(style|on[a-z]+|hx-on[^=]*)=", page)
    assert "<style" not in page


def test_what_is_typed_is_escaped(client: TestClient) -> None:
    """A script typed into any field comes back as text."""
    attack = '"><script>alert(1)</script>'
    for field in ("model", "lengths", "block_size", "kv", "config", "layers"):
        page = client.get("/", params={field: attack, "source": "config"}).text
        assert "<script>alert" not in page


def test_assets_are_served_under_their_hash(root: Path) -> None:
    """A built asset's name carries its hash; a changed source makes the build stale."""
    name = assets._hashed("app.css")
    digest = sha256((root / "static" / "app.css").read_bytes()).hexdigest()[:12]
    assert name == f"app.{digest}.css"
    assert assets.HASHED.match(name)
    assert not assets.HASHED.match("app.css")


@pytest.mark.parametrize(
    ("query", "cookie", "accept", "lang"),
    [
        ("", "", "", "en"),
        ("", "", "zh-CN,zh;q=0.9,en;q=0.8", "zh-Hans"),
        ("", "", "en;q=0.5, zh;q=0.9", "zh-Hans"),
        ("", "", "fr, en;q=0.1", "en"),
        ("", "", "zh;q=x", "en"),
        ("", "zh", "en", "zh-Hans"),
        ("?lang=en", "zh", "zh", "en"),
        ("?lang=zh", "", "en", "zh-Hans"),
        ("?lang=xx", "", "zh", "zh-Hans"),
    ],
)
def test_language(query: str, cookie: str, accept: str, lang: str, client: TestClient) -> None:
    """The query wins over the cookie, the cookie over Accept-Language, English comes last."""
    client.cookies.clear()
    headers = {"accept-language": accept} | ({"cookie": f"lang={cookie}"} if cookie else {})
    page = client.get(f"/{query}", headers=headers)
    assert f'<html lang="{lang}"' in page.text
    assert "Accept-Language" in page.headers["vary"]
    client.cookies.clear()


def test_a_fragment_is_a_part_of_the_page(client: TestClient) -> None:
    """A change gets the answer alone, and the address of the calculation."""
    part = client.get("/", params={"lengths": "1k"}, headers={"hx-request": "true"})
    assert part.text.lstrip().startswith('<section id="answer"')
    assert part.headers["hx-replace-url"] == (
        "/?model=meta-llama%2FLlama-3.1-8B&kv=fp16&lengths=1k"
    )
    assert "<html" not in part.text
    whole = client.get(part.headers["hx-replace-url"]).text
    assert 'data-copy="134217728"' in part.text
    assert 'data-copy="134217728"' in whole


def test_logs_hold_no_contents(capsys: pytest.CaptureFixture[str]) -> None:
    """A line names method, route, status, time and id, and nothing that was asked."""
    with TestClient(create_app()) as fresh:
        fresh.get("/", params={"lengths": "4242", "model": "secret/model"})
        fresh.post("/api/v1/ledgers", json={"model": {"id": "secret/model"}, "lengths": [4242]})
    lines = [line for line in capsys.readouterr().err.splitlines() if "request_id" in line]
    assert [json.loads(line)["route"] for line in lines] == ["/", "/api/v1/ledgers"]
    assert "secret" not in "".join(lines)
    keys = {"time", "event", "method", "route", "status", "ms", "request_id", "worker"}
    assert all(set(json.loads(line)) == keys for line in lines)


def test_metrics_label_routes_not_paths(client: TestClient) -> None:
    """An unknown path does not become a label."""
    client.get("/api/v1/models/some/unknown-model")
    text = client.get("/metrics").text
    assert "http_requests_total" in text
    assert "unknown-model" not in text
