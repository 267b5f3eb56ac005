# Each target sets up what it needs. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
HOST ?= 127.0.0.1
PORT ?= 8000
export HOST PORT

.PHONY: help run test lint format bench fuzz image image-test lock i18n clean
.DEFAULT_GOAL := help

help: ## List the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: requirements/run.txt | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/run.txt
	@touch $@

$(VENV)/test.stamp: requirements/test.txt $(VENV)/run.stamp
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/test.txt
	@touch $@

build/static/manifest.json: $(VENV)/run.stamp $(shell find static -type f)
	$(BIN)/python -m app.web.assets

run: $(VENV)/run.stamp build/static/manifest.json ## Serve on http://HOST:PORT (127.0.0.1:8000)
	@# Python itself keeps no byte code where PYTHONDONTWRITEBYTECODE is set: about a fifth of a start.
	-@$(BIN)/python -m compileall -q app
	exec $(BIN)/python -m app serve

$(VENV)/chromium.stamp: $(VENV)/test.stamp
	bash scripts/install-chromium.sh $(BIN)/python
	@touch $@

$(VENV)/torch.stamp: $(VENV)/test.stamp
	bash scripts/install-torch.sh $(BIN)/python
	@touch $@

test: $(VENV)/test.stamp $(VENV)/chromium.stamp $(VENV)/torch.stamp build/static/manifest.json ## Run every test, a real browser included
	$(BIN)/python -m pytest -n 2 --dist loadfile --ignore=tests/browser $(PYTEST)
	# Playwright keeps an event loop running, which other tests' own loops cannot share.
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/browser $(PYTEST)

lint: $(VENV)/test.stamp ## Check style, types, templates, imports and dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry app
	$(BIN)/djlint templates --lint

format: $(VENV)/test.stamp ## Format the Python code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

bench: $(VENV)/test.stamp build/static/manifest.json ## Measure, as ratios in one run
	$(BIN)/python -m benchmarks

fuzz: $(VENV)/test.stamp ## Fuzz the readers and the API for longer than the tests do
	HYPOTHESIS_PROFILE=fuzz KV_LEDGER_SCHEMATHESIS_EXAMPLES=1000 $(BIN)/python -m pytest -n 2 -k "fuzz or schemathesis or mutated" --timeout 3600 $(PYTEST)

image: ## Build the container image with docker, podman or buildah
	bash scripts/image.sh build

image-test: ## Build the image, run it read-only as another user, ask it, stop it
	bash scripts/image.sh test

lock: | $(BIN)/python ## Make the lock files anew
	bash scripts/lock.sh $(BIN)/python

i18n: $(VENV)/test.stamp ## List the strings that lack a translation
	$(BIN)/python -m app.locale.missing

clean: ## Remove what the other targets made
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
