"""From a chain to the source of its kernel in CUDA C: what stands around it is alpha/cuda/ops/pointwise/chain.cuh."""

from __future__ import annotations

from collections.abc import Sequence

TYPES = {"float32": "float", "bfloat16": "bf16", "float16": "f16", "bool": "unsigned char"}  # as which one is stored


def source(entry: str, steps: Sequence[tuple], leaves: Sequence[tuple[str, str] | None], outputs: Sequence[int],
           n: int, sums: tuple[int, ...]) -> tuple[str, str]:
    """Returns the source of a chain's kernel, and the arguments that it is declared with."""
    params, spans, held, members, loads, reads = [], [], [], [], [], []
    for k, leaf in enumerate(leaves):
        kind, dtype = leaf or ("number", "float32")
        params.append(f"float x{k}" if leaf is None else f"const {TYPES[dtype]} *__restrict__ x{k}")
        if kind in ("row", "gate"):
            spans.append(f"unsigned span{k}")
        if kind == "column":
            held.append(f"  const auto held{k} = some<N>(x{k} + first);")
        elif kind == "one":
            held.append(f"  const auto held{k} = one<N>(x{k});")
        elif kind == "row":
            members.append(f"decltype(one<N>(x{k})) x{k};")
            loads.append(f"one<N>(x{k} + unsigned(r) / span{k})")
        elif leaf is not None:
            at = "r" if kind == "whole" else f"i64(unsigned(r) / span{k})"
            members.append(f"decltype(some<N>(x{k})) x{k};")
            loads.append(f"some<N>(x{k} + {at} * stride + first)")
        reads.append({"number": f"x{k}", "column": f"held{k}.get(k)", "one": f"held{k}", "row": f"row.x{k}"}.get(
            kind, f"row.x{k}.get(k)"))
    numbers: list[str] = []
    body: list[str] = []
    functions: dict[str, str] = {}
    for k, (code, count, refs, dtype, rounds) in enumerate(steps):
        functions[code.name] = code.text
        own = [f"n{len(numbers) + j}" for j in range(count)]
        numbers += own
        call = f"{code.name}({', '.join([f'v{j}' if inside else reads[j] for inside, j in refs] + own)})"
        if rounds and dtype in ("bfloat16", "float16"):
            call = f"rounded<{TYPES[dtype]}>({call})"
        body.append(f"      const auto v{k} = {call};")
        if k in outputs:
            body.append(f"      y{k}_[k] = v{k};")
    flight = max(1, min(4, 8 // max(1, len(members))))
    params += spans + [f"float {name}" for name in numbers] + [f"{TYPES[steps[k][3]]} *__restrict__ y{k}"
                                                               for k in outputs]
    params += ["float *partial"] * bool(sums) + ["const Walk w"]
    kinds = ["block[40] walk" if p.startswith("const Walk") else
             f"{'ptr' if '*' in p else 'u32' if p.startswith('unsigned') else 'f32'} {p.split()[-1].lstrip('*')}"
             for p in params]
    lines = [
        f"// {' '.join([code.name.removesuffix('_of') for code, *_ in steps])}: generated, see chain.py",
        '#include "ops/pointwise/chain.cuh"', *functions.values(), f"constexpr int N = {n};",
        f'extern "C" __global__ void __launch_bounds__(THREADS, 2) {entry}({", ".join(params)}) {{',
        "  const Place at(w);",
        *(["  Pair sums[N] = {};", "  if (at.begin < at.end) {"] if sums else ["  if (at.begin >= at.end) return;"]),
        "  const i64 first = at.column * N, stride = w.columns * N;", *held,
        f"  struct Row {{ {' '.join(members)} }};",
        f"  auto load = [&](i64 r) {{ return Row{{{', '.join(loads)}}}; }};",
        f"  each_row<{flight}>(at, w, load, [&](const Row &row, i64 r) {{",
        *[f"    {'bool' if steps[k][0].is_condition else 'float'} y{k}_[N];" for k in outputs],
        "#pragma unroll", "    for (int k = 0; k < N; k++) {", *body,
        *([f"      sums[k].sum += v{sums[0]}, sums[k].dot += v{sums[0]} * v{sums[1]};"] if sums else []), "    }",
        *[f"    put(y{k} + r * stride + first, y{k}_);" for k in outputs], "  });",
        *(["  }", "  put_sums(sums, partial, w, at);"] if sums else []), "}", f"ALPHA_KERNEL({entry})", ""]
    return "\n".join(lines), ", ".join(kinds)

