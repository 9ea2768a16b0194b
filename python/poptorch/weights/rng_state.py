# SPDX-License-Identifier: Apache-2.0
"""The random state of a program: its seed, and its value as words."""

from typing import Any

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.weights.transfer import read_state, write_state

_NEVER_SEEDED = 67280421310721


def choose_seed(options: Any) -> int:
    """The options' seed; else that of ``torch.manual_seed`` if it was called; else a random one."""
    if options.exists("random_seed"):
        return options.random_seed
    seed = torch.initial_seed()
    if seed != _NEVER_SEEDED:
        return seed & (2**63 - 1)
    return int(
        torch.empty((), dtype=torch.int64, device="cpu")
        .random_(generator=_fresh_generator())
        .item()
    )


def _fresh_generator() -> torch.Generator:
    generator = torch.Generator()
    generator.seed()
    return generator


def _rng_entry(program: Any) -> Any:
    return next((state for state in program.states if state.kind == "random"), None)


def seed_rng(program: Any, seed: int) -> None:
    """Start the program's random numbers at ``seed``: its state is a pair (seed, count)."""
    entry = _rng_entry(program)
    if entry is not None:
        signed = (seed + 2**63) % 2**64 - 2**63
        write_state(program, entry, torch.tensor([signed, 0], device="cpu"))


def read_rng(program: Any) -> list[int]:
    """The state of the random numbers as 32-bit words; empty if the program draws none."""
    entry = _rng_entry(program)
    if entry is None:
        return []
    words = read_state(program, entry).view(torch.int32)
    return (words.to(torch.int64) % 2**32).tolist()


def write_rng(program: Any, words: list[int]) -> None:
    """Set the state that :func:`read_rng` returned."""
    entry = _rng_entry(program)
    if entry is None:
        return
    numbers = [(w + 2**31) % 2**32 - 2**31 for w in words]
    signed = torch.tensor(numbers, dtype=torch.int32, device="cpu")
    expected = read_state(program, entry)
    if signed.nbytes != expected.nbytes:
        raise createPoptorchError(
            f"The random state has {expected.nbytes // 4} words, not {len(words)}"
        )
    write_state(program, entry, signed.view(expected.dtype))
