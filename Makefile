# Every target sets itself up in .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hundreds of processes start in the tests: what images set that start few programs would have each compile our files.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: train test test-numpy test-kernels test-emulated memcheck lint bench wheel clean

train: .venv/.train        ## train LeNet-5 on real handwritten digits on this machine
	$(BIN)/python -m train $(ARGS)

# Two processes take half as long as one on two cores; each begins with a half of the tests, in order.
test: .venv/.test          ## the whole CPU suite; comparisons with PyTorch run where it is installed in .venv
	$(BIN)/python -m pytest -q -n 2 --dist worksteal $(ARGS)

# Left out: what calls no compiled kernel of the CPU or calls it from a program (command lines, benchmarks, files,
# builds, imports, plans of GPUs, pages of the docs, the main job: test_train learns digits, too); the kernels' own
# tests, which turn them on; what is above the kernels: ONNX, recomputation (test_all_cheap_ops turns them off itself),
# loaders, runs that are watched, locked or resumed, recipes; what runs both ways in make test, [compiled] and [numpy];
# ResNet-18 beside PyTorch, whose ops VGG-11 has but for a sum; and whether every op has a test.
NO_KERNELS := accuracy algorithms algorithms_choice arena augment bench* build calibrate calls checkpoint cifar commands \
	compare* config contexts conv_desc conv_ops copies create cuda_* data data_parts dlpack docs doctor extending \
	forged* fuse fuzz* gradcheck habits_errors init kernel_headers layering loader main_job memcheck memory native* \
	onnx* op_results packed pickles pointers pointwise prose public_api recipes recompute* rehearsal resume rows \
	same_kernels schedule sums tarball testing threads torch_state trace train_config train_lock watching winograd_kernels
test-numpy: .venv/.test    ## the CPU suite where there are no compiled kernels: what they have a part in
	ALPHA_CPU_KERNELS=0 $(BIN)/python -m pytest -q -n 2 --dist worksteal \
		$(NO_KERNELS:%=--ignore-glob='tests/test_%.py') \
		-k "not ([compiled or -compiled or [numpy or -numpy or resnet18-sgd or no_op_is_left_out)" $(ARGS)

test-kernels: .venv/.test  ## every CUDA kernel compiles for every architecture, without a warning or a spill; needs nvcc
	$(BIN)/python -m pytest -q -n auto -m kernels tests/test_cuda_build.py $(ARGS)

# The checked run sees all that the other one does, but takes longer. The other one has what is left out there: programs,
# whole training steps, repetitions, the largest convolutions; most of its modules are compiled by then. The emulator's
# own tests check by themselves.
LONG := context or interop or training or (capture and not coconv) or benchmarks or docs or tuning or two_runs \
	or repetitions or adjoint or aligned or many_ or losses_are or fprop-long or dgrad-long or every_mode_is or 1032 \
	or are_not_rounded or (test_conv_wgrad and tiles) or are_counted or counts_what or special_values_pass \
	or lose_the_range or does_not_fit or does_not_grow or keep_the_promise or (every_remainder and 32) \
	or made_again or launches_wait or inference_fuses or (in_every_mode and image) or train_with or clock_decides \
	or inference_branches or depend_on_the_plan or before_hopper or calibrate
# All that needs a GPU is in tests/cuda: the other files need not be imported to know it.
EMULATED := $(BIN)/python -m pytest -q -n 2 --dist worksteal -p emulator.plugin --ignore-glob='tests/test_*.py'
test-emulated: .venv/.test ## without a GPU: the emulated driver, and the CUDA suite on it with every access checked
	$(BIN)/python -m emulator.install_pycuda
	$(EMULATED) -m emulator $(ARGS)
	ALPHA_EMULATED_CHECKED=1 ALPHA_EMULATED_SEED=1 $(EMULATED) -m cuda -k "not ($(LONG))" $(ARGS)
	ALPHA_EMULATED_CHECKED=off $(EMULATED) -m cuda -k "$(LONG)" $(ARGS)

memcheck: .venv/.test      ## on a GPU, in ten minutes: every access of the CUDA suite's kernels, by compute-sanitizer
	$(BIN)/python -m pip install -q -e '.[cuda]'
	$(BIN)/python -m tests.memcheck $(ARGS)

lint: .venv/.test          ## style and types
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/.bench        ## alpha beside PyTorch on this machine's GPU or CPU: training steps, tables and pictures
	$(BIN)/python -m benchmarks.compare $(ARGS)

wheel: .venv/.wheel        ## a wheel in dist; ARCHES="sm_80 sm_90a" puts CUDA kernels into it, for machines without nvcc
	rm -rf build alpha/cuda/packed
	$(if $(ARCHES),$(BIN)/python -m alpha build-kernels --arch $(ARCHES) --pack alpha/cuda/packed $(ARGS))
	$(BIN)/python -m pip wheel -q --no-deps -w dist .
	rm -rf build alpha/cuda/packed

.venv/.%: setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --no-compile -e '.[$(EXTRAS)]'
	touch $@

.venv/.train: EXTRAS := data,plot
.venv/.test: EXTRAS := data,plot,test
.venv/.bench: EXTRAS := data,plot,bench
.venv/.wheel: EXTRAS := data

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
