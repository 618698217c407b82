# Each target is one line that a person could type; its last line of output says what came out.
# Variables: PYTHON= NAME= ARGS= SEED= FILE= JOBS= N=

PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2
.DEFAULT_GOAL := help

help: ## what can be done
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

install: .venv/installed ## the environment, in .venv
	@echo "install: .venv is ready"

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Turnkeeper needs Python 3.11 or newer; say which with make PYTHON=python3.13")'
	@echo "install: making .venv and downloading the libraries (a minute or two the first time)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

servers: ## Redis and RabbitMQ, where nothing provides them yet
	@sh deploy/local/install-servers.sh
	@echo "servers: Redis and RabbitMQ are installed here"

demo: install servers ## the main job, on a throw-away stack (NAME=offer for another scenario)
	$(BIN)/turnkeeper demo $(NAME)

test: install servers ## all tests that need no container engine and no browser
	$(BIN)/pytest -n $(JOBS) --dist loadfile $(ARGS)

check: install ## lint, types, import rules
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports
	@echo "check: lint, format, types and import rules hold"

up: install servers ## start a stack here; Ctrl-C stops it
	$(BIN)/turnkeeper up $(ARGS)

down: install ## stop the stack of this folder
	$(BIN)/turnkeeper down

bench: install servers ## turns/s from publish to committed effect, beside a bare chain of the same hops
	$(BIN)/python -m bench.turns $(ARGS)

bench-planner: install servers ## the median turn beside 1,000 sessions that wait for a slow planner
	$(BIN)/python -m bench.slow_planner $(ARGS)

chaos: install servers ## load while processes and servers are killed (SEED=)
	$(BIN)/python -m tests.chaos.run $(if $(SEED),--seed $(SEED)) $(ARGS)

mutants: install servers ## break each rule on purpose and see its test go red (FILE= for one)
	$(BIN)/python -m tests.mutants.run $(FILE) $(ARGS)

asyncapi: tests/asyncapi/node_modules/.package-lock.json ## docs/api/asyncapi.json, read by the official parser (needs npm)
	@node tests/asyncapi/check.mjs docs/api/asyncapi.json

tests/asyncapi/node_modules/.package-lock.json: tests/asyncapi/package-lock.json
	@npm --version >/dev/null 2>&1 || { echo "asyncapi: install Node's npm first: apt-get install -y npm"; exit 1; }
	cd tests/asyncapi && npm ci --ignore-scripts --no-audit --no-fund --silent

fuzz-http: install servers ## generated requests to each of the four services (N= cases each, SEED= again)
	FUZZ_HTTP_CASES=$(or $(N),2000) $(if $(SEED),SEED=$(SEED)) $(BIN)/pytest -n0 -s -q --timeout 3600 tests/e2e/test_http_rights.py -k no_request $(ARGS)

compose-test: install ## start the compose deployment for real and use it from the host
	$(BIN)/pytest tests/compose $(ARGS)

docs: install ## render docs/state.md, messages.md and settings.md from the code
	$(BIN)/python docs/render.py

constraints: install ## export the exact versions of this environment
	@(echo "# Exact versions that the tests ran with: exported by make constraints, never edited by hand."; \
	  $(BIN)/python -m pip list --format=freeze --exclude-editable | grep -v '^pip=\|^setuptools=') > constraints.txt
	@echo "constraints: $$(grep -c == constraints.txt) versions"

clean: ## remove the environment and what tools left here
	rm -rf .venv .turnkeeper .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

.PHONY: help install servers demo test check up down bench bench-planner chaos mutants asyncapi fuzz-http compose-test docs constraints clean
