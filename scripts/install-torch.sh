#!/usr/bin/env bash
# Tries to bring a CPU build of torch for the attention tests; they are skipped without it.
# It is in no lock file: the default build on Linux brings gigabytes of CUDA libraries.
set -uo pipefail
python=$1
"$python" -c 'import torch' 2>/dev/null && exit 0
[ "${KV_LEDGER_TEST_TORCH:-1}" = 0 ] && exit 0
timeout 300 "$python" -m pip install -q --disable-pip-version-check --no-deps torch==2.13.0 &&
  timeout 120 "$python" -m pip install -q --disable-pip-version-check sympy networkx filelock fsspec
"$python" -c 'import torch' 2>/dev/null || echo "torch is not installed: its tests will be skipped"
exit 0
