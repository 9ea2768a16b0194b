# SPDX-License-Identifier: Apache-2.0
"""The example runs, on data in the form of Fashion-MNIST's files, and learns."""

import gzip
import pathlib
import re
import subprocess
import sys

import torch

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "lightning_mnist.py"


def write_idx(path, tensor):
    head = bytes([0, 0, 8, tensor.dim()]) + b"".join(n.to_bytes(4, "big") for n in tensor.shape)
    path.write_bytes(gzip.compress(head + tensor.numpy().tobytes()))


def test_the_example_learns(tmp_path):
    generator = torch.Generator().manual_seed(0)
    shapes = torch.randint(0, 256, (10, 28, 28), generator=generator)
    for part, count in (("train", 640), ("t10k", 100)):
        labels = torch.randint(0, 10, (count,), generator=generator)
        noise = torch.randint(-20, 20, (count, 28, 28), generator=generator)
        images = (shapes[labels] + noise).clamp(0, 255)
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", images.to(torch.uint8))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", labels.to(torch.uint8))
    command = [sys.executable, EXAMPLE, "--data", tmp_path, "--devices", "2", "--epochs", "3"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = re.search(r"test_accuracy[^\d]*([\d.]+)", done.stdout)
    assert found and float(found[1]) > 0.9, done.stdout
    assert len(EXAMPLE.read_text().splitlines()) < 100
