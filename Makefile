# Everything sets itself up: `make conformance` and `make test` are all a newcomer needs.
VENV   := .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: conformance test test-all check libraries implementations wrapped gpu docs format derive bench diagnosis example example-decoder-only examples-other-languages dist clean

conformance: $(STAMP)  ## The suite against the bundled reference
	@$(BIN)/python -m pytest conformance --adapter reference -q -r fE

# A test that hangs is named, long before a build server gives up.
# Neighbours run in one process, which makes what a module shares once.
# They start Python hundreds of times: without bytecode, which the environment may forbid, that takes 20 seconds more.
TESTS := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest tests conformance -q -r fE -n auto --dist worksteal --timeout 600

# The turn of items in exhaustive tests stays until `make test-all` has passed as a whole: then it moves with the commit.
test: $(STAMP)  ## Our own tests, with one run of the suite on the reference
	@$(TESTS) --turn 0

test-all: $(STAMP)  ## The same, with exhaustive tests in full
	@$(TESTS) --all

check: $(STAMP)  ## Format, lint, types, import rules, spec, tests
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/goldformer lint
	@$(BIN)/goldformer coverage --check
	@$(BIN)/goldformer derive --check
	@$(MAKE) --no-print-directory test

libraries: .venv-libraries/.installed  ## Our adapters of other libraries, in an environment of their own
	@DEV=$${DEV:-PYTHON} HF_HUB_OFFLINE=1 .venv-libraries/bin/python -m pytest tests/adapters/test_libraries.py tests/adapters/test_triton_examples.py -q

docs: .venv-docs/.installed  ## The documentation site, into build/docs: warnings are errors, links and anchors are checked
	@rm -rf build/docs
	@.venv-docs/bin/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/docs
	@SITE=build/docs .venv-docs/bin/python -m pytest --noconftest tests/docs/test_site.py -q
	@echo "build/docs/index.html"

implementations: .venv-libraries/.installed  ## docs/implementations.md: every adapter in every dtype, in about an hour
	@DEV=$${DEV:-PYTHON} HF_HUB_OFFLINE=1 .venv-libraries/bin/python -m benchmarks.implementations

wrapped: .venv-libraries/.installed  ## docs/wrapped.md: what compilation, export, batches and layouts change, in some hours
	@DEV=$${DEV:-PYTHON} .venv-libraries/bin/python -m benchmarks.wrapped

gpu: .venv-libraries/.installed  ## docs/gpu.md: every adapter that has a GPU, in every dtype on it; ARGS=--dry-run tries it without one
	@DEV=$${DEV:-PYTHON} HF_HUB_OFFLINE=1 .venv-libraries/bin/python -m benchmarks.gpu $(ARGS)

format: $(STAMP)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

derive: $(STAMP)  ## Golden values into spec/golden, and what covers what into spec/README.md
	@$(BIN)/goldformer derive
	@$(BIN)/goldformer coverage --write

bench: $(STAMP)  ## What it all costs, with ratios measured side by side, into build/benchmarks.md
	@mkdir -p build
	@$(BIN)/python -m pytest -o python_files='bench_*.py' -o addopts=--import-mode=importlib \
		--benchmark-columns=median,iqr,rounds --benchmark-sort=fullname --table build/benchmarks.md -q benchmarks

diagnosis: $(STAMP)  ## How many mistakes are caught, placed and named: on the textbook, then in code of many styles, in a quarter of an hour
	@$(BIN)/python -m benchmarks.diagnosis
	@$(BIN)/python -m benchmarks.wild --runs declared --small --seconds 3600

example: $(STAMP)  ## "je suis étudiant" → "i am a student <eos>": train, decode, look at the attention
	@$(BIN)/python examples/translate.py

example-decoder-only: $(STAMP)  ## "the cat sat" → "on the mat": train a decoder-only model, generate with its cache
	@$(BIN)/python examples/continue_text.py

examples-other-languages: build/examples/java/Server.class build/examples/attention  ## Those of adapters/examples

build/examples/java/Server.class: $(wildcard adapters/examples/java/*.java)
	javac -d build/examples/java adapters/examples/java/*.java

build/examples/attention: $(wildcard adapters/examples/c/*.[ch])
	mkdir -p build/examples && gcc -std=c11 -O2 -Wall -Wextra -Werror -o build/examples/attention adapters/examples/c/*.c -lm

dist: $(STAMP)  ## Wheel and source distribution
	@$(BIN)/python -m build --quiet

clean:
	@rm -rf $(VENV) .venv-libraries .venv-docs docs/generated build dist *.egg-info

# Only what decides the installation makes it again; a second run starts at once.
$(STAMP): pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once; a few minutes, mostly PyTorch)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,examples,dev]'
	@touch $@

.venv-libraries/.installed: pyproject.toml constraints.txt constraints-libraries.txt
	@echo "setting up .venv-libraries (once; many minutes)"
	@$(PYTHON) -m venv .venv-libraries
	@.venv-libraries/bin/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -c constraints-libraries.txt -e '.[torch,dev,libraries]'
	@touch $@

.venv-docs/.installed: pyproject.toml
	@echo "setting up .venv-docs (once; a minute)"
	@$(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@
