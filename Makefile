# Every target sets itself up in .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hundreds of processes start in the tests: what images set that start few programs would have each compile our files.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: train test test-numpy test-kernels test-emulated test-classes memcheck lint bench wheel docs clean

train: .venv/.train        ## train LeNet-5 on real handwritten digits on this machine
	$(BIN)/python -m train $(ARGS)

# Two processes take half as long as one on two cores; each begins with a half of the tests, in order.
test: .venv/.test          ## the whole CPU suite; comparisons with PyTorch run where it is installed in .venv
	$(BIN)/python -m pytest -q -n 2 --dist worksteal $(ARGS)

test-numpy: .venv/.test    ## the CPU suite without compiled kernels, less tests with the mark same_without_kernels
	ALPHA_CPU_KERNELS=0 $(BIN)/python -m pytest -q -n 2 --dist worksteal \
		-m "not cuda and not kernels and not large and not same_without_kernels" $(ARGS)

test-kernels: .venv/.test  ## every CUDA kernel compiles without a warning or a spill, for all ARCHES="sm_75 sm_120"; needs nvcc
	$(BIN)/python -m pytest -q -n auto -m kernels $(ARGS)

# The checked run sees all that the other one does, but takes longer: tests with the mark long run in the other one, when
# most of its modules are compiled. The emulator's own tests check by themselves.
EMULATED := $(BIN)/python -m pytest -q -n 2 --dist worksteal -p emulator.plugin
test-emulated: .venv/.test ## without a GPU: the emulated driver, and the CUDA suite on it with every access checked
	$(BIN)/python -m emulator.install_pycuda
	$(EMULATED) -m emulator $(ARGS)
	ALPHA_EMULATED_CHECKED=1 ALPHA_EMULATED_SEED=1 $(EMULATED) -m "cuda and not long" $(ARGS)
	ALPHA_EMULATED_CHECKED=off $(EMULATED) -m "cuda and long" $(ARGS)
	ALPHA_EMULATED_ARCH=sm_75 $(EMULATED) -m "cuda and classes" $(ARGS)

CLASSES ?= sm_75 sm_80 sm_89 sm_90 sm_120
test-classes: .venv/.test  ## the CUDA suite on the emulated driver as each of CLASSES="sm_75 sm_120"
	$(BIN)/python -m emulator.install_pycuda
	for arch in $(CLASSES); do ALPHA_EMULATED_ARCH=$$arch $(EMULATED) -m cuda $(ARGS) || exit 1; done

memcheck: .venv/.test      ## on a GPU, in ten minutes: every access of the CUDA suite's kernels, by compute-sanitizer
	$(BIN)/python -m pip install -q -e '.[cuda]'
	$(BIN)/python -m tests.memcheck $(ARGS)

lint: .venv/.test          ## style, types, and lists of names
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m tools.names --check

bench: .venv/.bench        ## alpha beside PyTorch on this machine's GPU or CPU: training steps, tables and pictures
	$(BIN)/python -m benchmarks.compare $(ARGS)

wheel: .venv/.wheel        ## a wheel in dist; ARCHES="sm_80 sm_90a" puts CUDA kernels into it, for machines without nvcc
	rm -rf build alpha/cuda/packed
	$(if $(ARCHES),$(BIN)/python -m alpha build-kernels --arch $(ARCHES) --pack alpha/cuda/packed $(ARGS))
	$(BIN)/python -m pip wheel -q --no-deps -w dist .
	rm -rf build alpha/cuda/packed

docs: .venv/.docs          ## the site: every page and a reference of every public name, with a search, in build/docs/site
	$(BIN)/python -m tools.docs --site

.venv/.%: setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --no-compile -e '.[$(EXTRAS)]'
	touch $@

.venv/.train: EXTRAS := data,plot
.venv/.test: EXTRAS := data,plot,test
.venv/.bench: EXTRAS := data,plot,bench
.venv/.wheel: EXTRAS := data
.venv/.docs: EXTRAS := docs

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
