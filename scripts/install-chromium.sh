#!/usr/bin/env bash
# Brings a Chromium for the browser tests: Debian's when root on Debian, else Playwright's own.
set -euo pipefail
python=$1
if command -v chromium >/dev/null 2>&1; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core fonts-noto-cjk
else
  "$python" -m playwright install chromium
fi
