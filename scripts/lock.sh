#!/usr/bin/env bash
# Makes requirements/*.txt anew: pinned, hashed, and without the address of any registry.
set -euo pipefail
python=$1
"$python" -m pip install -q --disable-pip-version-check uv
uv() { "$python" -m uv pip compile -q --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-header --no-annotate "$@"; }
uv pyproject.toml -o requirements/run.txt
uv pyproject.toml --group test --group lint --extra parquet --extra xlsx -o requirements/test.txt
