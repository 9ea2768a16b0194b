# SPDX-License-Identifier: Apache-2.0
"""The "Graph compilation" progress bar, and the time a compilation took."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from tqdm import tqdm

BAR_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"
TOTAL = 100
# Capture is about this share of the time; the core reports the rest from 0 to 100.
CAPTURE_SHARE = 80


class ProgressBar:
    """A bar from 0 to 100; calling it with (progress, total) moves it forward, never back.

    It is drawn on a terminal only.
    """

    def __init__(self, shown: bool) -> None:
        self._bar = None
        if shown:
            self._bar = tqdm(
                total=TOTAL, desc="Graph compilation", bar_format=BAR_FORMAT, disable=None
            )

    def __call__(self, progress: int, total: int = TOTAL) -> None:
        if self._bar is None:
            return
        step = min(TOTAL, progress * TOTAL // total) - self._bar.n
        if step > 0:
            self._bar.update(step)

    def capture(self, fraction: float) -> None:
        """This much of capture is done."""
        self(int(CAPTURE_SHARE * fraction))

    def core(self, percent: int) -> None:
        """The core has done ``percent`` of its part."""
        self(CAPTURE_SHARE + int(percent) * (TOTAL - CAPTURE_SHARE) // 100)

    def close(self) -> None:
        """Leave the bar where it stands."""
        if self._bar is not None:
            self._bar.close()


class Compilation:
    """What is known about one compilation: its bar while it runs, its duration afterwards."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self.duration: timedelta | None = None

    @contextmanager
    def running(self) -> Iterator[ProgressBar]:
        """Show the bar; it reaches 100 only when the block ends without an exception."""
        bar = ProgressBar(self.shown)
        start = time.perf_counter()
        try:
            yield bar
            bar(TOTAL)
        finally:
            self.duration = timedelta(seconds=time.perf_counter() - start)
            bar.close()


def progress_function() -> Callable[[int, int], None]:
    """Shows a bar when it is first called."""
    bar: list[ProgressBar] = []

    def progress(done: int, total: int) -> None:
        if not bar:
            bar.append(ProgressBar(True))
        bar[0](done, total)

    return progress
