"""From a chain to the source of its kernel in CUDA C: what stands around it is alpha/cuda/ops/pointwise/chain.cuh."""

from __future__ import annotations

from collections.abc import Sequence

TYPES = {"float32": "float", "bfloat16": "bf16", "float16": "f16", "bool": "unsigned char"}  # as which one is stored
PLANES = "planes"   # dtype of a leaf whose float32 elements are kept as two planes

# How a kernel leaves what it computes: as elements; behind a flag; as planes in their place; or sums, with a bound.
PLAIN, GUARDED, AS_PLANES, BOUNDED = "", "guarded", "planes", "bounded"


class _Reads:
    """What a kernel does to read its leaves.

    Attributes:
        params, spans: parameters of the kernel.
        held: statements before the walk; drawn: those for each row.
        members, loads: of a Row, which is read ahead.
        elements: an expression for the element of each leaf, in lane k.
    """

    def __init__(self, leaves: Sequence[tuple[str, str] | None]) -> None:
        self.params: list[str] = []
        self.spans: list[str] = []
        self.held: list[str] = []
        self.drawn: list[str] = []
        self.members: list[str] = []
        self.loads: list[str] = []
        self.elements: list[str] = []
        for k, leaf in enumerate(leaves):
            if leaf is None:
                self.params.append(f"float x{k}")
                self.elements.append(f"x{k}")
            elif leaf[0] == "uniform":
                self._draw(k)
            elif leaf[1] == PLANES:
                self._unpack(k)
            else:
                self._read(k, *leaf)

    def _draw(self, k: int) -> None:
        self.params += [f"unsigned long long seed{k}", f"unsigned stream{k}", f"unsigned long long offset{k}",
                        f"const unsigned long long *from{k}"]
        self.held.append(f"  if (from{k}) seed{k} = from{k}[0], offset{k} += from{k}[1];")
        self.drawn += [f"    float u{k}[N];",
                       f"    uniforms(u{k}, seed{k}, stream{k}, offset{k} + r * stride + first);"]
        self.elements.append(f"u{k}[k]")

    def _unpack(self, k: int) -> None:
        self.params += [f"const void *x{k}", f"const OperandHeader *header{k}"]
        self.held.append(f"  const Stored stored{k}(x{k}, header{k}, w.rows * stride);")
        self.members.append(f"Lanes<N, float> x{k};")
        self.loads.append(f"load_stored<N>(stored{k}, r * stride + first)")
        self.elements.append(f"get(stored{k}, row.x{k}, k)")

    def _read(self, k: int, kind: str, dtype: str) -> None:
        self.params.append(f"const {TYPES[dtype]} *__restrict__ x{k}")
        if kind in ("row", "gate"):
            self.spans.append(f"unsigned span{k}")
        if kind in ("column", "one"):
            self.held.append(f"  const auto held{k} = " + (f"::load<N>(x{k} + first);" if kind == "column" else
                                                           f"one(x{k});"))
            self.elements.append(f"get(held{k}, k)" if kind == "column" else f"held{k}")
            return
        row = "r" if kind == "whole" else f"unsigned(r) / span{k}"
        self.members.append(f"decltype({'one' if kind == 'row' else '::load<N>'}(x{k})) x{k};")
        self.loads.append(f"one(x{k} + {row})" if kind == "row" else f"::load<N>(x{k} + i64({row}) * stride + first)")
        self.elements.append(f"row.x{k}" if kind == "row" else f"get(row.x{k}, k)")


def head(steps: Sequence[tuple], n: int) -> str:
    """Returns what stands before the kernels of a chain: see `source`."""
    return "\n".join([f"// {' '.join([code.name.removesuffix('_of') for code, *_ in steps])}: generated, see chain.py",
                      '#include "ops/pointwise/chain.cuh"', *dict.fromkeys([code.text for code, *_ in steps]),
                      f"constexpr int N = {n};", ""])


def source(entry: str, steps: Sequence[tuple], leaves: Sequence[tuple[str, str] | None], outputs: Sequence[int],
           sums: tuple[int, ...], form: str = PLAIN) -> tuple[str, str]:
    """Returns a kernel of a chain, and the arguments that it is declared with.

    Args:
        steps: of each op its Function, how many numbers it has, what it reads, its dtype, to which it rounds.
        leaves: kind and dtype of each; None of a number.
        outputs: the steps that are written; the last one alone where it is written as planes.
        sums: two steps, of the first of which, and of whose product, the sums over rows are wanted; or none.
        form: PLAIN; GUARDED, AS_PLANES; or BOUNDED, with sums.
    """
    reads = _Reads(leaves)
    numbers: list[str] = []
    body: list[str] = []
    for k, (code, count, refs, dtype) in enumerate(steps):
        own = [f"n{len(numbers) + j}" for j in range(count)]
        numbers += own
        call = f"{code.name}({', '.join([f'v{j}' if inside else reads.elements[j] for inside, j in refs] + own)})"
        if dtype in ("bfloat16", "float16"):
            call = f"rounded<{TYPES[dtype]}>({call})"
        body += [f"      const auto v{k} = {call};", *([f"      y{k}_[k] = v{k};"] if k in outputs else [])]
    flight = max(1, min(4, 8 // max(1, len(reads.members))))
    planes, pair = form == AS_PLANES, "BoundedPair" if form == BOUNDED else "Pair"
    params = [*reads.params, *reads.spans, *[f"float {name}" for name in numbers],
              *(["void *y"] if planes else [f"{TYPES[steps[k][3]]} *__restrict__ y{k}" for k in outputs]),
              *["float *partial"] * bool(sums), *["OperandHeader *header"] * (planes or form == BOUNDED),
              *["int *lost_ranges"] * planes, *["const int *flag"] * (form == GUARDED)]
    lines = [
        f'extern "C" __global__ void __launch_bounds__(THREADS, 2) {entry}({", ".join(params)}, const Walk w) {{',
        "  ptx::follow();", *["  if (flag && !*flag) return;"] * (form == GUARDED), "  const Place at(w);",
        *["  if (blockIdx.x == 0 && threadIdx.x == 0) *header = {};"] * (form == BOUNDED),
        *["  PlaneWriter out(y, w.rows * w.columns * N, header);"] * planes,
        *[f"  {pair} sums[N] = {{}};"] * bool(sums), "  if (at.begin < at.end) {",
        "  const i64 first = at.column * N, stride = w.columns * N;", *reads.held,
        f"  struct Row {{ {' '.join(reads.members)} }};",
        f"  auto load = [&](i64 r) {{ return Row{{{', '.join(reads.loads)}}}; }};",
        *(["  each_stretch(at, w, [&](const Place &part) {", f"  {pair} own[N] = {{}};"] if sums else []),
        f"  each_row<{flight}>({'part' if sums else 'at'}, w, load, [&](const Row &row, i64 r) {{",
        *[f"    {'bool' if steps[k][0].is_condition else 'float'} y{k}_[N];" for k in outputs],
        *reads.drawn, "#pragma unroll", "    for (int k = 0; k < N; k++) {", *body,
        *([f"      add_up(own[k], v{sums[0]}, v{sums[1]});"] if sums else []), "    }",
        *[f"    out.put(y{k}_, r * stride + first);" if planes else f"    put(y{k} + r * stride + first, y{k}_);"
          for k in outputs], "  });",
        *(["#pragma unroll", "  for (int k = 0; k < N; k++) sums[k] = MergePairs()(sums[k], own[k]);", "  });"]
          if sums else []), "  }", *["  put_sums(sums, partial, w, at);"] * bool(sums),
        *["  out.finish(header, lost_ranges);"] * planes, "}", f"ALPHA_KERNEL({entry})", ""]
    kinds = [f"{_kind(p)} {p.split()[-1].lstrip('*')}" for p in params]
    return "\n".join(lines), ", ".join([*kinds, "block[40] walk"])


def _kind(parameter: str) -> str:
    """Returns how the type of a parameter is declared to the host."""
    if "*" in parameter:
        return "ptr"
    return "u64" if "long long" in parameter else "u32" if parameter.startswith("unsigned") else "f32"
