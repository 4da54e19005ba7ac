"""The measured constants of a device class, as the JSON files beside this one hold them, in typed records.

A record of a tile has the tile's sizes as its first fields, its KEY, by which kernels find it; the files list such
records. `read` makes records of a file's text, and `plain` makes the text's objects of records. A field that is missing
or unknown, or a value of another type, is an error that names its place in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin, get_type_hints

R = TypeVar("R")
Key = tuple[Any, ...]


class Tiles(dict[Key, R], Generic[R]):
    """Records of tiles by their keys."""


@dataclass(frozen=True)
class Conversion:
    """A pass over memory that converts."""

    launches: int
    depth: int


@dataclass(frozen=True)
class SkDilatedTile:
    """A tile of wgrad on FMA units."""

    KEY: ClassVar[int] = 5
    rows: int
    columns: int
    k: int
    threads: int
    vector: int
    rate: float         # of the FMA rate while a multiprocessor is full


@dataclass(frozen=True)
class SlabTile(SkDilatedTile):
    """A tile of fprop, dgrad and matmul on FMA units."""

    kmajor: float       # the share of the rate that is left where B is K-major


@dataclass(frozen=True)
class Ffma:
    launches: int
    depth: int
    tile_clocks: float      # of a block, before the first and after the last product
    slice_clocks: float     # more, of a block that stores a slice; and once, to notice that all have come
    add_clocks: float       # to add up a slice
    alone: float            # rate of a block that has its warp schedulers to itself, which does not hide all latency
    tiles: Tiles[SlabTile]
    wgrad: Tiles[SkDilatedTile]
    unit_us: float          # of a unit of wgrad: start, drain and store
    sum_us: float           # the kernel that adds slices,
    sum_dram: float         # and the share of the memory's rate that it reaches


@dataclass(frozen=True)
class Mma:
    """mma.sync: estimates, where nothing else is said."""

    efficiency: float       # of the unit that limits a tile, while a multiprocessor is full
    shared_bytes: float     # of a multiprocessor per clock
    l2: float               # of the L2 cache's rate
    behind_wgmma: float     # times the estimate, on devices that have both: wgmma is faster, and measured


@dataclass(frozen=True)
class Depthwise:
    launches: int
    depth: int
    dram: float                     # of the memory's rate, in one pass over the tensors: estimated
    multiplied: Mapping[str, float]  # times as long with several filters a channel, by pass: of 6, 5x5
    efficiency: float               # of the FMA rate: an estimate
    strips: Mapping[str, float]     # of the FMA rate, an estimate; of the memory's, by pass: 3x3, 16 bits


@dataclass(frozen=True)
class FftTile:
    KEY: ClassVar[int] = 1
    edge: int
    dram: float     # of the memory's rate
    fma: float      # of the FMA rate


@dataclass(frozen=True)
class Transformed:
    launches: int
    depth: int
    dram: float         # of the memory's rate,
    fma: float          # and of the FMA rate, that Winograd's transforms reach
    fft: Tiles[FftTile]
    chunk_bytes: int    # of transformed tiles that are worked on at a time: fewer fill fewer multiprocessors


@dataclass(frozen=True)
class FewChannels:
    KEY: ClassVar[int] = 2
    pass_name: str
    channels: int   # of a column
    rate: float     # of the FMA rate, on an H200; of 2 and 4 channels estimates


@dataclass(frozen=True)
class Stem:
    launches: int
    depth: int
    dram: float     # of the memory's rate
    seen: float     # of the lesser of products and memory, forward to more than 8 outputs: an estimate
    few: Tiles[FewChannels]


@dataclass(frozen=True)
class StemClocks:
    KEY: ClassVar[int] = 2
    pass_name: str
    precision: str
    position: float     # clocks of a multiprocessor for a position and all columns,
    chunk: float        # and for each chunk of filters


@dataclass(frozen=True)
class StemMma:
    launches: Mapping[str, int]     # by pass
    depth: Mapping[str, int]        # tables, fragments of w; sums over blocks
    dram: float                     # of the rate of memory
    clocks: Tiles[StemClocks]


@dataclass(frozen=True)
class MatmulBatched:
    """Estimated: shares of the unit's rate, bytes of shared memory a clock, clocks to end a tile."""

    efficiency: float
    shared_bytes: float
    single: float
    tile_clocks: float
    depth: int


@dataclass(frozen=True)
class GroupedClocks:
    KEY: ClassVar[int] = 2
    of: str             # "maps" or "wgrad"
    precision: str
    clocks: float       # of a multiprocessor for 16 positions, a piece of 16 x 16 (or 8) channels and a tap


@dataclass(frozen=True)
class Grouped:
    """Narrow groups, on an H200."""

    launches: Mapping[str, int]
    depth: Mapping[str, int]    # tables, filters in place; sums over blocks
    classes: float              # times as long, where positions of several classes are written
    dram: Mapping[str, float]   # of the rate of memory
    clocks: Tiles[GroupedClocks]
    word_clocks: float          # for a word of filters that a block brings into place
    seen: float                 # of the lesser of products and memory


@dataclass(frozen=True)
class WgmmaTile:
    """A tile of fprop and dgrad on Hopper's tensor cores; the blocks of a cluster take as long as one alone."""

    KEY: ClassVar[int] = 5
    precision: str
    rows: int
    columns: int
    pairs: bool
    held: int
    block_us: float     # of a block of 64 of k
    end_us: float       # of the end of a tile whose results have 16 bits
    alone_us: float     # of pairs, a block of outputs alone; of others 0


@dataclass(frozen=True)
class Wgmma:
    launches: int
    depth: int
    tiles: Tiles[WgmmaTile]
    part: float             # of a block, however few of its products are made
    sum_us: float           # the launch that adds slices,
    sum_l2: float           # and its share of the L2 cache's rate
    cluster_us: float       # more, of a tile whose blocks, a cluster, add up their slices
    seen: float             # of the time that takes less: not all is hidden,
    seen_of_few: float      # least of a product of few tiles
    seen_held: float        # less of that time, in the filters' share of a tile's bytes, where they are held
    idle_seen: float        # of what a multiprocessor waits at the end for others, that hold other filters
    held_bytes_per_us: float    # of filters, of a multiprocessor that waits for them
    product_l2: float       # times the rate at which tiles of columns read again what a product reads
    narrow_row_us: float    # to copy a row of a box where channels do not fill lines of memory, beyond 1x1
    few_us: float           # more, of a block and plane, take filters where they do not fill one at all
    narrow_group: float     # over the channels of a group, where they fill no chunk: more, on an H200
    free_boxes: int         # boxes of a block,
    box_us: float           # and the time of one more


@dataclass(frozen=True)
class CoConv:
    """Contextual convolution, on an H200."""

    depth: int
    busy: Mapping[int, float]   # times as long as products should take, by planes
    a_clocks: float             # to read 64 rows
    b_columns: float            # columns that are read in a clock
    end_clocks: float           # of a tile
    item_clocks: float          # of an item
    tile_clocks: float          # of wgrad: of a tile,
    slot_clocks: float          # of all sums,
    taps: float                 # times as long, of taps
    seen: float


@dataclass(frozen=True)
class WgmmaWgradTile:
    """A tile of wgrad on Hopper's tensor cores: times the estimate that it takes."""

    KEY: ClassVar[int] = 6
    planes: int
    rows: int
    tap_columns: int
    taps: int
    strip: int
    cluster: int
    of_taps: float
    of_product: float   # of 1x1 filters


@dataclass(frozen=True)
class WgmmaWgrad:
    launches: int
    tiles: Tiles[WgmmaWgradTile]
    flops_per_us: Mapping[int, float]   # of the device's products, by planes
    shared_bytes_per_flop: float    # that a multiprocessor moves per FLOP of its tensor cores at that clock
    issue_us: float             # that the producer takes for a block, or each of its boxes of fewer images
    row_us: float               # that TMA takes for a row of a box, of 128 bytes or fewer
    crossing: float             # more, where it lies in two lines of memory: of several taps
    streamed: Mapping[int, float]   # bytes/us of a product's operands that L2 does not keep, by planes
    dram: float                 # of the memory's rate that `device` has
    sum_us: float               # the kernel that adds the slots,
    sum_bytes_per_us: float     # and their way there and back
    unit_us: float              # of a unit: start and drain;
    unit_bytes_per_us: float    # and the store of its sums
    cluster_us: float           # more, where the blocks of a cluster add up theirs
    part: float                 # of a block, whatever the number of its taps, where a tile has three
    strip: Mapping[int, float]  # of a whole strip in what its pixels should take, by rows of a tile


@dataclass(frozen=True)
class Constants:
    """What the kernels of a device class take: only ratios matter to a choice."""

    clock_ghz: float    # of the device that they were measured on, cool; times are those at it
    conversion: Conversion
    ffma: Ffma
    mma: Mma
    depthwise: Depthwise
    transformed: Transformed
    stem: Stem
    stem_mma: StemMma
    matmul_batched: MatmulBatched
    grouped: Grouped
    wgmma: Wgmma
    coconv: CoConv
    wgmma_wgrad: WgmmaWgrad


# ---- records and plain objects ---------------------------------------------------------------------------------------
def read(kind: Any, value: Any, where: str) -> Any:
    """Returns a record, a table of records, a mapping or a number, made of what a JSON file holds at a place.

    Raises:
        ValueError: a field is missing or unknown, two records are of one tile, or a value is of another type.
    """
    if is_dataclass(kind):
        hints = _hints(kind)
        names = _checked(value, dict, where).keys()
        if names != hints.keys():
            missing, unknown = sorted(hints.keys() - names), sorted(names - hints.keys())
            raise ValueError(f"{where} lacks {', '.join(missing)}" if missing else
                             f"{where} has {', '.join(unknown)}, which nothing reads")
        return kind(**{name: read(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})  # type: ignore
    if get_origin(kind) is Tiles:
        of, = get_args(kind)
        records = [read(of, each, f"{where}[{k}]") for k, each in enumerate(_checked(value, list, where))]
        found = Tiles({key_of(record): record for record in records})
        if len(found) < len(records):
            raise ValueError(f"{where} has two records of one tile")
        return found
    if get_origin(kind) is Mapping:
        key, number = get_args(kind)
        return {key(name): read(number, each, f"{where}.{name}") for name, each in _checked(value, dict, where).items()}
    return _checked(value, (int, float) if kind is float else kind, where)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Returns the types of a record's fields: annotations are evaluated once per class, not once per tile."""
    types = get_type_hints(kind)
    return {field.name: types[field.name] for field in fields(kind)}


def _checked(value: Any, kind: Any, where: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise ValueError(f"{where} is {value!r}, which is no {names}")
    return value


def changed(record: R, place: str, value: Any) -> R:
    """Returns a record in which a field has another value; place: its name, or "wgmma.box_us" of one within.

    Raises:
        AttributeError: there is no such field.
    """
    name, _, rest = place.partition(".")
    before = getattr(record, name)
    return replace(record, **{name: changed(before, rest, value) if rest else value})  # type: ignore[type-var]


def key_of(record: Any) -> Key:
    """Returns the key of a tile's record."""
    return tuple(getattr(record, field.name) for field in fields(record)[:record.KEY])


def plain(record: Any) -> Any:
    """Returns what `json` writes for a record, a table, a mapping or a number."""
    if is_dataclass(record):
        return {field.name: plain(getattr(record, field.name)) for field in fields(record)}
    if isinstance(record, Tiles):
        return [plain(each) for each in record.values()]
    return {str(name): plain(each) for name, each in record.items()} if isinstance(record, Mapping) else record
