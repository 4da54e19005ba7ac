"""What ranks rest on, in one process: numbers of parts of a batch, batches of given images, complete gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import dist, nn, ops, random
from alpha.data import Augment, Dataset, Images
from alpha.dist.data_parallel import Reducer
from alpha.errors import ArgumentError, ConfigError
from alpha.core import ready
from alpha.core.tensor import Tensor

pytestmark = pytest.mark.same_without_kernels("ranks are what is tested")


@pytest.mark.parametrize("rows, width", [(12, 8), (7, 5), (5, 3)])
def test_dropout_of_parts_is_that_of_the_whole(rows: int, width: int) -> None:
    x = ops.ones((rows, width))
    alpha.manual_seed(4)
    whole = [ops.dropout(x, 0.5).numpy() for _ in range(2)]
    after = random.get_state()
    for bounds in ((0, 2, rows), (0, 1, 4, rows)):
        for first, last in zip(bounds, bounds[1:]):
            alpha.manual_seed(4)
            with random.part(first, last, rows):
                parts = [ops.dropout(x[first:last], 0.5).numpy() for _ in range(2)]
            assert all(np.array_equal(a, b[first:last]) for a, b in zip(parts, whole))
            assert random.get_state() == after
    with random.part(0, 2, rows):
        alpha.manual_seed(4)
        seed, offset = random.reserve(7)        # no multiple of the part's rows: as outside
        assert (seed, offset, random.get_state()[1]) == (4, 0, 8)


def test_a_batch_of_given_images_looks_as_in_any_other_batch() -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 255, (9, 8, 8, 3)).astype(np.uint8), np.arange(9)
    data = Dataset("some", tuple("abcdefghi"), np.zeros(3, np.float32), np.ones(3, np.float32), images, labels, images,
                   labels)
    source, augment = Images(images, labels, data, "cpu"), Augment(crop=1, flip=True)
    for x, y in source.batches(4, seed=3, epoch=2, augment=augment):
        again, same = source.batch(y.numpy()[1:], seed=3, epoch=2, augment=augment)
        assert np.array_equal(again.numpy(), x.numpy()[1:]) and np.array_equal(same.numpy(), y.numpy()[1:])
    with pytest.raises(ConfigError, match="mask_fill"):
        source.batch(labels, augment=Augment(mask_fill=0))
    with pytest.raises(ArgumentError):
        source.batch([0, 1])    # type: ignore[arg-type]


class Notes:
    """Notes in which order gradients are complete, and doubles them."""

    def __init__(self, params: dict[str, Tensor], takes_part: bool = True) -> None:
        self.names = {id(p): name for name, p in params.items()}
        self.order: list[str] = []
        self.expected: list[str] = []
        self.takes_part, self.found = takes_part, list[tuple[Any, Any]]()
        for p in params.values():
            ready.listeners[id(p)] = (p, self)

    def begin(self, leaves: Iterable[Any]) -> bool:
        self.expected = sorted(self.names[id(leaf)] for leaf in leaves)
        return self.takes_part

    def arrived(self, leaf: Any, g: Any) -> None:
        self.order.append(self.names[id(leaf)])
        if g is not None:
            self.found.append((leaf, g * 2.0 if leaf._grad is None else leaf._grad + g * 2.0))

    def finish(self) -> list[tuple[Any, Any]]:
        return self.found


@pytest.fixture
def params() -> Any:
    yield {name: alpha.tensor([2.0, 3.0], requires_grad=True) for name in ("a", "b", "c")}
    ready.listeners.clear()


def test_a_leaf_is_complete_when_its_last_part_has_come(params: dict[str, Tensor]) -> None:
    notes = Notes(params)
    a, b = params["a"], params["b"]
    h = a * b
    (ops.exp(h) * a).sum().backward()       # a is used twice, first and last; c not at all
    assert notes.order == ["a", "b"] or notes.order == ["b", "a"]
    assert notes.expected == ["a", "b"] and params["c"].grad is None
    e = np.exp([4.0, 9.0])
    assert np.allclose(b.grad.numpy(), 2 * e * [4.0, 9.0], rtol=1e-5)
    assert np.allclose(a.grad.numpy(), 2 * (e + e * [4.0, 9.0]), rtol=1e-5)


def test_gradients_that_are_asked_for_are_no_business_of_listeners(params: dict[str, Tensor]) -> None:
    notes = Notes(params)
    (g,) = alpha.grad((params["a"] * 3.0).sum(), [params["a"]])
    assert g.tolist() == [3.0, 3.0] and not notes.order
    (params["a"] * params["a"]).sum().backward(create_graph=True)
    assert not notes.order and params["a"].grad.tolist() == [4.0, 6.0]


def test_a_listener_that_takes_no_part_changes_nothing(params: dict[str, Tensor]) -> None:
    notes = Notes(params, takes_part=False)
    (params["a"] * 3.0).sum().backward()
    assert params["a"].grad.tolist() == [3.0, 3.0] and not notes.order


def test_one_rank_listens_to_nothing() -> None:
    model = nn.Linear(3, 2)
    parallel = dist.DataParallel(model)
    assert not ready.listeners and parallel.comm is dist.world() and parallel.module is model
    ops.sum(parallel(ops.ones((4, 3)))).backward()
    assert model.bias.grad.tolist() == [4.0, 4.0]
    assert "1 ranks, buckets of 25 MiB" in repr(parallel) and parallel.detach() is model
    with pytest.raises(ArgumentError):
        dist.DataParallel(lambda x: x)  # type: ignore[arg-type]


def test_buckets_hold_so_many_bytes_of_one_dtype() -> None:
    reducer = Reducer(nn.Linear(2, 2), dist.world(), 25.0, None)
    reducer.params = [alpha.zeros((n,), dtype=dtype) for n, dtype in (
        (100, "float32"), (100, "float32"), (300, "float32"), (10, "float64"), (10, "float64"))]
    reducer.bucket_nbytes = 800
    assert [b.members for b in reducer._cut(range(5))] == [[0, 1], [2], [3, 4]]
    reducer.wire = "float16"
    assert [b.members for b in reducer._cut(range(5))] == [[0, 1], [2], [3, 4]]
    assert [b.members for b in reducer._cut([1, 2, 0, 4, 3])] == [[1, 2], [0], [4, 3]]


def test_one_process_is_one_slice_after_the_other() -> None:
    slices = dist.Slices(4)
    assert slices.run(lambda a, b: (a, b), 10) == [(0, 2), (2, 5), (5, 7), (7, 10)]
    parts = [alpha.tensor([v], dtype="float32") for v in (1e8, 1.0, -1e8, 1.0)]
    tree = (np.float32(1e8) + np.float32(1)) + (np.float32(-1e8) + np.float32(1))
    assert slices.tree_sum(parts).tolist() == [float(tree)]


def test_settings_of_the_caller_hold_in_slices() -> None:
    with alpha.precision("fp16"), alpha.no_grad():
        found = dist.Slices(2).run(lambda a, b: (alpha.config.precision, alpha.grad_enabled()), 2)
    assert found == [("fp16", False)] * 2


def test_the_names_of_pytorch_are_answered() -> None:
    for name, text in (("init_process_group", "alpha.dist.init()"), ("get_rank", "alpha.dist.world().rank")):
        with pytest.raises(AttributeError, match=text.replace("(", r"\(").replace(")", r"\)")):
            getattr(dist, name)
