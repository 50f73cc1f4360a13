# make setup   what trains and serves, into .venv
# make demo    a model from the bundled sample corpus, in minutes
# make docs    the documentation as a site with search: build/site
# make lab     two hosts on this machine (root): doctor, a training over them, what strategies cost
# make test    the tests of every part, and one real example of each kind: 4 to 7 minutes with set-up
# make test-system   whole commands, hosts, servers, browsers, what takes longest; make test-all: the slow ones, too
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3,$(shell $(p) -c \
	'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))
BIN := .venv/bin
TRAINS := .venv/.trains
READY := .venv/.ready
# Compiling every module of every package takes longer than installing them; Python compiles those that are
# used at their first import.
# Some machines and images forbid Python to keep what it has compiled; then every process of a test would
# compile PyTorch anew.
export PYTHONDONTWRITEBYTECODE :=
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: setup demo lab test test-system test-all check format docs dist clean

setup: $(TRAINS)

# What trains and serves; the demo needs no more.
$(TRAINS): pyproject.toml constraints.txt
	@echo "Set up .venv: PyTorch and dragoman are fetched and installed, in one to three minutes."
	@test -n "$(PYTHON)" || { echo "dragoman needs Python 3.11 or newer: install it, or set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(INSTALL) torch
	$(INSTALL) --editable '.[fetch,serve]'
	@touch $@
	@echo "Done. Next: . .venv/bin/activate"

# The same with what tests and checks it.
$(READY): $(TRAINS)
	@echo "Install what tests and checks dragoman, and compile it."
	$(INSTALL) --editable '.[dev,docs,fetch,serve]'
	$(BIN)/python -c 'import dragoman.run.worker'
	-@$(BIN)/pytest --collect-only >/dev/null  # compiles once what each process of the tests imports
	@touch $@

demo: $(TRAINS)
	$(BIN)/dragoman run demo --ranks 2

lab: $(READY)
	PYTHONPATH=tests $(BIN)/python -m lab.show

# Four processes on two cores: two work while the tests of the others wait.
test: $(READY)
	$(BIN)/pytest --numprocesses 4 --dist worksteal -m "not slow and not system"

test-system: $(READY)
	$(BIN)/pytest --numprocesses 2 --dist loadfile -m "system and not slow"

test-all: $(READY)
	$(BIN)/pytest

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python benchmarks/page.py --check
	@find src -name '*.py' -print0 | xargs -0 cat | wc -l | xargs printf 'src: %s lines in '
	@find src -name '*.py' | wc -l | xargs printf '%s files\n'

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation as a site in build/site; its commands are run by make test-system.
docs: $(READY)
	$(BIN)/python tools/build_site.py

# A wheel, a source archive and what they depend on (SBOM), bit for bit the same from the same commit.
dist: $(READY)
	$(BIN)/python -m hatchling build -c -d dist
	$(BIN)/python tools/write_sbom.py dist

clean:
	rm -rf .venv build dist .cache .mypy_cache .ruff_cache .import_linter_cache
