# SPDX-License-Identifier: Apache-2.0
"""Ends of programs with an asynchronous loader: nothing is printed that is not the program's."""

import os
import signal
import subprocess
import sys
import time

import pytest

HEAD = """
import sys, threading, time
import poptorch, torch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return torch.ones(2)

def loader(strategy="SharedMemory"):
    return poptorch.DataLoader(
        poptorch.Options(), Data(), batch_size=4, mode=poptorch.DataLoaderMode.Async,
        async_options={"sharing_strategy": poptorch.SharingStrategy[strategy]},
    )

"""
INTERRUPTED = """
if __name__ == "__main__":
    print("begin", flush=True)
    batches = loader(sys.argv[1])
    time.sleep(60)
"""
DAEMON = """
def read(batches, seen):
    while True:
        for batch in batches:
            seen.set()

if __name__ == "__main__":
    seen = threading.Event()
    threading.Thread(target=read, args=(loader(), seen), daemon=True).start()
    assert seen.wait(120)
    time.sleep(0.2)
    print("end", flush=True)
"""


@pytest.mark.parametrize("strategy", ["SharedMemory", "ForkServer", "Fork"])
@pytest.mark.parametrize("delay", [0.1, 0.8])
def test_an_interrupt_while_a_worker_starts_has_one_traceback(tmp_path, strategy, delay):
    (tmp_path / "program.py").write_text(HEAD + INTERRUPTED)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "program.py", strategy],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "begin\n"
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert err.count("Traceback") == 1 and err.rstrip().endswith("KeyboardInterrupt")
    assert "_data_worker" not in err and "forkserver" not in err


def test_a_daemon_thread_that_reads_until_the_end(tmp_path):
    (tmp_path / "program.py").write_text(HEAD + DAEMON)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=300
    )
    assert (done.stdout, done.stderr, done.returncode) == ("end\n", "", 0)
