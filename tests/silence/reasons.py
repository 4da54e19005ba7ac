"""Settings that change nothing that the checker sees, with the reason: `place.name.setting`, or `*.setting` for all."""

from __future__ import annotations

_ORDER = "False permits another order; the order is the same every time, and documented as not needed"
_MEMORY = "a permission to overwrite x, as PyTorch's; x stays as it is, and docs/tutorial/from_pytorch.md says so"
_HINT = "says that a norm follows: the same values, and sums that the norm takes over where a kernel makes them"
_COPIES = "a permission for PyTorch's copies; documented as not needed"
_SPEED = "decides who makes the batches, and how far ahead; the batches do not depend on it, which test_loader.py holds"
_WORDS = "the name of the caller in errors"
_NESTED = "a permission for PyTorch's fast path, which changes no value"
_REGISTER = "the decorator's function; without it the call returns a decorator, which test_extending.py holds"

REASONS: dict[str, str] = {
    "*.inplace": _MEMORY, "*.for_norm": _HINT, "*.non_blocking": _COPIES, "*.pin_memory": _COPIES, "*.stable": _ORDER,
    "ops.topk.sorted": _ORDER, "ops.unique.sorted": _ORDER,
    **{f"ops.logical_{name}.where": _WORDS for name in ("and", "or", "xor", "not")},
    "nn.TransformerEncoder.enable_nested_tensor": _NESTED, "nn.TransformerEncoder.mask_check": _NESTED,
    "*.workers": _SPEED, "*.processes": _SPEED, "*.prefetch": _SPEED,
    **{f"{name}.{setting}": _REGISTER for name, setting in (
        ("data.register_dataset", "read"), ("training.register_loss", "make"), ("training.register_model", "make"),
        ("training.register_optimizer", "make"), ("training.register_schedule", "make"))},
    "ops.conv2d_dgrad_add.in_place": "permits to add into `onto`, which an op of the graph may then not read again",
    "alpha.to_torch.model": "the model to fill; tests/interop/test_to_torch.py has it",
    "alpha.recompute_summary.reset": "begins the count anew, which test_recompute.py holds",
    "alpha.Tensor.shape": "the constructor of backends, which takes an array of theirs; users call alpha.tensor",
    "alpha.Tensor.dtype": "as shape", "alpha.Tensor.device": "as shape",
    **{f"training.Progress.{name}": "a record of numbers: each setting is an attribute of its name"
       for name in ("epoch", "step", "loss_sum", "sums", "images", "seconds", "history")},
    **{f"Tensor.{name}.device": "the emulated or a real GPU is needed; tests/cuda has them" for name in ("cuda",)},
    "Trainer.diverged.weights_of": "read by the training program, whose message names the step",
    "optim.Rule.contracted": "of compiled kernels, where the processor can; test_rules.py has bits of both",
    "optim.Muon.adjust_lr_fn": "None and \"original\" are the same, as in PyTorch; test_muon.py has the other one",
    "alpha.gradcheck.second_order": "finds gradients of gradients that are wrong: test_gradcheck.py",
    "training.Profile.steps": "how many steps the tables are of: test_profiler.py",
    "training.Profile.after": "as steps",
}
