# SPDX-License-Identifier: Apache-2.0
"""The page docs/op-coverage.md: written from the outcomes of conformance.py, read by its tests."""

import pathlib
import re

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "op-coverage.md"
STATES = ("native", "host call", "failing", "cannot be static")

# Why an op has a host call: what it calls, and the reason.
REASONS = {
    r"fft|complex|polar|conj|imag|real|angle|stft": "complex numbers",
    r"linalg_|_linalg|svd|eig|qr|lu_|cholesky|ldl|lstsq|ormqr|geqrf|householder": "LAPACK",
    r"special_|bessel|airy|igamma|zeta": "seldom used special function",
}

_HEAD = """# Op coverage

Every op of PyTorch's operator database (`op_db`, torch 2.13) is run on the virtual IPU and compared
with eager PyTorch: results, types, shapes, and gradients where it has some; here with {extent} in
each type. This page is written by `tests/ops/conformance.py --write` (`make conformance` runs all
samples) and held true by `tests/ops/test_conformance.py`.

- **native**: every sample in every type ran without a host call, forward and backward.
- **host call**: some sample needs PyTorch for part of its work, inside the program; the last column
  says for what.
- **cannot be static**: a program of fixed shapes cannot hold it; capture refuses it with the line
  and says what to use instead. Where the mask or index that decides the size is a constant of the
  model, it works.

{totals}

"""


def status(outcomes):
    """native, host call, or failing, for one op over all types."""
    if any(o["wrong"] or o["errors"] for o in outcomes.values()):
        return "failing"
    return "host call" if any(o["host"] for o in outcomes.values()) else "native"


def totals(results):
    """One line: how many ops are native, hosted and failing."""
    found = [status(o) for o in results.values()]
    shares = [(s, found.count(s), 100 * found.count(s) / max(len(found), 1)) for s in STATES[:3]]
    samples = sum(o["right"] for r in results.values() for o in r.values())
    return f"{len(found)} ops with static shapes, {samples} samples right: " + ", ".join(
        f"{count} {name} ({share:.1f} %)" for name, count, share in shares if count
    )


def page(results, not_static, count):
    """The whole document; `count` is the most samples of an op and type that were run."""
    extent = "all its samples" if count is None else f"up to {count} of its samples"
    lines = [
        _HEAD.format(totals=totals(results), extent=extent)
        + "| Op | Runs | Types | Samples | Remarks |"
    ]
    lines.append("|---|---|---|---|---|")
    for name, outcomes in sorted(results.items()):
        right = sum(o["right"] for o in outcomes.values())
        types = ", ".join(_SHORT.get(t, t) for t, o in outcomes.items() if o["right"])
        lines.append(f"| `{name}` | {status(outcomes)} | {types} | {right} | {_remark(outcomes)} |")
    for name, why in sorted(not_static.items()):
        lines.append(f"| `{name}` | cannot be static | | | {why} |")
    return "\n".join(lines) + "\n"


_SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32"}
_SHORT |= {"uint8": "u8", "int8": "i8"}


def _remark(outcomes):
    hosts = sorted({h.removeprefix("aten::") for o in outcomes.values() for h in o["host"]})
    if not hosts:
        return ""
    text = ", ".join(f"`{h}`" for h in hosts)
    found = [why for pattern, why in REASONS.items() if any(re.search(pattern, h) for h in hosts)]
    return f"{text}: {', '.join(found)}" if found else text


def read():
    """{op: state} of the committed page."""
    if not PAGE.exists():
        return {}
    rows = re.findall(r"^\| `([^`]+)` \| ([a-z ]+) \|", PAGE.read_text(), re.M)
    return dict(rows)
