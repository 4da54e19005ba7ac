"""Lines that a PyTorch user types: each works, or its error names the twin."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
from alpha import nn, optim
from alpha.errors import AlphaError

WORK = """
x.sum(dim=1, keepdim=True)
x.mean(dim=(0, 1))
x.view(2, -1)
x.squeeze().unsqueeze(1)
x.chunk(2, dim=-1)
x.split(2, dim=2)
x.flatten(1, 2)
x.numel() + x.dim() + x.size(0) + x.size()[1]
x.contiguous().view(-1)
x.clamp(min=0, max=1)
x.pow(2).sum().sqrt()
x.std(dim=0) + x.norm() + x.var(unbiased=True)
x.any() | x.bool().all()
x.float().long().to("float32").to(alpha.float64)
(x > 0) & (x < 1) | ~(x == 0)
x % 2 + x // 2
x[x > 0]
x[[0, 1], [1, 2]]
x[:, alpha.tensor([0, 2])]
x.permute(0, 2, 1).transpose(1, 2).reshape(-1)
x.max(dim=1), x.argmax(dim=1), x.argmin(dim=-1)
x.masked_fill(x > 0, float("-inf")).softmax(dim=-1)
x.repeat(1, 2, 1).expand(2, 6, 4)
x.detach().cpu().numpy()
x.clone().requires_grad_()
x @ x.transpose(1, 2)
x.type_as(x).is_cuda
f"{x.sum():.4f}"
x.sum().item()
alpha.from_numpy(np.ones(3))
alpha.eye(3) + alpha.linspace(0, 1, 3)
alpha.randint(0, 10, (4,)), alpha.randperm(5)
alpha.cat([x, x], dim=1), alpha.stack([x, x], dim=0)
alpha.where(x > 0, x, 0.0), alpha.exp(x), alpha.zeros_like(x)
alpha.einsum("bij,bkj->bik", x, x)
x.topk(2, dim=1).values, x.argsort(dim=1, descending=True)
values, index = x.sort(dim=-1)
x.gather(1, x.argsort(1)), x.cumsum(dim=0)
x.scatter_add(1, x.argsort(1), x)
F.one_hot(alpha.tensor([0, 2]), num_classes=3)
F.interpolate(maps, scale_factor=2, mode="bilinear", align_corners=False)
F.pad(maps, (1, 1, 1, 1), mode="reflect")
nn.Conv2d(3, 4, 3, padding="same")(maps)
nn.ReLU(inplace=True)(x)
nn.Softmax(dim=1)(x)
nn.PReLU()(nn.InstanceNorm2d(3)(maps))
nn.Dropout2d(0.2)(maps)
nn.Embedding(10, 4)(alpha.tensor([1, 2]))
nn.PixelShuffle(1)(nn.ChannelShuffle(3)(maps)), nn.LocalResponseNorm(2)(maps)
nn.GELU("tanh")(x), F.leaky_relu(x, negative_slope=0.2)
F.cross_entropy(maps, labels, weight=alpha.ones((3,)), ignore_index=-100)
nn.MaxPool2d(2, stride=2, ceil_mode=True, return_indices=True)(maps)
nn.AdaptiveMaxPool2d(1)(maps)
nn.BatchNorm1d(4)(alpha.randn((6, 4))), nn.BatchNorm2d(3, affine=False, track_running_stats=False)(maps)
nn.Conv1d(4, 2, 3)(x), nn.MaxPool1d(2)(x)
F.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="batchmean"), F.huber_loss(x, x * 2)
model[:1], list(model.children()), model.zero_grad(set_to_none=True)
model[0].register_forward_hook(lambda m, a, y: None).remove()
optimizer.add_param_group({"params": nn.Linear(2, 2).parameters()})
repr(optimizer), optimizer.zero_grad(set_to_none=True)
nn.init.trunc_normal_(model[0].weight, std=0.02)
optim.clip_grad_value_(model.parameters(), 1.0)
optim.ReduceLROnPlateau(optimizer, mode="min", factor=0.5).step(1.0)
optim.Lookahead(optim.NAdam(model.parameters())), optim.LAMB(model.parameters()), optim.Adadelta(model.parameters())
optim.schedule.warm_restarts(0.1, 10), optim.schedule.linear(0.1, 10), optim.schedule.polynomial(0.1, 10, 2.0)
alpha.cuda.is_available()
model.eval().float().to("cpu")
x.mul(2).add(1).sub(1).div(2).eq(x)
x * (x > 0) + (x > 1) - (x > 2)
F.cross_entropy(x.reshape(6, 4), alpha.tensor([0, 1, -100, 3, 2, -100]))
F.nll_loss(x.reshape(6, 4).log_softmax(1), alpha.tensor([0, 1, -100, 3, 2, -100]))
nn.BatchNorm2d(3)(maps[:0]), nn.Conv2d(3, 2, 3)(maps[:0]), nn.MaxPool2d(2)(maps[:0])
F.pad(maps, (1, 1, 1, 1), mode="replicate"), F.pad(maps, (1, 1, 1, 1), mode="circular")
nn.Upsample(scale_factor=2)(maps)
nn.AvgPool1d(2)(x), nn.MaxPool2d(2, dilation=1, ceil_mode=True)(maps)
with alpha.inference_mode(): model(x)
with alpha.no_grad(): x[0] = 0
x._repr_html_()
optim.Lion(model.parameters()), optim.Adagrad(model.parameters()), optim.NAdam(model.parameters())
alpha.allclose(x, x), alpha.isnan(x).any()
alpha.sum(x, dim=1), alpha.mean(x, 1, keepdim=True), alpha.matmul(x, x.mT), x[0].t()
x.is_contiguous(), x.nelement(), x.is_leaf, x.view_as(x), x.expand_as(x), x.swapaxes(0, 1)
alpha.full((2, 2), 7.0), alpha.ones(3, requires_grad=True), alpha.flip(x, dims=[0])
x.nelement() == alpha.ones_like(x).sum(), len(x), list(iter(x)), bool(x.sum() > 99)
x[..., 0], x[:, None], x[::2], x[-1], x[0, 1:3], -x, abs(x), x ** 2, 2 ** x, 1 / (x * x + 1), 3 % (x * x + 1)
model.load_state_dict(model.state_dict(), strict=False), sum(p.numel() for p in model.parameters() if p.requires_grad)
model.apply(lambda m: nn.init.kaiming_normal_(m.weight) if hasattr(m, "weight") else None).requires_grad_(False)
model.add_module("extra", nn.Linear(2, 2)), model.get_submodule("0"), dict(model.named_modules())
F.relu(x, inplace=True), F.gelu(x, approximate="tanh"), F.silu(x, inplace=True), F.dropout(x, p=0.5, training=False)
F.normalize(x, dim=-1), F.relu6(x, inplace=True), F.hardswish(x, True), F.softplus(x), F.elu(x)
F.conv2d(maps, maps[:, :3, :3], padding=1), F.linear(x, x[0], x[0, :, 0]), F.max_pool2d(maps, 2)
optim.Adam([{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[2].parameters()}], lr=1e-2)
for g in optimizer.param_groups: g["lr"] *= 0.1
nn.init.xavier_uniform_(model[0].weight), nn.init.zeros_(model[0].bias), nn.init.constant_(model[0].bias, 0.1)
nn.GroupNorm(1, 3)(maps), nn.LayerNorm(4)(x), nn.ConvTranspose2d(3, 2, 2, stride=2)(maps)
nn.Sequential(OrderedDict([("body", nn.Linear(4, 4)), ("act", nn.ReLU())])).body.weight
missing, unexpected = model.load_state_dict({"0.weight": model[0].weight, "z": x}, strict=False)
model.load_state_dict({**model.state_dict(), "z": x}, strict=False).unexpected_keys == ["z"]
train, val = alpha.data.random_split(alpha.data.TensorDataset(x, x), [0.5, 0.5]); train[0], len(val)
alpha.data.Subset(list(range(10)), [0, 3])[1], len(alpha.data.ConcatDataset([[1], [2, 3]]))
model.apply(lambda m: nn.init.normal_(m.weight, 0, 0.1) if hasattr(m, "weight") else nn.init.calculate_gain("relu"))
model.register_forward_pre_hook(lambda m, a: None).remove(), x.clone().detach().requires_grad_(True), x.cpu().numpy()
np.asarray(x), np.array(x), np.testing.assert_allclose(x, x), str(x), alpha.tensor([1.5]).tolist(), float(x.sum())
copy.deepcopy(model).load_state_dict(model.state_dict()), model.train(False).training, dict(model.named_children())
nn.ModuleDict({"a": nn.Linear(2, 2)}), nn.ParameterList([nn.Parameter(x)]), nn.ModuleList([nn.Linear(2, 2)])
F.scaled_dot_product_attention(query=x, key=x, value=x, is_causal=True)
F.scaled_dot_product_attention(x, x, x, x @ x.mT)
nn.MultiheadAttention(4, 2, batch_first=True)(x, x, x), nn.MultiheadAttention(4, 2)(x, x, x, need_weights=False)[0]
nn.TransformerEncoder(nn.TransformerEncoderLayer(d_model=4, nhead=2, dim_feedforward=8, norm_first=True), 2)(x)
nn.TransformerEncoderLayer(4, 2, 8, activation="gelu", batch_first=True).eval()(x, is_causal=True)
F.batch_norm(maps, maps[0, 0, 0] * 0, maps[0, 0, 0] * 0 + 1), F.layer_norm(x, (4,))
F.group_norm(maps, 3), F.rms_norm(x, (4,))
F.instance_norm(maps), F.dropout2d(maps, 0.1), F.hardsigmoid(x, inplace=True)
F.hardtanh(x, -2.0, 2.0), F.mish(x), F.glu(x)
F.logsigmoid(x), F.selu(x), F.celu(x, alpha=2.0), F.softsign(x), F.softmin(x, dim=1), F.softshrink(x, lambd=0.2)
F.hardshrink(x), F.tanhshrink(x), F.threshold(x, 0.1, 20.0), F.prelu(x, x[0, 0, :1]), F.leaky_relu(x, 0.1, inplace=True)
F.conv1d(x, x[:, :2], padding=1), F.max_pool1d(x, 2), F.avg_pool1d(x, kernel_size=2), F.adaptive_avg_pool1d(x, 2)
F.adaptive_max_pool1d(x, 2), F.cosine_similarity(x, x, dim=-1), F.pairwise_distance(x, x, keepdim=True)
F.fold(F.unfold(maps, kernel_size=2), (4, 4), kernel_size=2), nn.Fold((4, 4), 2)(nn.Unfold(2, padding=0)(maps))
F.gumbel_softmax(x, tau=0.5, hard=True, dim=-1), nn.Unflatten(1, (3, 1))(x), nn.RMSNorm(4)(x), nn.Softmin(dim=1)(x)
nn.Softmax2d()(maps), nn.SELU()(x), nn.CELU(2.0)(x), nn.Softsign()(x), nn.Softshrink(0.1)(x), nn.Hardshrink()(x)
nn.Tanhshrink()(x), nn.Threshold(0.1, 2.0)(x), nn.CosineSimilarity(dim=1)(x, x), nn.PairwiseDistance(2)(x, x * 2)
F.triplet_margin_loss(x, x * 2, x * 3), nn.TripletMarginLoss(margin=0.5, swap=True)(x, x * 2, x * 3)
F.cosine_embedding_loss(x[0], x[1], alpha.tensor([1, -1, 1]))
F.margin_ranking_loss(x[0], x[1], x[0].sign(), margin=0.1)
F.hinge_embedding_loss(x, x.sign()), F.soft_margin_loss(x, x.sign()), nn.SoftMarginLoss()(x, x.sign())
F.multi_margin_loss(x[0], alpha.tensor([0, 1, 3]), p=2), nn.MultiMarginLoss()(x[0], alpha.tensor([0, 1, 3]))
F.poisson_nll_loss(x, x.exp()), F.gaussian_nll_loss(x, x * 2, x.exp()), nn.GaussianNLLLoss(full=True)(x, x, x.exp())
x.prod(dim=1), x.cumprod(dim=0), alpha.roll(x, shifts=(1, -1), dims=(0, 2)), x.roll(2), alpha.lerp(x, x * 2, 0.3)
alpha.addcmul(x, x, x, value=0.5), x.addcdiv(x, x.exp()), alpha.addmm(x[0], x[0, :, :3], x[1], beta=2, alpha=3)
alpha.baddbmm(x[:, :, :3], x, x.mT), alpha.isclose(x, x).all(), x.allclose(x), x.equal(x), x.nan_to_num(0.0)
x.tan(), x.clamp(-1, 1).asin(), x.clamp(-1, 1).acos(), x.atan(), alpha.atan2(x, x * 2), x.sinh(), x.cosh(), x.expm1()
x.abs().log1p(), x.exp2(), x.erfc(), alpha.diff(x, dim=1), x[0].trace(), alpha.diag(x[0, 0]), x.diagonal(0, 1, 2)
x.repeat_interleave(2, dim=1), alpha.count_nonzero(x, dim=0)
x.median(), x.median(dim=1).indices, x.quantile(0.3, dim=1)
alpha.quantile(x, 0.5), alpha.broadcast_to(x, (5, 2, 3, 4)), alpha.moveaxis(x, 0, 2), alpha.hypot(x, x), x.fmod(2.0)
x.sigmoid().logit(eps=1e-3), x.new_zeros(3), x.new_ones((2, 3)), x.new_full((2,), 3.0), x.new_tensor([1.0, 2.0])
alpha.vstack([x, x]), alpha.hstack([x, x]), alpha.dstack([x, x])
x.narrow(1, 0, 2), x.select(1, 0), x.tensor_split(2, dim=1)
alpha.take_along_dim(x, x.argsort(1), dim=1)
alpha.unique(labels, return_counts=True), labels.flatten().bincount(minlength=4)
alpha.data.DataLoader([(np.ones(3), 2)], batch_size=1), alpha.training.fit, alpha.onnx.export
out, (h, c) = nn.LSTM(4, 5, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)(x); out[:, -1], h[-1]
nn.GRU(4, 5)(x)[0], nn.RNN(4, 5, nonlinearity="relu")(x), nn.LSTMCell(4, 5)(x[0]), nn.GRUCell(4, 5)(x[0])
nn.Conv3d(3, 2, 3, padding=1)(maps[None]), nn.ConvTranspose3d(3, 2, 2, stride=2)(maps[None])
nn.MaxPool3d(2)(maps[None]), nn.BatchNorm3d(3)(maps[None])
nn.AdaptiveAvgPool3d(1)(maps[None]), F.avg_pool3d(maps[None], 2)
nn.ConvTranspose1d(4, 2, 3, stride=2)(x), nn.InstanceNorm1d(4)(x), nn.Dropout3d(0.5)(maps[None])
theta = alpha.tensor([[[1.0, 0, 0], [0, 1, 0]]]).to(maps.dtype); F.affine_grid(theta, (1, 4, 4, 3), align_corners=False)
F.grid_sample(maps, maps[..., :2].tanh(), mode="bilinear", padding_mode="border", align_corners=True)
nn.CTCLoss(blank=0)(x.log_softmax(2), alpha.tensor([[1], [2], [3]]), alpha.tensor([2, 2, 2]), alpha.tensor([1, 1, 1]))
F.binary_cross_entropy_with_logits(x, x.sigmoid(), weight=x[0, 0].abs(), pos_weight=x[0, 0].exp())
conv = nn.utils.weight_norm(nn.Conv2d(3, 4, 3)); conv(maps), conv.weight, nn.utils.remove_parametrizations(conv)
nn.utils.spectral_norm(nn.Linear(4, 4))(x)
nn.SqueezeExcite(3, 2)(maps), nn.DropPath(0.1)(maps), nn.LayerNorm2d(3)(maps), nn.FocalLoss()(x, x.sigmoid())
nn.ArcFace(4, 10)(x[0], alpha.tensor([1, 2, 3])), nn.DiceLoss()(maps, maps.sigmoid())
optim.SAM(optim.SGD(model.parameters(), lr=0.1), rho=0.05), optim.LARS(model.parameters(), lr=0.1)
optim.Adafactor(model.parameters()), optim.Adan(model.parameters()), optim.MuonAdamW(model.parameters())
free = optim.ScheduleFreeAdamW(model.parameters(), warmup_steps=10); free.eval(), free.train()
alpha.func.grad(lambda p: alpha.func.functional_call(model, p, (x,)).sum())(dict(model.named_parameters()))
alpha.func.vmap(alpha.func.grad(lambda v: (v * v).sum()))(x), alpha.func.jacrev(lambda v: v * 2)(x[0, 0])
alpha.func.jvp(lambda v: v.exp(), (x,), (x,)), alpha.func.vjp(lambda v: v.exp(), x)[1](x)
alpha.func.hessian(lambda v: (v ** 3).sum())(x[0, 0]), alpha.func.jacfwd(lambda v: v.sin())(x[0, 0])
x.index_add(1, alpha.tensor([0, 2]), x[:, :2]), x.scatter_reduce(2, x.argsort(2), x, "amax", include_self=False)
alpha.meshgrid(alpha.arange(3), alpha.arange(2), indexing="ij"), alpha.cdist(x, x, p=1)
alpha.bernoulli(x.sigmoid()), x[0].softmax(-1).multinomial(2), alpha.multinomial(x[0, 0].exp(), 5, replacement=True)
alpha.linalg.inv(x[0, :, :3].float()), alpha.linalg.solve(x[0, :, :3].float(), x[0].float())
alpha.linalg.svd(x.float()).S
w, v = alpha.linalg.eigh((x @ x.mT).float()); q, r = alpha.linalg.qr(x.float().mT); alpha.linalg.det((x @ x.mT).float())
alpha.clamp(x, min=x.detach() - 1, max=x[0, 0].abs()), F.pad(maps, (-1, 0, 0, -1))
nn.BatchNorm2d(3, momentum=None)(maps)
y = x.clone().requires_grad_() * 2; y[:, 0] = 0.0; y[y > 1] = 1.0; y[..., -1] = x[..., 0]; y.sum().backward()
""".strip().splitlines()

# line -> what its error says to write
TWINS = {
    "x.add_(1)": "t += y", "x.grad_fn": "repr(t)",
    "alpha.nn.Bilinear(3, 4, 2)": "matmul", "optim.lr_scheduler": "alpha.optim.schedule", "optim.schedule.StepLR":
    "step(lr",
    "alpha.compile(model)": "alpha.capture", "alpha.autocast('cuda')": "alpha.precision",
    "alpha.empty(3)": "alpha.zeros",
    "values, index = x.max(dim=1)": "argmax", "alpha.full(2, 3, 4)": "zeros((2, 3))",
    "alpha.data.WeightedRandomSampler": "rng.choice", "alpha.log_softmax(x, 1)": "x.log_softmax",
    "alpha.add(x, x, alpha=2)": "x + y", "alpha.inf": "float(", "x.max(dim=1).values": "x.argmax",
    "optim.lr_scheduler.SequentialLR": "lambda step", "nn.utils.clip_grad_norm_": "clip_grad_norm",
    "model.register_full_backward_hook(print)": "register_backward_hook", "x.sumn()": "did you mean sum",
    "F.cross_entropy(alpha.ones((2, 3)), alpha.tensor([0, -1]))": "number the classes from 0",
    "x.requires_grad_()[0].__setitem__(0, 1)": "masked_fill", "x.to('gpu')": '"cuda"',
    "alpha.amax(x, 1)": "x.max(axis)", "alpha.histc(x)": "np.histogram", "alpha.eq(x, x)": "x == y",
    "alpha.utils.data.DataLoader": "alpha.data.DataLoader", "alpha.set_grad_enabled(False)": "alpha.no_grad()",
    "alpha.linalg.pinv(x)": "np.linalg", "alpha.svd(x)": "alpha.linalg.svd", "nn.LSTM(3, 4).flatten_parameters()":
    "leave it out", "nn.utils.remove_weight_norm(model[0])": "remove_parametrizations",
    "alpha.fft.fft(x)": "np.fft", "alpha.arctan(x)": "x.atan(",
    "alpha.cuda.empty_cache()": "free_cached", "alpha.cuda.device_count()": "is_available", "alpha.cuda.amp.autocast()":
    "alpha.precision", "alpha.cuda.max_memory_allocated()": "memory_summary", "alpha.cuda.Stream()": "one stream",
    "alpha.distributed.init_process_group()": "alpha.dist", "alpha.Generator()": "alpha.manual_seed",
    "nn.TransformerDecoderLayer(8, 2)": "MultiheadAttention", "F.upsample(x)": "Upsample",
    "F.scaled_dot_product_attention(x, x, x, is_causal=True, enable_gqa=True)": "repeat_interleave",
    "alpha.get_num_threads()": "ALPHA_NUM_THREADS", "x.dist(x)": "(x - y).norm()",
    "nn.BatchNorm2d(8)(alpha.ones((2, 8, 4, 4)))": "NHWC", "alpha.optim.Adm": "did you mean Adam",
}


def names() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    return {"alpha": alpha, "nn": nn, "F": F, "np": np, "optim": optim, "x": alpha.randn((2, 3, 4)), "model": model,
            "maps": alpha.randn((2, 4, 4, 3)), "labels": alpha.randint(0, 3, (2, 4, 4)),
            "optimizer": optim.SGD(model.parameters(), lr=0.1), "OrderedDict": OrderedDict, "copy": copy}


@pytest.mark.parametrize("line", WORK)
def test_works(line: str) -> None:
    exec(line, names())


def in_float16(made: Any) -> Any:
    return made.astype("float16") if isinstance(made, alpha.Tensor) and made.is_floating_point else made


@pytest.mark.parametrize("line", WORK)
def test_works_in_float16(line: str) -> None:
    space = {name: in_float16(given) for name, given in names().items()}
    space["model"].to(dtype="float16")
    here = line.replace("nn.", "half.").replace("alpha.randn((6, 4))", 'alpha.randn((6, 4)).astype("float16")')
    exec(here, {**space, "half": HalfLayers(), "nn": nn})


class HalfLayers:
    """alpha.nn with layers of float16."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(nn, name)
        is_layer = isinstance(found, type) and issubclass(found, nn.Module)
        return (lambda *args, **options: found(*args, **options).to(dtype="float16")) if is_layer else found


@pytest.mark.parametrize("line", TWINS)
def test_names_its_twin(line: str) -> None:
    with pytest.raises(AlphaError) as caught:
        exec(line, names())
    assert TWINS[line] in str(caught.value)


def test_there_are_enough_lines() -> None:
    assert len(WORK) + len(TWINS) >= 150 and len(set(WORK)) == len(WORK)
