# The image: the locked packages in a virtual environment, the application beside it, no compiler,
# no shell needed, no root. A read-only file system is enough.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
WORKDIR /srv
COPY requirements/run.txt requirements/run.txt
RUN python3 -m venv /opt/venv \
 && /opt/venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements/run.txt \
 && /opt/venv/bin/python -m pip uninstall -y pip \
 && find /opt/venv -name tests -type d -prune -exec rm -rf {} + \
 && find /opt/venv -name __pycache__ -type d -prune -exec rm -rf {} +
COPY app app
# The measured cases that /accuracy asks; tests read them where they lie.
COPY tests/data app/accuracy/data
COPY templates templates
COPY static static
RUN /opt/venv/bin/python -m app.web.assets && /opt/venv/bin/python -m compileall -q app /opt/venv/lib

FROM ${BASE}
LABEL org.opencontainers.image.title="KV Ledger" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOST=0.0.0.0 \
    PORT=8000 \
    WEB_CONCURRENCY=1
WORKDIR /srv
COPY --from=build /opt/venv /opt/venv
COPY --from=build /srv /srv
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=3s --start-period=5s \
  CMD ["/opt/venv/bin/python", "-c", "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ['PORT']}/healthz\", timeout=2)"]
STOPSIGNAL SIGTERM
CMD ["/opt/venv/bin/python", "-m", "app", "serve"]
