# SPDX-License-Identifier: Apache-2.0
"""The examples of the page on precision run as they stand there."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "precision.md"


def test_the_examples_run():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) == 4
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {"__name__": "page"})
