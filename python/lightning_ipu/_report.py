# SPDX-License-Identifier: Apache-2.0
"""What ``IPUStrategy(autoreport_dir=...)`` writes of each program."""

import json
from pathlib import Path
from typing import Any


def write_report(folder: str, kind: str, executor: Any) -> None:
    """Write the compile summary of a program as ``folder/kind/summary.json``."""
    place = Path(folder) / kind
    place.mkdir(parents=True, exist_ok=True)
    number = len(list(place.glob("summary*.json")))
    name = f"summary_{number}.json" if number else "summary.json"
    summary = executor._executable.program.summary()
    text = summary if isinstance(summary, str) else json.dumps(summary, indent=1)
    (place / name).write_text(text)
