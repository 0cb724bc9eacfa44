# make demo | quick | test | test-mindspore | test-all | test-torch VERSION=2.7.1 | test-aarch64 |
# lint | bench | gpu | packages | newest | crds | soak | soak-nodes | site | wheels | clean. Each
# does its own set-up: an environment in .venv with pinned requirements, and taskd in it, built from
# this tree (editable: what is tested is the tree; tests/docs/test_packaging.py tests what is
# shipped).
# Needs Linux, Python 3.10 or later with its headers, a C compiler and make. PYTHON=... picks
# another interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MADE := $(VENV)/made
INSTALLED := $(VENV)/requirements.installed
LIBRARY := taskd/python/cython_api/libs/libtaskd.so
NATIVE := setup.py pyproject.toml $(wildcard csrc/*.[ch] csrc/mindio/*.[ch] \
	taskd/cython_api/*.pyx taskd/cython_api/*.pxd)
TORCH_NPU := $(VENV)/torch_npu
SITE := $(VENV)/site
MINDSPORE := $(VENV)/mindspore
MINDSPORE_TESTS := $(addsuffix .py,$(addprefix tests/mindspore/test_, \
	contract fault_tolerance msrun pods))
TORCH := $(VENV)/torch-$(VERSION)
PACKAGES := $(VENV)/packages
# of another torch: what it does in a repair, and the private names that this takes
TORCH_TESTS := $(addsuffix .py,$(addprefix tests/recovery/test_, \
	in_place parallel training_loops gradients checks dump launchers)) tests/worker \
	tests/adaptor/test_restarts.py tests/adaptor/test_torch_versions.py \
	tests/devices/test_recognise_torch.py
NARROW := Makefile .ci requirements '*.sh' '*.[ch]' '*.pyx' '*.pxd' '*.toml' '*.yaml' '*.yml' \
	'*Dockerfile'
# those that `make test-all` runs too are marked `long`
TESTS ?= -m 'not long' --hypothesis-profile=ci
PYTEST ?= --numprocesses=3 --dist=loadscope --no-loadscope-reorder --timeout=300 --durations=15
# for what the tests, the demo and the benchmarks start by name: python, pip, torchrun, taskd
ACTIVE := PATH="$(abspath $(BIN)):$$PATH" VIRTUAL_ENV="$(abspath $(VENV))"
DIST ?= dist
# taskd itself, for pip install
EDITABLE := --quiet --no-build-isolation --no-deps --editable .
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# the tests start hundreds of interpreters; each would compile taskd again where its bytecode may
# not be kept
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick test test-mindspore test-all test-torch test-aarch64 lint ruff mypy \
	tracked build install bench gpu packages newest crds soak soak-nodes site wheels clean

demo: build
	@$(ACTIVE) taskd demo

# The checks run beside the tests, which wait half of the time; what they say is shown after
# pytest's closing line. One call tells everything.
test: build $(TORCH_NPU)/complete
	@$(MAKE) --no-print-directory --keep-going lint > $(VENV)/lint.log 2>&1 & lint=$$!; failed=0; \
	$(ACTIVE) python -m pytest $(PYTEST) $(TESTS) || failed=1; \
	wait $$lint || { failed=1; cat $(VENV)/lint.log; }; \
	exit $$failed

# What is pure, in less than a minute: the core, its scenarios, the messages, and the lint.
quick: build
	@$(MAKE) --no-print-directory test TESTS="$(TESTS) tests/core tests/messages"

# MindSpore needs an older numpy than the rest, and so an environment of its own. Where it cannot be
# installed, its tests are skipped. The others of tests/mindspore need none: `make test` runs them.
# taskd in it is the one that was built already: the same Python, the same tree.
test-mindspore: build $(MINDSPORE)/complete
	@if [ -e $(MINDSPORE)/complete ]; then \
		cp -R $(VENV)/lib/python3*/site-packages/*taskd* \
			$(MINDSPORE)/lib/python3*/site-packages/ && \
		PATH="$(abspath $(MINDSPORE)/bin):$$PATH" VIRTUAL_ENV="$(abspath $(MINDSPORE))" \
			python -m pytest --timeout=300 $(TESTS) $(MINDSPORE_TESTS) \
			'tests/benchmarks/test_smoke.py::test_it_runs[mindspore_repairs]'; \
	fi

$(MINDSPORE)/complete: $(MADE) requirements/mindspore.txt requirements/taskd.txt
	@rm -rf $(MINDSPORE)
	@echo "installing requirements/mindspore.txt into $(MINDSPORE), once; mindspore is large"
	@{ $(PYTHON) -m venv $(MINDSPORE) && \
		$(MINDSPORE)/bin/python -m pip install --quiet --requirement requirements/mindspore.txt && \
		touch $@; } || \
		echo "mindspore could not be installed; its tests are skipped" >&2

# Also the tests marked `long`.
test-all:
	@failed=0; \
	$(MAKE) --no-print-directory test TESTS= || failed=1; \
	$(MAKE) --no-print-directory test-mindspore TESTS= || failed=1; \
	exit $$failed

# Another torch in an environment of its own, which takes about 6 GB: most versions are on PyPI as
# CUDA builds alone. Those run on the CPU. A torch with which no job can be protected fails here,
# with the reason.
test-torch: $(TORCH)/complete
	@export PATH="$(abspath $(TORCH)/bin):$$PATH" VIRTUAL_ENV="$(abspath $(TORCH))"; \
	python -c 'import sys; from taskd.adaptor import torch_versions as t; sys.exit(t.refusal())' && \
		python -m pytest $(PYTEST) $(TORCH_TESTS)

$(TORCH)/complete: $(TORCH)/requirements.installed $(NATIVE)
	$(TORCH)/bin/python -m pip install $(EDITABLE)
	@touch $@

# not kept in pip's cache: gigabytes for one run
$(TORCH)/requirements.installed: requirements/torch.txt requirements/taskd.txt
	@test -n "$(VERSION)" || { echo "which torch? say make test-torch VERSION=2.7.1" >&2; exit 1; }
	@rm -rf $(TORCH)
	$(PYTHON) -m venv $(TORCH)
	@echo "installing torch $(VERSION) and requirements/torch.txt into $(TORCH), once"
	$(TORCH)/bin/python -m pip install --quiet --no-cache-dir torch==$(VERSION) \
		--requirement requirements/torch.txt
	@touch $@

# What people train with, each under torchrun and under taskd with two kills; installs what a script
# needs. `make packages ONLY=timm,opacus LATEST=--latest`
packages: $(PACKAGES)/complete
	@$(PACKAGES)/bin/python tests/packages/run.py --only "$(ONLY)" $(LATEST)

$(PACKAGES)/complete: build
	$(PYTHON) -m venv $(PACKAGES)
	@echo "$(abspath $(VENV))/lib/python$$($(BIN)/python -c 'import sys; print("%d.%d" % \
	sys.version_info[:2])')/site-packages" > "$$(echo $(PACKAGES)/lib/python*/site-packages)/base.pth"
	@touch $@

# Whether examples/kubernetes fit the definitions that their operators publish
crds: build
	@$(ACTIVE) python scripts/crds.py

# Whether a release is on the index that taskd's tables do not know
newest: build
	@$(ACTIVE) python scripts/newest.py

lint: ruff mypy tracked

ruff: build
	$(BIN)/ruff check --quiet --output-format=concise .
	$(BIN)/ruff format --check --quiet .

mypy: build
	$(BIN)/mypy --no-error-summary

# what git keeps: no binaries but pictures; at most 100 columns also where ruff does not look
tracked:
	@found=$$(git ls-files --eol | grep '^i/-text' | grep -v '\.webp$$'); \
	test -z "$$found" || { echo "no binary is kept in git: $$found" >&2; exit 1; }
	@found=$$(git grep -nE '^.{101}' -- $(NARROW)); \
	test -z "$$found" || { echo "more than 100 columns: $$found" >&2; exit 1; }

build: $(LIBRARY)

# all environments; with --jobs beside each other
install: build $(MINDSPORE)/complete $(TORCH_NPU)/complete

# BENCH="parallel.py --kills 5": one of benchmarks/ (docs/performance.md names them)
bench: build
ifdef BENCH
	@$(ACTIVE) python benchmarks/$(BENCH)
else
	@$(ACTIVE) python benchmarks/libtaskd.py
	@$(ACTIVE) python benchmarks/agents.py --agents 0 64 --ranks 8 --faults 0
	@$(ACTIVE) python benchmarks/overhead.py
	@$(ACTIVE) python benchmarks/recovery.py
endif

# what no CPU shows (docs/gpu.md); DEVICE=cpu: on the late device; GPU="--only hole --seconds 240"
gpu: build
	@$(ACTIVE) DEVICE=$(or $(DEVICE),cuda) OUT=$(or $(OUT),build/gpu) \
		python benchmarks/gpu/all.py $(GPU)

# SOAK="--seconds 60 --seed 3" and the like: see benchmarks/soak.py --help
soak: build
	@$(ACTIVE) python benchmarks/soak.py $(SOAK)

# the documents as a web site in site/, which loads nothing from elsewhere; a broken link fails
site: build $(SITE)/complete
	@mkdir -p $(SITE)/pages
	@set -e; for page in api commands settings; do \
		$(BIN)/python scripts/$${page}_docs.py > $(SITE)/pages/$$page.md; \
	done
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build
	@echo "open site/index.html"

$(SITE)/complete: requirements/site.txt requirements/site-scripts.txt
	@command -v npm > /dev/null || \
		{ echo "there is no npm, which fetches the scripts of the site's pages" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(SITE)
	$(SITE)/bin/python -m pip install --quiet -r requirements/site.txt
	@mkdir $(SITE)/scripts
	@set -e; cd $(SITE)/scripts; for one in $$(cat $(CURDIR)/requirements/site-scripts.txt); do \
		mkdir $${one%@*}; tar -xzf $$(npm pack --silent $$one) -C $${one%@*} --strip-components 1; \
	done; rm *.tgz
	@touch $@

# what a release consists of, in dist/: see CONTRIBUTING.md
wheels: $(VENV)/wheels/complete
	@$(VENV)/wheels/bin/python scripts/wheels.py $(DIST)

# libtaskd's tests with the aarch64 wheel, by an emulated processor
test-aarch64: wheels
	@$(VENV)/wheels/bin/python scripts/aarch64.py $(DIST) tests/libtaskd $(TESTS)

$(VENV)/wheels/complete: requirements/wheels.txt
	$(PYTHON) -m venv --clear $(VENV)/wheels
	$(VENV)/wheels/bin/python -m pip install --quiet --requirement requirements/wheels.txt
	@touch $@

# several hosts made of network namespaces: root and `ip`
soak-nodes: build
	@$(ACTIVE) python benchmarks/soak_nodes.py $(SOAK)

# TASKD_WERROR: a warning in libtaskd fails (setup.py)
$(LIBRARY): $(INSTALLED) $(NATIVE)
	TASKD_WERROR=1 $(BIN)/python -m pip install $(EDITABLE)
	@touch $@

$(INSTALLED): $(MADE)
	@echo "installing requirements/test.txt into $(VENV), once; torch is large"
	$(BIN)/python -m pip install --quiet --requirement requirements/test.txt
	@touch $@

$(MADE): requirements/test.txt requirements/taskd.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "$(PYTHON) is older than 3.10 (or missing):" \
			"say make PYTHON=/path/to/a/later/python" >&2; exit 1; }
	@test -e "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" || \
		{ echo "Python.h of $(PYTHON) is missing: install its headers" \
			"(Debian, Ubuntu: python3-dev; Fedora: python3-devel)" >&2; exit 1; }
	@command -v $${CC:-gcc} > /dev/null || \
		{ echo "there is no C compiler: install gcc, or set CC" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# tests/devices reads torch_npu's sources, headers and error texts; it is never imported. Without it
# those tests are skipped.
$(TORCH_NPU)/complete: $(INSTALLED) requirements/torch_npu.txt
	@rm -rf $(TORCH_NPU)
	@echo "fetching the torch_npu wheel into $(TORCH_NPU), to be read"
	@{ $(BIN)/python -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 \
		--platform manylinux_2_28_x86_64 --dest $(TORCH_NPU) \
		--requirement requirements/torch_npu.txt && \
		$(BIN)/python tests/devices/unpack_torch_npu.py $(TORCH_NPU) && touch $@; } || \
		echo "the torch_npu wheel could not be fetched; the tests that read it will be skipped" >&2

clean:
	rm -rf $(VENV) site build dist *.egg-info taskd_log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f $(LIBRARY) taskd/cython_api/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
