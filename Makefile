# Every target sets up what it needs: in a fresh clone, `make demo` or `make test` is the only command.
# The environment is .venv; it is recreated only when pyproject.toml or this file changes.

PYTHON ?= python3
WORKERS ?= 2
ARGS ?=

UV := uv==0.13.7
# Keep bytecode whatever the environment says: tests start hundreds of processes that import the same files.
RUN := PATH="$(CURDIR)/.venv/bin:$$PATH" PYTHONDONTWRITEBYTECODE=
WEB := $(shell find web -name node_modules -prune -o -type f -print)

# Tests sync thousands of times, so their files go to memory where there is plenty, else to TMPDIR.
SCRATCH := $(shell \
  awk '/^MemAvailable/ { exit $$2 < 8000000 }' /proc/meminfo 2>/dev/null && \
  df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 { print "/dev/shm" }')
TESTED := scratch=$$(mktemp -d "$(or $(SCRATCH),$${TMPDIR:-/tmp})/treering.XXXXXX") && chmod 711 "$$scratch" && \
  trap 'rm -rf "$$scratch"' EXIT && trap 'exit 1' HUP INT TERM && \
  $(RUN) TMPDIR="$$scratch"

.PHONY: help demo docs test soak versions check bench dist format clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/dashboard ## kill, resume, rewind and fork two agents; then open the dashboard
	@$(RUN) python examples/demo.py $(ARGS)

docs: .venv/tools ## build the documentation into site/
	@$(RUN) zensical build --strict $(ARGS)

test: .venv/tools ## run all tests, with real servers (ARGS="-k lists" selects some)
	@$(TESTED) HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-ci} pytest -n $(WORKERS) --dist worksteal -m "not soak" $(ARGS)

soak: .venv/tools ## run the long versions of the fault tests
	@$(TESTED) HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-long} pytest -n $(WORKERS) --dist worksteal -m soak $(ARGS)

versions: .venv/tools ## test the adapters with the oldest or newest frameworks allowed (ARGS=oldest)
	@$(TESTED) python scripts/test_versions.py $(or $(ARGS),oldest)

check: .venv/tools ## check formatting, lint, types, import layers, generated files
	@$(RUN) ruff format --check --quiet
	@$(RUN) ruff check --quiet
	@$(RUN) pyright
	@$(RUN) lint-imports --no-logo
	@if [ -f scripts/generate.py ]; then $(RUN) python scripts/generate.py --check; fi

bench: .venv/tools ## run the benchmarks and write benchmarks/RESULTS.md
	@$(RUN) python -m benchmarks $(ARGS)

dist: .venv/base ## build the wheel and the sdist into dist/
	@$(RUN) uv build --quiet --out-dir dist

format: .venv/tools ## format the code and apply safe fixes
	@$(RUN) ruff check --fix --quiet --exit-zero
	@$(RUN) ruff format --quiet

clean: ## remove everything that make created
	@rm -rf .venv build dist site .cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@rm -rf web/node_modules tests/web/browser/node_modules src/treering/server/static
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The demo needs the package with its server and prices; tests and checks need servers and tools as well.
# Installing builds the dashboard with Node.js from a wheel; without access to npm, the rest is installed without it.
.venv/base: pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "treering needs Python 3.11 or newer; '$(PYTHON)' is older or does not run. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
	  exit 1; }
	@echo "Setting up .venv (once) ..."
	@$(PYTHON) -m venv .venv
	@$(RUN) python -m pip install --quiet --disable-pip-version-check "$(UV)"
	@$(RUN) uv pip install --quiet --compile-bytecode --python .venv/bin/python --editable '.[prices,server]' || { \
	  echo "Retrying without the dashboard ..." >&2; \
	  $(RUN) TREERING_NO_DASHBOARD=1 uv pip install --quiet --compile-bytecode --python .venv/bin/python --editable '.[prices,server]'; }
	@touch $@

# Rebuilds the dashboard if web/ has changed; otherwise this takes a second.
.venv/dashboard: .venv/base $(WEB)
	@$(RUN) uv pip install --quiet --no-deps --python .venv/bin/python --editable . || \
	  echo "The dashboard could not be rebuilt; the previous build is used, if there is one." >&2
	@touch $@

.venv/tools: .venv/base
	@echo "Installing test servers and tools (once) ..."
	@$(RUN) uv pip install --quiet --compile-bytecode --python .venv/bin/python --editable '.[all,frameworks]' --group test --group check --group docs
	@touch $@
