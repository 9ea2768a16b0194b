# SPDX-License-Identifier: Apache-2.0
"""Exports the tutorial CNN, or times its way from a file to the first result in a process of its
own and prints seconds.

usage: load_file.py save|load FILE
"""

import sys
import time

import torch

from bench.cases import cnn
from bench.models import TutorialCNN


def main():
    command, path = sys.argv[1:]
    torch.manual_seed(0)
    images, _ = cnn.images(16)
    import poptorch

    if command == "save":
        options = poptorch.Options().useOfflineIpuTarget().showCompilationProgressBar(False)
        poptorch.inferenceModel(TutorialCNN().eval(), options).compileAndExport(path, images)
        return
    start = time.perf_counter()
    poptorch.load(path)(images)
    print(time.perf_counter() - start)


if __name__ == "__main__":
    main()
