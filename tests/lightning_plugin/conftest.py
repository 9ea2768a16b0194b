# SPDX-License-Identifier: Apache-2.0
"""A place of its own for each test, and one thread."""

import pytest
import torch


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # nothing that a trainer writes stays
    monkeypatch.delenv("TESSERA_AUTO", raising=False)
    # The models are too small for more, and other work on the machine would hold threads up.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
