# SPDX-License-Identifier: Apache-2.0
"""What ``IPUStrategy(autoreport_dir=...)`` writes of each program."""

import json
from pathlib import Path
from typing import Any


def write_report(folder: str, kind: str, executor: Any) -> None:
    """Write the compile summary of a program as ``folder/kind/summary.json``."""
    reports = Path(folder) / kind
    reports.mkdir(parents=True, exist_ok=True)
    number = len(list(reports.glob("summary*.json")))
    name = f"summary_{number}.json" if number else "summary.json"
    (reports / name).write_text(json.dumps(executor.getProgramSummary(), indent=1))
