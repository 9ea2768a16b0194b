# SPDX-License-Identifier: Apache-2.0
"""Quiet Lightning: what it says of versions and workers is not about IPUs."""

import pytest


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # nothing that a trainer writes stays
    monkeypatch.delenv("TESSERA_AUTO", raising=False)
