# SPDX-License-Identifier: Apache-2.0
"""Ops of users' libraries that compute."""

import json

from poptorch.capture.custom import call  # noqa: F401
from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import Value
from poptorch.capture.text.writer import Writer


@lower("tessera::custom")
def _(
    w: Writer, n: Results, inputs: list[Value], domain: str, name: str, version: int, attrs: str
) -> list[Value]:
    args = [domain, name, version, list(inputs), json.loads(attrs)]
    return list(w.ops("custom", args, n.types()))
