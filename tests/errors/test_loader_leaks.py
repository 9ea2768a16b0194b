# SPDX-License-Identifier: Apache-2.0
"""However a program with an asynchronous loader ends, no process, shared memory or file of it is
left; each end happens to a program of its own."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

import pytest

# They count processes and shared memory: not beside each other.
pytestmark = pytest.mark.xdist_group("processes")

PROGRAM = '''
import os
import sys
import time

import poptorch
import torch
from poptorch.data import process

PATIENT = 3600.0


class Data(torch.utils.data.Dataset):
    """Is stuck at one of its elements, if it is told to."""

    def __init__(self, stuck_at):
        self.stuck_at = stuck_at

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        if index == self.stuck_at:
            time.sleep(PATIENT)
        return torch.full((3,), float(index)), torch.zeros(2)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x, target):
        return torch.nn.functional.mse_loss(self.linear(x), target)


def main():
    strategy, workers, end = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    opts = poptorch.Options().showCompilationProgressBar(False)
    stuck = end == "wait"
    process.PATIENCE = 1.0  # of the ten seconds that a stuck worker is given
    loader = poptorch.DataLoader(
        opts,
        Data(40 if stuck else -1),
        batch_size=4,
        num_workers=workers,
        mode=poptorch.DataLoaderMode.Async,
        async_options={"sharing_strategy": poptorch.SharingStrategy[strategy]},
    )
    worker = loader._accessor._worker._process.pid
    model = poptorch.trainingModel(Model(), opts)
    batches = iter(loader)
    model(*next(batches))
    global kept  # so that only the end of the program ends it
    kept = loader
    print(worker, flush=True)
    if end == "return":
        return
    if end == "raise":
        raise LookupError("of the program")
    if end == "exit":
        sys.exit(7)
    if end == "leave":
        os._exit(8)
    if end == "idle":
        time.sleep(PATIENT)
    while True:
        for batch in loader if not stuck else batches:
            model(*batch)


if __name__ == "__main__":
    main()
'''


def shared_memory():
    """Inode and name of every file of shared memory."""
    found = {}
    for path in pathlib.Path("/dev/shm").iterdir():
        with contextlib.suppress(OSError):
            found[path.stat().st_ino] = path.name
    return found


def processes_with(token):
    """Living processes that were started with the token in their environment."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if token.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def mapped_inodes():
    """Files of shared memory that some living process has mapped: not leaked, or not ours."""
    inodes = set()
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            inodes.update(map(int, re.findall(r" (\d+) +/dev/shm/", maps.read_text())))
    return inodes


class Program:
    """A running program, and what it may leave behind."""

    def __init__(self, folder, strategy, workers, end):
        self.token = uuid.uuid4().hex
        # Not below `folder`: names of sockets in it must not be longer than 107 characters.
        self.folder = pathlib.Path(tempfile.mkdtemp())
        script = folder / "program.py"
        script.write_text(PROGRAM)
        self.before = shared_memory()
        self.process = subprocess.Popen(
            [sys.executable, script, strategy, str(workers), end],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=folder,
            env={**os.environ, "LOADER_TEST_TOKEN": self.token, "TMPDIR": str(self.folder)},
        )
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.communicate()[1])
        self.worker = int(line)
        assert self.worker in processes_with(self.token)

    def finish(self):
        """Exit code and standard error, once the program has ended."""
        _, stderr = self.process.communicate(timeout=60)
        return self.process.returncode, stderr

    def left(self):
        """Everything that is left a while after the end."""
        end = time.monotonic() + 30
        while processes_with(self.token) and time.monotonic() < end:
            time.sleep(0.05)
        new = shared_memory().keys() - self.before.keys()
        # Of other programs that run now: theirs are mapped, or will be, or are gone.
        leaked = new - mapped_inodes() if new else new
        leaked &= shared_memory().keys()
        temporary = [str(p) for p in self.folder.rglob("*") if p.is_file()]
        return processes_with(self.token), leaked, temporary

    def close(self):
        for pid in processes_with(self.token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


NOTHING = ([], set(), [])


@pytest.fixture
def program(tmp_path):
    started = []

    def start(strategy, workers, end):
        started.append(Program(tmp_path, strategy, workers, end))
        return started[0]

    yield start
    for one in started:
        one.close()


def settings(*rows):
    """(strategy, workers of torch, what the program does); a start takes seconds, so not all."""
    return pytest.mark.parametrize(("strategy", "workers", "end"), rows)


@settings(
    ("SharedMemory", 0, "return"),
    ("FileSystem", 0, "return"),
    ("Fork", 2, "return"),
    ("ForkServer", 0, "return"),
)
def test_program_returns(program, strategy, workers, end):
    running = program(strategy, workers, end)
    assert running.finish() == (0, "")
    assert running.left() == NOTHING


@settings(("ForkServer", 0, "raise"))
def test_program_raises(program, strategy, workers, end):
    running = program(strategy, workers, end)
    code, stderr = running.finish()
    assert code == 1 and "LookupError: of the program" in stderr
    assert running.left() == NOTHING


@settings(("Fork", 0, "exit"), ("ForkServer", 2, "leave"))
def test_program_exits(program, strategy, workers, end):
    running = program(strategy, workers, end)
    assert running.finish() == ({"exit": 7, "leave": 8}[end], "")
    assert running.left() == NOTHING


@settings(
    ("ForkServer", 0, "train"),
    ("Fork", 2, "train"),
    ("SharedMemory", 0, "wait"),
    ("ForkServer", 2, "wait"),
)
def test_interrupt_from_the_keyboard(program, strategy, workers, end):
    running = program(strategy, workers, end)
    time.sleep(0.3)
    # What a terminal does: every process of the group gets it.
    os.killpg(running.process.pid, signal.SIGINT)
    code, stderr = running.finish()
    assert code == -signal.SIGINT
    assert "KeyboardInterrupt" in stderr
    assert "_data_worker" not in stderr, "the worker has nothing to say"
    assert running.left() == NOTHING


@settings(("Fork", 2, "wait"), ("ForkServer", 2, "train"), ("FileSystem", 0, "train"))
def test_worker_is_killed(program, strategy, workers, end):
    running = program(strategy, workers, end)
    time.sleep(0.3)
    os.kill(running.worker, signal.SIGKILL)
    code, stderr = running.finish()
    assert code == 1
    text = "An error occurred in the data fetcher: the worker process was killed by SIGKILL"
    assert text in stderr
    assert running.left() == NOTHING


@settings(
    ("SharedMemory", 0, "idle"),
    ("FileSystem", 0, "wait"),
    ("Fork", 2, "wait"),
    ("ForkServer", 0, "train"),
    ("ForkServer", 2, "wait"),
)
def test_program_is_killed(program, strategy, workers, end):
    running = program(strategy, workers, end)
    time.sleep(0.3)
    running.process.kill()
    assert running.finish()[0] == -signal.SIGKILL
    assert running.left() == NOTHING


@settings(("ForkServer", 0, "train"))
def test_program_is_terminated(program, strategy, workers, end):
    running = program(strategy, workers, end)
    running.process.terminate()
    assert running.finish()[0] == -signal.SIGTERM
    assert running.left() == NOTHING
