# Every target sets itself up in .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: train test lint bench clean

train: .venv/.train        ## train LeNet-5 on real handwritten digits on this machine
	$(BIN)/python -m train $(ARGS)

test: .venv/.test          ## the whole CPU suite; comparisons with PyTorch run where it is installed in .venv
	$(BIN)/python -m pytest -q $(ARGS)

lint: .venv/.test          ## style and types
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/.bench        ## alpha beside PyTorch on this machine's CPU
	$(BIN)/python -m benchmarks.cpu_steps $(ARGS)

.venv/.%: setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -e '.[$(EXTRAS)]'
	touch $@

.venv/.train: EXTRAS := data,plot
.venv/.test: EXTRAS := data,plot,test
.venv/.bench: EXTRAS := plot,bench

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
