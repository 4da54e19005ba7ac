"""Answers to names that alpha does not have: the name here of PyTorch's function, or the nearest one."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from alpha.core.errors import MissingError, MissingModuleError, message
from alpha.core.table import provides

_THREADS = "alpha.config.num_threads = n, or the variable ALPHA_NUM_THREADS"
_ITSELF = "elements change in place by +=, -=, *=, /=, **=, copy_, fill_ and zero_"

TENSOR = {
    "add_": "write t += y", "sub_": "write t -= y", "mul_": "write t *= y", "div_": "write t /= y",
    "clamp_": "write t.copy_(t.clamp(low, high)), under alpha.no_grad()", "detach_": "write t = t.detach()",
    "normal_": "alpha.nn.init.normal_(t, mean, std)", "uniform_": "alpha.nn.init.uniform_(t, low, high)",
    "squeeze_": "write t = t.squeeze(...)", "unsqueeze_": "write t = t.unsqueeze(axis)",
    "stride": "elements lie in the order of indices", "masked_fill_": "write t = t.masked_fill(mask, v)",
    "scatter_": "write t = t.scatter(...)", "storage": "t.array is the backend's array",
    "scatter_add_": "write t = t.scatter_add(...)", "index_add_": "write t = t.index_add(axis, index, src)",
    "scatter_reduce_": "write t = t.scatter_reduce(axis, index, src, reduce)",
    "index_fill": "alpha.where(mask, value, x)", "bernoulli_": "alpha.bernoulli(x)",
    "grad_fn": "repr(t) names the op that made t; t.is_leaf says whether one did",
    "pin_memory": "copies pin by themselves", "retain_grad": "t.register_hook(f) is called with the gradient of a "
    "tensor that ops made", "is_sparse": "all tensors are dense", "data_ptr": "t.array is the backend's array",
    "apply_": "write it with ops", "char": "alpha has no int8, it has uint8",
    "short": "alpha has no int16, it has int32", "share_memory_": "tensors are not shared between processes",
    "heaviside": "(x > 0).float()", "as_strided": "slices and reshape",
    "unfold": "slices; of maps, alpha.nn.functional.unfold",
    "names": "axes have no names", "device_": "t.to(device)", "to_sparse": "all tensors are dense", "put_": _ITSELF,
    "index_put_": "x[indices] = values, under alpha.no_grad()", "random_": "alpha.randint(low, high, shape)",
    "histc": "np.histogram(x.numpy())", "cross": "products of slices", "dist": "(x - y).norm()",
    "frac": "x - x.trunc()", "clamp_min": "x.clamp(min=low)", "clamp_max": "x.clamp(max=high)",
    "aminmax": "x.min(axis), x.max(axis)", "amax": "x.max(axis)", "amin": "x.min(axis)",
    "values": "x.max(dim) has the values alone, x.argmax(dim) the indices", "indices": "x.argmax(dim), x.argsort(dim)",
    "is_complex": "there are no complex numbers", "H": "x.mT: there are no complex numbers",
    "real": "x itself: there are no complex numbers", "new": "alpha.zeros(shape, dtype=t.dtype, device=t.device)",
    "pow_": "write t **= y", "random": "alpha.randint(low, high, shape)", "inverse": "alpha.linalg.inv(x)",
    **{name: f"alpha.linalg.{name}(x)" for name in ("svd", "qr", "cholesky", "det", "slogdet")},
    "pinverse": "np.linalg.pinv(x.numpy())", "ravel": "x.flatten()",
    "swapdims": "x.swapaxes(a, b)", "take": "x.flatten()[index]", "kthvalue": "x.sort(axis)",
    "std_mean": "x.std(axis), x.mean(axis)", "var_mean": "x.var(axis), x.mean(axis)",
    "mode": "np.unique(x.numpy(), return_counts=True)",
    **{f"arc{name}": f"x.a{name}(...)" for name in ("sin", "cos", "tan", "tan2")},
    **dict.fromkeys(("asinh", "acosh", "atanh", "searchsorted", "tril_indices"),
                    "NumPy's, of x.numpy(), or an op of your own: docs/how_to/add_a_layer.md"),
}

TOP = {
    "train": "alpha.training.fit(model, train, val), or the command alpha train",
    "functional": "it is alpha.nn.functional",
    "nn.functional": "alpha.nn.functional", "set_default_dtype": "pass dtype=, or use alpha.precision(...)",
    "set_default_device": "pass device=", "compile": "alpha.capture(step) records a training step; no compiler is "
    "needed", "Size": "shapes are tuples", "FloatTensor": "alpha.tensor(values)",
    "LongTensor": 'alpha.tensor(values, dtype="int64")', "bool": "alpha.bool_",
    "autocast": 'alpha.precision("bf16") or alpha.precision("fp16")', "amp": 'alpha.precision("fp16") and '
    'alpha.optim.LossScaler', "utils": "alpha.data.DataLoader and its like for utils.data, alpha.recompute for "
    "utils.checkpoint, --tensorboard for utils.tensorboard; alpha.checkpoint, alpha.summary", "double": "alpha.float64",
    "jit": "there is no compiler to feed; alpha.capture records a step", "long": "alpha.int64", "int": "alpha.int32",
    "float": "alpha.float32", "half": "alpha.float16", "multiprocessing": "the module of Python",
    "set_num_threads": _THREADS, "get_default_dtype": "float32, always",
    "is_tensor": "isinstance(x, alpha.Tensor)", "contiguous_format": "leave it out: elements lie in the order of "
    "indices", "backends": "alpha.config, and the variables of docs/reference/env_vars.md",
    "autograd": "alpha.grad, alpha.Function, @alpha.op, alpha.detect_anomaly", "no_grad_": "alpha.no_grad()",
    "is_grad_enabled": "alpha.grad_enabled()", "int8": "alpha has uint8, int32 and int64",
    "int16": "alpha has uint8, int32 and int64", "complex64": "there are no complex numbers",
    "empty": "alpha.zeros(shape): memory is never left as it was", "normal": "alpha.randn(shape) * std + mean",
    "as_tensor": "alpha.tensor(values), which copies; alpha.from_dlpack(array) shares",
    "concatenate": "alpha.concat(xs, axis)", "kron": "np.kron(x.numpy(), y.numpy())",
    "set_grad_enabled": "with alpha.no_grad(): or alpha.enable_grad():",
    "fft": "np.fft of x.numpy()", "distributed": "alpha.dist, after alpha.dist.init(): docs/how_to/distributed.md",
    "Generator": "alpha.manual_seed(seed); alpha.random.get_state()", "get_num_threads": _THREADS,
    "log_softmax": "alpha.nn.functional.log_softmax(x, dim), x.log_softmax(dim)", "inf": 'float("inf")',
    "nan": 'float("nan")', "pi": "math.pi", "swapaxes": "x.swapaxes(a, b)", "add": "x + y", "sub": "x - y",
    "mul": "x * y", "div": "x / y", "set_printoptions": "np.set_printoptions, for x.numpy()",
    "logspace": "10 ** alpha.linspace(a, b, n)", "numel": "x.numel()", "channels_last": "leave it out: channels are "
    "always last", "dtype": 'dtypes are strings: "float32"', "finfo": "np.finfo(x.dtype)", "iinfo": "np.iinfo(x.dtype)",
    "version": "alpha.__version__; python -m alpha shows those of the driver and the compilers",
    "use_deterministic_algorithms": "leave it out: results are always the same",
    "set_float32_matmul_precision": 'alpha.precision("tf32")', "strided": "all tensors are dense",
    "hub": "models.create", "vmap": "alpha.func.vmap",
    "random_split": "alpha.data.random_split",
    "distributions": "alpha.rand and alpha.randn",
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"),
                    "operators: x == y, x != y, x < y, ..."),
}

NN = {
    **dict.fromkeys(("TransformerDecoder", "TransformerDecoderLayer"), "write it with MultiheadAttention, Linear and "
                    "LayerNorm, as nn.TransformerEncoderLayer is"),
    "SyncBatchNorm": "alpha.dist.SyncBatchNorm", "DataParallel": "alpha.dist.DataParallel, a rank for each GPU",
    "Transformer": "TransformerEncoder; a decoder is "
    "MultiheadAttention, Linear and LayerNorm", "Swish": "nn.SiLU",
    "StochasticDepth": "nn.DropPath(p)", "SqueezeExcitation": "nn.SqueezeExcite",
    **dict.fromkeys(("weight_norm", "spectral_norm"), "alpha.nn.utils.weight_norm(layer), spectral_norm(layer)"),
    "Bilinear": "write it with matmul", "modules": "alpha.nn itself",
    "parallel": "alpha.dist.DataParallel, a rank for each GPU", "AdaptiveLogSoftmaxWithLoss": "CrossEntropyLoss",
    "MSE": "nn.MSELoss", "BCE": "nn.BCELoss", "FractionalMaxPool2d": "MaxPool2d",
}

LINALG = {
    "inverse": "alpha.linalg.inv", "vector_norm": "alpha.linalg.norm(x, p, axis)", "multi_dot": "a @ b @ c",
    "eigvalsh": "alpha.linalg.eigh(x).eigenvalues", "svdvals": "alpha.linalg.svd(x).S", "matmul": "a @ b",
    **{name: f"np.linalg.{name} of x.numpy()" for name in ("lstsq", "pinv", "eig", "matrix_rank", "matrix_power",
                                                           "cond")},
}

FUNC = {
    "stack_module_state": "alpha.stack([m.weight for m in models])", "linearize": "alpha.func.jvp",
    "functionalize": "leave it out",
}

UTILS = {
    **dict.fromkeys(("parametrizations", "parametrize"), "alpha.nn.utils.weight_norm, spectral_norm and "
                    "register_parametrization"),
    **dict.fromkeys(("remove_weight_norm", "remove_spectral_norm"), "alpha.nn.utils.remove_parametrizations(layer)"),
    "clip_grad_norm_": "alpha.optim.clip_grad_norm_", "clip_grad_value_": "alpha.optim.clip_grad_value_",
    "rnn": "sequences are padded to one length", "prune": "w *= mask, under alpha.no_grad()",
    "parameters_to_vector": "alpha.concat([p.flatten() for p in model.parameters()])",
}

FUNCTIONAL = {
    "sigmoid_focal_loss": "alpha.nn.functional.focal_loss(x, target, reduction=...)",
}

CUDA = {
    "device_count": "there is one device to a process, alpha.cuda.is_available()", "empty_cache":
    "alpha.cuda.free_cached()", "amp": 'alpha.precision("bf16"), or "fp16" and alpha.optim.LossScaler',
    **dict.fromkeys(("max_memory_allocated", "memory_allocated", "memory_reserved", "mem_get_info", "memory_stats"),
                    "alpha.cuda.memory_summary()"),
    "reset_peak_memory_stats": "alpha.profiler() has the peak of a block",
    "set_device": 'device="cuda:1", where tensors are made',
    "current_device": "t.device", "get_device_name": "python -m alpha shows it",
    "manual_seed": "alpha.manual_seed(seed)",
    "manual_seed_all": "alpha.manual_seed(seed)", "CUDAGraph": "alpha.capture(step, model)", "graph":
    "alpha.capture(step, model)", "OutOfMemoryError": "alpha.errors.OutOfMemoryError", "nvtx": "alpha.profiler()",
    **dict.fromkeys(("Stream", "Event", "stream", "current_stream"), "there is one stream, in order; alpha.profiler() "
                    "has times"), "get_device_properties": "python -m alpha shows them", "FloatTensor":
    'alpha.tensor(values, device="cuda")',
}

OPTIM = {
    "lr_scheduler": "alpha.optim.schedule: pass lr=schedule.cosine(0.1, total_steps=1000) to the optimizer; a chain is "
    "a function: lr=lambda step: first(step) if step < n else second(step - n)",
    "swa_utils": "alpha.optim.ExponentialMovingAverage", "LBFGS": "there is none; Adam needs no line search",
    "SparseAdam": "Adam: gradients are dense", "ASGD": "SGD, and alpha.optim.ExponentialMovingAverage", "Rprop":
    "RMSprop", "GradScaler": "alpha.optim.LossScaler", "EMA": "alpha.optim.ExponentialMovingAverage",
    "AdaBound": "alpha.optim.AdaMod",
}

SCHEDULE = {
    "StepLR": "schedule.step(lr, step_size)", "MultiStepLR": "schedule.multistep(lr, milestones)", "ExponentialLR":
    "schedule.exponential(lr, gamma)", "CosineAnnealingLR": "schedule.cosine(lr, total_steps)", "OneCycleLR":
    "schedule.one_cycle(max_lr, total_steps)", "CyclicLR": "schedule.triangular(base_lr, max_lr, step_size)",
    "CosineAnnealingWarmRestarts": "schedule.warm_restarts(lr, first)", "LinearLR": "schedule.linear(lr, total_steps)",
    "PolynomialLR": "schedule.polynomial(lr, total_steps)", "LambdaLR": "lr=function of the step, of one's own",
    "ConstantLR": "schedule.constant(lr)", "SequentialLR": "lr=function of the step, of one's own",
}

DATA = {
    "IterableDataset": "any object with __len__ and __getitem__", "Sampler": "DataLoader(shuffle=True), or a Subset in "
    "the order that is wanted", "RandomSampler": "DataLoader(shuffle=True)", "SequentialSampler": "shuffle=False",
    "WeightedRandomSampler": "Subset(data, rng.choice(len(data), n, p=weights))", "BatchSampler": "batch_size=",
    "default_collate": "items are stacked part by part", "get_worker_info": "transform(x, rng) gets a generator",
    "DistributedSampler": "alpha.dist.world().part(rows), a rank's rows of a batch",
    "StackDataset": "an object with __getitem__ of one's own",
}

INIT = {
    "sparse_": "w.copy_(w * (alpha.rand_like(w) > sparsity)), under alpha.no_grad()", "dirac_": "w.copy_(array), with "
    "an array of NumPy that has the ones",
}

CHECKPOINT = {"checkpoint": "alpha.recompute(f)(*args)", "checkpoint_sequential": "alpha.recompute(f)(*args)",
              "save_file": "alpha.checkpoint.save(path, tensors)", "load_file": "alpha.checkpoint.load(path)"}

ONNX = {"dynamo_export": "alpha.onnx.export", "verify": "onnxruntime runs the file"}

DIST = {"init_process_group": "alpha.dist.init()", "get_rank": "alpha.dist.world().rank",
        "get_world_size": "alpha.dist.world().size", "destroy_process_group": "alpha.dist.world().finish()",
        "DistributedDataParallel": "alpha.dist.DataParallel", "FullyShardedDataParallel": "alpha.dist.DataParallel: "
        "each rank has the whole model", "barrier": "alpha.dist.world().barrier()",
        "all_reduce": "alpha.dist.world().all_reduce(x), which returns the sum",
        "broadcast": "alpha.dist.world().broadcast(x, root=0), which returns the tensor"}

TRAINING = {"train": "alpha.training.fit(model, train, val)", "EarlyStopping": "a Callback whose on_epoch calls "
            "run.stop(): docs/tutorial/train_your_own.md", "ModelCheckpoint": "a Callback, and alpha.save(model, path)"}

TESTING = dict.fromkeys(("assert_close", "assert_allclose"), "alpha.testing.assert_equal_at(actual, expected, "
                        "rtol=1e-5, atol=1e-6)")

LOADER = {"dataset": "loader.data", "num_workers": "pass workers=", "sampler": "Subset(data, order)", "collate_fn":
          "items are stacked part by part"}

OPTIMIZER = {
    "state": "optimizer.state_dict() has the tensors, by the names of their parameters", "defaults":
    "optimizer.param_groups", "register_step_post_hook": "call it behind optimizer.step()", "register_step_pre_hook":
    "call it before optimizer.step()", "get_lr": "optimizer.lr", "learning_rate": "optimizer.lr",
}

SCALER = {
    "unscale_": "scaler.step(optimizer, max_norm=1.0) clips the true gradients", "update": "leave it out: step moves "
    "the scale", "get_scale": "scaler.value", "is_enabled": "make it for fp16 alone",
}

MODULE = {
    "flatten_parameters": "leave it out: products read the parameters where they are",
    "reset_parameters": "make the layer anew, or alpha.nn.init.kaiming_uniform_(layer.weight)", "module": "the model "
    "itself: there is one device to a process", "float16": "model.to(dtype=...)",
    "share_memory": "modules are not shared",
    "register_full_backward_hook": "register_backward_hook(f), called as f(module, g)", "type": "model.to(dtype=...)",
    "register_module": "add_module(name, module)", "compile": "alpha.capture(step)", "to_empty": "model.to(device)",
    "get_parameter": "dict(model.named_parameters())[name]", "get_buffer": "dict(model.named_buffers())[name]",
}


# Where a public name may be: the module, and how it is written. Modules that come with other names alone stand last.
PLACES = (("alpha", "alpha.{}"), ("alpha.nn.functional", "alpha.nn.functional.{}"), ("alpha.nn", "alpha.nn.{}"),
          ("alpha.ops", "alpha.ops.{}"), ("alpha.optim", "alpha.optim.{}"), ("alpha.nn.init", "alpha.nn.init.{}"),
          ("alpha.nn.utils", "alpha.nn.utils.{}"), ("alpha.func", "alpha.func.{}"),
          ("alpha.linalg", "alpha.linalg.{}"),
          ("alpha.optim.schedule", "alpha.optim.schedule.{}"), ("alpha.data", "alpha.data.{}"),
          ("alpha.checkpoint", "alpha.checkpoint.{}"), ("alpha.training", "alpha.training.{}"),
          ("alpha.testing", "alpha.testing.{}"), ("alpha.onnx", "alpha.onnx.{}"), ("alpha.cuda", "alpha.cuda.{}"),
          ("alpha.dist", "alpha.dist.{}"))
CLASSES = (("alpha", "Tensor", "x.{}(...)"), ("alpha.nn", "Module", "model.{}(...)"),
           ("alpha.optim", "Optimizer", "optimizer.{}(...)"))
NEW = {     # where -> how something of one's own is made
    "alpha.optim": "write an optimizer of your own: docs/how_to/add_an_optimizer.md",
    "alpha.optim.schedule": "write a function of the step: lr=lambda step: ...",
    "alpha.nn": "write a Module of your own: docs/how_to/add_a_layer.md",
}
OPS = ("alpha", "alpha.ops", "alpha.nn.functional", "Tensor")


@provides("missing")
def missing(where: str, name: str, table: Mapping[str, str], known: Any, also: Mapping[str, str] | None = None
            ) -> MissingError:
    """Returns the error for an attribute that is not there.

    Args:
        where: the object without such an attribute.
        table: help for names that people know from elsewhere.
        known: an object one of whose attributes may be meant.
    Names with two underscores belong to protocols, whose users ask and go on: for those the error has no help.
    """
    if name.startswith("__") and name not in table:
        return MissingError(name)
    fix = table.get(name) or (also or {}).get(name) or _elsewhere(where, name)
    if fix is None:
        names = [n for n in dir(known) if not n.startswith("_") and n != name]
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
        if close:
            fix = f"did you mean {close[0]}?"
        elif where in OPS and name.endswith("_") and not name.startswith("_"):
            fix = _ITSELF
        elif where in OPS:
            fix = "write it with alpha.ops, or add an op of your own: docs/how_to/add_a_layer.md"
        else:
            fix = NEW.get(where) or (f"dir({where}) has the names that there are" if where.startswith("alpha") else
                                     "assign it first, or correct the name")
    return MissingError(message(where, f"there is no {name}", fix))


def attribute(thing: Any, where: str, name: str, table: Mapping[str, str]) -> Any:
    """Returns an attribute for `__getattr__`, which users call for attributes that are there, too.

    Raises MissingError where there is none; an error inside of a property as it is.
    """
    try:
        return object.__getattribute__(thing, name)
    except MissingError:
        raise
    except AttributeError as error:
        if error.name not in (None, name) or (error.name and error.obj is not thing):
            raise
    raise missing(where, name, table, thing)


@provides("attribute")
def _tensors(thing: Any, where: str, name: str) -> Any:
    """Returns an attribute of a tensor; see `attribute`."""
    return attribute(thing, where, name, TENSOR)


def _elsewhere(where: str, name: str) -> str | None:
    """Returns how a name that another part of alpha has is written."""
    alpha = sys.modules["alpha"]
    if name.startswith("_") or not hasattr(alpha, "__all__"):
        return None
    if where in ("alpha", "alpha.ops", "alpha.nn.functional") and callable(getattr(alpha.Tensor, name, None)):
        return f"x.{name}(...)"
    if where in ("Tensor", "alpha.nn.functional") and name in alpha.__all__ and callable(vars(alpha)[name]):
        return f"alpha.{name}(x, ...)"
    layers = {layer.lower(): layer for layer in dir(alpha.nn)} if where == "alpha.nn.functional" else {}
    layer = layers.get(name.replace("_", ""))
    if layer:
        return f"alpha.nn.{layer}(...)(x)"
    if where not in dict(PLACES):
        return None     # an object: names of modules are no part of it
    for place, text in PLACES:
        if place != where and name in _public(place):
            return f"it is {text.format(name)}"
    for place, kind, text in CLASSES:
        if callable(getattr(getattr(sys.modules[place], kind), name, None)):
            return f"it is a method: {text.format(name)}"
    if where == "alpha":
        for table in (FUNCTIONAL, NN, OPTIM, SCHEDULE, DATA, CUDA, TRAINING, INIT, CHECKPOINT):
            if name in table:
                return table[name]
    registries = sys.modules.get("alpha.training.registries")
    if registries is not None and name in registries.MODELS:
        return f'models.create("{name}"), after import models'
    return None


def _public(place: str) -> list[str]:
    """Returns the public names of a module; of alpha.cuda none where it cannot be imported."""
    try:
        module = import_module(place)
    except ImportError:
        return []
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == place]
    return list(vars(module).get("__all__") or [name for name in own if not name.startswith("_")])


class Imports:
    """The last that Python asks for a module: `import alpha.utils` is answered as `alpha.utils` is."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Finds nothing.  Raises MissingModuleError where the package has an answer."""
        package, _, last = name.rpartition(".")
        if package.partition(".")[0] == "alpha" and package in sys.modules:
            try:
                getattr(sys.modules[package], last)
            except MissingError as error:
                raise MissingModuleError(str(error), name=name) from None
            except AttributeError:  # of a package that answers nothing
                pass
