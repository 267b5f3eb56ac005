"""Static files under names that carry their hash, compressed beforehand, cached for ever.

`python -m app.web.assets` writes build/static from static/. Without that folder, or when a file has
changed since, the sources are served under their plain names: right, only not cached.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "static"
BUILT = ROOT / "build" / "static"
MANIFEST = "manifest.json"
PREFIX = "/static/"
HASHED = re.compile(r"^.+\.[0-9a-f]{12}\.[a-z]+$")
SERVED = frozenset({".css", ".js", ".svg", ".png", ".ico"})
_GZIP_LEVEL = 9


def _names() -> list[str]:
    files = (path for path in SOURCE.rglob("*") if path.suffix in SERVED)
    return sorted(path.relative_to(SOURCE).as_posix() for path in files)


def _hashed(name: str) -> str:
    digest = sha256((SOURCE / name).read_bytes()).hexdigest()[:12]
    stem, _, suffix = name.rpartition(".")
    return f"{stem}.{digest}.{suffix}"


def build() -> None:
    """Write every asset under its hashed name, with its brotli and gzip forms beside it."""
    import brotli  # noqa: PLC0415 - only the build compresses

    shutil.rmtree(BUILT, ignore_errors=True)
    manifest: dict[str, str] = {}
    for name in _names():
        manifest[name] = _hashed(name)
        target = BUILT / manifest[name]
        target.parent.mkdir(parents=True, exist_ok=True)
        content = (SOURCE / name).read_bytes()
        target.write_bytes(content)
        if target.suffix in {".css", ".js", ".svg"}:
            Path(f"{target}.br").write_bytes(brotli.compress(content, quality=11))
            Path(f"{target}.gz").write_bytes(gzip.compress(content, _GZIP_LEVEL, mtime=0))
    (BUILT / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


@lru_cache(maxsize=1)
def manifest() -> dict[str, str]:
    """Return built name by source name; empty when there is no build, or a stale one."""
    path = BUILT / MANIFEST
    if not path.exists():
        return {}
    known: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    fresh = set(known) == set(_names()) and all(_hashed(name) == known[name] for name in known)
    return known if fresh else {}


def root() -> Path:
    """Return the folder to serve."""
    return BUILT if manifest() else SOURCE


def asset_url(name: str) -> str:
    """Return the address of a file of static/ by its name there."""
    return PREFIX + manifest().get(name, name)


def is_immutable(path: str, url: str) -> bool:  # noqa: ARG001 - the signature that is asked for
    """Return whether a served file's name carries its hash."""
    return bool(HASHED.match(url.rpartition("/")[2]))


if __name__ == "__main__":
    build()
