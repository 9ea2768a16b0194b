# SPDX-License-Identifier: Apache-2.0
"""The pages that are made from tables; ``python tools/dev/write_docs.py`` writes them."""

import pathlib
import textwrap
from enum import Enum
from typing import Any

from poptorch.capture.custom.named import TABLES
from poptorch.options.backend_keys import EFFECTS
from poptorch.options.table import OPTIONS, UNSET, Effect, Option

_DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
_MADE = "Made by `python tools/dev/write_docs.py` from the table in `python/poptorch/{}`."
_SECTIONS = {
    "Options": "poptorch.Options",
    "Training": "Options.Training",
    "Precision": "Options.Precision",
    "TensorLocations": "Options.TensorLocations",
    "Distributed": "Options.Distributed",
    "_Popart": "Options._Popart",
    "TensorLocationSettings": "poptorch.TensorLocationSettings",
}
_INTRODUCTION = """# Options

{made}

A value is set by its method, which returns the object so that calls can be chained, and is read
back as an attribute. Giving the options to a model or a loader freezes them; `clone()` makes a copy
that can be changed.

```python
import poptorch

opts = poptorch.Options().deviceIterations(8)
opts.Training.gradientAccumulation(4)
inference = opts.clone()
inference.Training.gradientAccumulation(1)
assert (opts.device_iterations, inference.Training.gradient_accumulation) == (8, 1)
```

`loadFromFile(path)` reads a file of such calls, one a line, without the `options.` in front; `#`
begins a comment line. `from_json(text)` takes `{{"Training.gradientAccumulation": 4}}`. The
environment variable `POPTORCH_DEFAULT_OPTIONS` has such a JSON text for every new `Options`. Texts
reach the setters below and plain values, members of enumerations, strategies and location settings;
nothing of them is executed.

Effects: *program* changes what is compiled and is part of the key of compiled programs; *host*
changes only what happens around the program; *recorded* options steer real hardware: they are
checked and kept, with no effect on virtual IPUs. [pending.md](pending.md) lists what is missing.
"""
_EFFECTS = {Effect.PROGRAM: "program", Effect.HOST: "host", Effect.RECORDED: "recorded"}
_BACKEND = """## Backend keys

`Options._Popart.set(key, value)` keeps any value; a key that PopART does not know, or one with a
value of another type, is an error when a model is compiled. The keys are in
`python/poptorch/options/backend_keys.py`. Members of the enumerations of `popart` are values too,
as they are or as `int(...)`:

```python
import popart
import poptorch

opts = poptorch.Options()
opts._Popart.set("subgraphCopyingStrategy", int(popart.SubgraphCopyingStrategy.JustInTime))
opts._Popart.set("autoRecomputation", popart.RecomputationType.NoRecompute)
```

Keys of the tables above do what these say, whichever way they are set. Beside them:

| Key | Effect |
|---|---|
{effects}
| all others | none on virtual IPUs; a model compiled with them names them in its log |

`popart` has only what PopTorch programs use of it: enumerations, `AnchorReturnType` and
`versionString`. PopART's own API is not part of this package.
"""


def _default(value: Any) -> str:
    if value is UNSET:
        return ""
    return f"`{type(value).__name__}.{value.name}`" if isinstance(value, Enum) else f"`{value!r}`"


def _option(row: Option) -> str:
    default = row.default
    if row.enum is not None and default is not UNSET:
        default = row.enum(default)
    method = f"`{row.setter or row.method}`" if row.setter or row.method else ""
    doc = row.doc + (f" Not yet: {row.pending}." if row.pending else "")
    return f"| {method} | `{row.key}` | {_default(default)} | {_EFFECTS[row.effect]} | {doc} |"


def options_page() -> str:
    """The text of ``docs/options.md``."""
    parts = [_INTRODUCTION.format(made=_MADE.format("options/table.py"))]
    for section, title in _SECTIONS.items():
        rows = [_option(row) for row in OPTIONS if row.section == section]
        head = (
            f"## {title}\n\n| Method | Value | Default | Effect | Meaning |\n|---|---|---|---|---|"
        )
        parts.append("\n".join([head, *rows]) + "\n")
    effects = "\n".join(f"| `{key}` | {effect} |" for key, effect in EFFECTS.items())
    return "\n".join([*parts, _BACKEND.format(effects=effects)])


def pending_page() -> str:
    """The text of ``docs/pending.md``."""
    options = [
        f"| `{_SECTIONS[row.section]}.{row.shown_setter}` | {row.pending} |"
        for row in OPTIONS
        if row.pending
    ]
    return "\n".join(
        [
            "# Not available yet",
            "",
            _MADE.format("options/table.py"),
            "",
            "These options are accepted and kept. A model compiled with them runs, with a warning.",
            "",
            "| Option | Missing |",
            "|---|---|",
            *options,
            "",
        ]
    )


_NAMED = """# Ops by name

{made}

`poptorch.custom_op` looks an op up in the libraries that the program has loaded, then in these
tables. The ops are written with PyTorch's: they have its gradients, and are fused like any
other part of the model.

```python
import poptorch
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        (y,) = poptorch.custom_op([x], "Softmax", "ai.onnx", 13, [x], {{"axis": 1}})
        (z,) = poptorch.custom_op([y], "Swish", "ai.graphcore", 1, [y])
        return z


poptorch.inferenceModel(Model())(torch.randn(2, 3))
```

- `domain_version` picks the definition of the op: the newest that is not newer. Where
  attributes became inputs (`Squeeze`, `Clip`, `Slice`, `Pad`, `ReduceSum`, `TopK` ...), the
  version says which of the two is read.
- The result is a list. The op decides on shapes and types; of `example_outputs` only the count
  matters, and int32 or int64 where the op gives integers. Results that are optional come as far
  as there are examples.
- Inputs that decide on shapes (the shape of `Reshape`, the axes of `ReduceSum` ...) must be
  made from Python numbers in `forward`. A tensor without elements stands for an optional input
  that is left out.
- An attribute of a wrong type is an error; one that the op has not is a warning. An Int is
  taken where a Float is meant, and a single number where a list is. `debug_str`, and hints that
  begin with `__`, are taken by every op. Ops that are not ONNX's take `beam_width` for
  `beamWidth`, and the other way round.
- A name that nobody has is an error with the names that are near it and the libraries that are
  loaded.
- Outside a model the results are zeros like the examples.

## ai.onnx

By the definitions of ONNX (an empty domain means the same). In brackets the first version that has
the op, if not 1.

{onnx}
"""


def named_page() -> str:
    """The text of ``docs/named-ops.md``."""
    names = [
        f"`{name}`" + (f" ({row.since})" if row.since > 1 else "")
        for name, row in sorted(TABLES["ai.onnx"].items())
    ]
    made = _MADE.replace("table", "tables").format("capture/custom/named/")
    parts = [_NAMED.format(made=made, onnx=textwrap.fill(", ".join(names), 100))]
    for domain, rows in TABLES.items():
        if domain != "ai.onnx":
            lines = [f"| `{name}` | {row.form} |" for name, row in sorted(rows.items())]
            head = f"## {domain}\n\n| Op | Inputs; attributes; results if several |\n|---|---|"
            parts.append("\n".join([head, *lines]) + "\n")
    return "\n".join(parts)


PAGES = {"named-ops.md": named_page, "options.md": options_page, "pending.md": pending_page}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (_DOCS / name).write_text(make())
