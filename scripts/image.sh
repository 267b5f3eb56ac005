#!/usr/bin/env bash
# Builds the image with whichever of docker, podman or buildah works here; `test` also runs it.
#
#   scripts/image.sh build          BASE=… names another base image
#   scripts/image.sh test           build, run read-only as an arbitrary user, ask, stop, measure
#
# Where no registry of images can be reached, the base is made from Debian's own packages (buildah,
# debootstrap, root), and the run uses buildah's chroot isolation with a read-only bind of the root.
set -euo pipefail
cd "$(dirname "$0")/.."
TAG=${TAG:-localhost/kv-ledger:latest}
BASE=${BASE:-}
PORT=${PORT:-18000}
export STORAGE_DRIVER=${STORAGE_DRIVER:-vfs} BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}
LOCAL_BASE=localhost/python:3.13-slim

engine() {
  for tool in docker podman; do
    if command -v "$tool" >/dev/null && "$tool" info >/dev/null 2>&1; then echo "$tool"; return; fi
  done
  if command -v buildah >/dev/null; then echo buildah; return; fi
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends buildah debootstrap >&2
    echo buildah
    return
  fi
  echo "no docker, podman or buildah is here, and none can be installed" >&2
  return 1
}

# The mirror is the one that this machine's own apt uses.
mirror() {
  awk '/^(deb |URIs:)/ {for (i = 2; i <= NF; i++) if ($i ~ /^https?:/) {print $i; exit}}' \
    /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null
}

local_base() {
  if buildah images -q "$LOCAL_BASE" >/dev/null 2>&1; then return; fi
  local rootfs container
  rootfs=$(mktemp -d)
  debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates \
    trixie "$rootfs" "$(mirror)" >&2
  rm -rf "$rootfs"/var/cache/apt/* "$rootfs"/var/lib/apt/lists/*
  container=$(buildah from scratch)
  buildah add -q "$container" "$rootfs" / >/dev/null
  buildah commit -q "$container" "$LOCAL_BASE" >/dev/null
  buildah rm "$container" >/dev/null
  rm -rf "$rootfs"
}

build() {
  local tool=$1
  if [ "$tool" != buildah ]; then
    "$tool" build ${BASE:+--build-arg BASE="$BASE"} -t "$TAG" .
    return
  fi
  if [ -z "$BASE" ]; then
    if ! timeout 60 buildah pull -q docker.io/library/python:3.13-slim >/dev/null 2>&1; then
      local_base
      BASE=$LOCAL_BASE
    else
      BASE=docker.io/library/python:3.13-slim
    fi
  fi
  local folder volumes
  folder=$(mktemp -d)
  read -ra volumes <<<"$(package_index "$folder")"
  buildah bud -q --build-arg BASE="$BASE" --network host --format docker \
    "${volumes[@]}" -t "$TAG" .
  rm -rf "$folder"
}

# Packages come from where this machine's own pip takes them, with the certificate that it trusts.
package_index() {
  local folder=$1 index cert
  index=$(python3 -m pip config get global.index-url 2>/dev/null || true)
  cert=${PIP_CERT:-$(python3 -m pip config get global.cert 2>/dev/null || true)}
  {
    echo "[global]"
    if [ -n "$index" ]; then echo "index-url = $index"; fi
    if [ -n "$cert" ]; then cp "$cert" "$folder/cert.pem"; echo "cert = /run/pip/cert.pem"; fi
  } >"$folder/pip.conf"
  chmod -R a+rX "$folder"
  echo "--volume $folder:/run/pip:ro --volume $folder/pip.conf:/etc/pip.conf:ro"
}

start() {
  local tool=$1
  if [ "$tool" != buildah ]; then
    "$tool" run --rm --read-only --tmpfs /tmp --user 54321:54321 -e PORT="$PORT" \
      --network host --name kv-ledger-test "$TAG" &
    return
  fi
  container=$(buildah from "$TAG")
  root=$(buildah mount "$container")
  # A private mount namespace with the image's root bound read-only, entered as another user.
  unshare --mount bash -c '
    set -e
    mount --bind "$1" "$1"
    mount -t proc proc "$1/proc" 2>/dev/null || mount --rbind /proc "$1/proc"
    mount --rbind /dev "$1/dev"
    mount -o remount,bind,ro "$1"
    if touch "$1/srv/written" 2>/dev/null; then echo "the root can be written" >&2; exit 1; fi
    exec chroot --userspec=54321:54321 "$1" /usr/bin/env -i PATH=/opt/venv/bin:/usr/bin:/bin \
      HOST=127.0.0.1 PORT="$2" WEB_CONCURRENCY=1 PYTHONDONTWRITEBYTECODE=1 \
      /bin/sh -c "cd /srv && exec /opt/venv/bin/python -m app serve"
  ' _ "$root" "$PORT" &
}

ask() {
  python3 - "$PORT" <<'PY'
import json, sys, time, urllib.request as u
base = f"http://127.0.0.1:{sys.argv[1]}"
started = time.monotonic()
while True:
    try:
        assert json.load(u.urlopen(base + "/healthz", timeout=1)) == {"status": "ok"}
        break
    except OSError:
        if time.monotonic() - started > 30:
            sys.exit("no answer within 30 s")
        time.sleep(0.05)
print(f"/healthz answered after {time.monotonic() - started:.2f} s")
page = u.urlopen(base + "/").read().decode()
assert "10 MiB" in page, "the page lacks its worked value"
print(f"/ answered {len(page)} characters with the worked value")
body = {"model": {"layers": 32, "kv_heads": 8, "head_dim": 128}, "kv_dtype": "fp16", "lengths": [17, 31, 32]}
call = u.Request(base + "/api/v1/ledgers", json.dumps(body).encode(), {"content-type": "application/json"})
answer = json.load(u.urlopen(call))
assert answer["paged_bytes"] == 12582912, answer
print(f"/api/v1/ledgers answered paged_bytes {answer['paged_bytes']}")
PY
}

test_image() {
  local tool=$1 pid before after
  start "$tool"
  pid=$!
  ask
  if [ "$tool" = buildah ]; then
    echo "runs as uid $(awk '/^Uid:/ {print $2}' "/proc/$pid/status") on a read-only root"
  fi
  before=$(date +%s%N)
  if [ "$tool" = buildah ]; then kill -TERM "$pid"; else "$tool" stop -t 5 kv-ledger-test >/dev/null; fi
  wait "$pid" || true
  after=$(date +%s%N)
  echo "stopped on SIGTERM after $(((after - before) / 1000000)) ms"
  if [ $(((after - before) / 1000000)) -gt 2000 ]; then echo "that is over two seconds" >&2; exit 1; fi
  if [ "$tool" = buildah ]; then
    echo "image size: $(du -sm --apparent-size "$root" | cut -f1) MiB unpacked, of which $(du -sm --apparent-size "$root/opt" "$root/srv" | awk '{s += $1} END {print s}') MiB are ours"
    buildah umount "$container" >/dev/null
    buildah rm "$container" >/dev/null
  else
    "$tool" image inspect --format 'image size: {{.Size}} bytes' "$TAG"
  fi
}

tool=$(engine)
echo "building with $tool"
build "$tool"
if [ "${1:-build}" = test ]; then test_image "$tool"; fi
