#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares our side of the benchmark cases in two built trees, sample by sample.

Each tree runs in a process of its own; a round takes one sample of each, in turn. Figures that are
not times of a step (first call, memory) are measured up to three times and the least counts.
The other tree is the argument:  python bench/trees.py ../before --filter call
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
from typing import IO

ROOT = pathlib.Path(__file__).resolve().parents[1]

CHILD = """
import sys, warnings
warnings.filterwarnings("ignore")
answers = open(int(sys.argv[1]), "w", buffering=1)
import bench.run as run
from bench.harness import OURS, SAMPLE_SECONDS, Case, Context, timed
cases = {c.name: c for c in run.CASES}
step = None
for line in sys.stdin:
    command, _, name = line.strip().partition(" ")
    try:
        if command == "list":
            answers.write(" ".join(cases) + "\\n")
        elif command == "build":
            run.torch.set_num_threads(2)
            run.torch.manual_seed(0)
            chosen = cases[name]
            if isinstance(chosen, Case):
                step = chosen.build(Context([OURS], 2))[OURS]
                step(), step()
                calls = max(1, round(SAMPLE_SECONDS / min(timed(step, 1) for _ in range(2))))
            answers.write("step\\n" if isinstance(chosen, Case) else "figure\\n")
        elif isinstance(chosen, Case):
            step()
            answers.write(f"{timed(step, calls)}\\n")
        else:
            answers.write(f"{chosen.measure(Context([OURS], 2))[OURS]}\\n")
    except Exception as error:
        answers.write("failed " + repr(error).replace("\\n", " ") + "\\n")
"""


class Tree:
    """The benchmark of one tree, which answers a line to a line."""

    def __init__(self, root: pathlib.Path) -> None:
        read, write = os.pipe()
        path = os.pathsep.join([str(root), str(root / "python")])
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(write)],
            cwd=root,
            env={**os.environ, "PYTHONPATH": path, "KINETO_LOG_LEVEL": "99"},
            stdin=subprocess.PIPE,
            text=True,
            pass_fds=[write],
        )
        os.close(write)
        self.answers: IO[str] = os.fdopen(read)

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.answers.readline().strip()
        return answer or f"failed: the process ended with {self.process.wait()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=pathlib.Path, help="the other tree, built")
    parser.add_argument("--filter", default="", help="regular expression on case names")
    parser.add_argument("--rounds", type=int, default=12, help="samples of each tree")
    arguments = parser.parse_args()
    before, now = Tree(arguments.before.resolve()), Tree(ROOT)
    there = before.ask("list").split()
    print(f"{'case':<36}{'before':>12}{'now':>12}{'now/before':>12}", flush=True)
    for name in now.ask("list").split():
        if name not in there or not re.search(arguments.filter, name):
            continue
        built = [tree.ask(f"build {name}") for tree in (before, now)]
        best = [float("inf"), float("inf")]
        rounds = arguments.rounds if built[0] == "step" else min(arguments.rounds, 3)
        for turn in range(rounds):
            order = (0, 1) if turn % 2 else (1, 0)
            answers = {i: (before, now)[i].ask("sample") for i in order}
            failed = [text for text in [*built, *answers.values()] if text.startswith("failed")]
            if failed:
                print(f"{name:<36}{failed[0]}", flush=True)
                break
            best = [min(best[i], float(answers[i])) for i in (0, 1)]
        else:
            print(
                f"{name:<36}{best[0]:>12.6g}{best[1]:>12.6g}{best[1] / best[0]:>12.3f}", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
