# SPDX-License-Identifier: Apache-2.0
"""The pages that are made from tables; ``python -m poptorch._docs docs`` writes them."""

import pathlib
import sys
from enum import Enum
from typing import Any

from poptorch._backend_keys import EFFECTS
from poptorch._options_table import OPTIONS, UNSET, Effect, Option
from poptorch._pending import PENDING

_MADE = "Made by `python -m poptorch._docs docs` from the table in `python/poptorch/{}`."
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
`python/poptorch/_backend_keys.py`. Members of the enumerations of `popart` are values too, as they
are or as `int(...)`:

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
    parts = [_INTRODUCTION.format(made=_MADE.format("_options_table.py"))]
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
    names = [
        f"| `{row.name}` | {'inside models' if row.in_models else 'always'} | {row.missing} |"
        for row in sorted(PENDING, key=lambda row: row.name.lower())
    ]
    options = [
        f"| `{_SECTIONS[row.section]}.{row.shown_setter}` | {row.pending} |"
        for row in OPTIONS
        if row.pending
    ]
    return "\n".join(
        [
            "# Not available yet",
            "",
            _MADE.format("_pending.py"),
            "",
            "These names exist with PopTorch's parameters. They raise a `poptorch.Error` of type",
            "`not_yet`.",
            "",
            "| Name | Raises | Missing |",
            "|---|---|---|",
            *names,
            "",
            "These options are accepted and kept. A model compiled with them runs, with a warning.",
            "",
            "| Option | Missing |",
            "|---|---|",
            *options,
            "",
        ]
    )


PAGES = {"options.md": options_page, "pending.md": pending_page}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (pathlib.Path(sys.argv[1]) / name).write_text(make())
