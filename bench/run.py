#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmark cases, prints the table of targets and writes build/bench/*.json."""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import traceback
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler prints that it starts and stops
# Child processes measure first calls; they need the same view of the tree.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

import torch  # noqa: E402

from bench.cases import (  # noqa: E402
    calls,
    cnn,
    custom,
    first_call,
    ipus,
    lightning,
    loops,
    memory,
    mlp,
    pointwise,
    precision,
    recurrent,
    resnet,
    transformers,
    unet,
)
from bench.harness import (  # noqa: E402
    COMPILED,
    EAGER,
    FUSED,
    OURS,
    Case,
    Context,
    measure_steps,
    summary,
)

CASES = [
    *cnn.CASES,
    *mlp.CASES,
    *resnet.CASES,
    *unet.CASES,
    *transformers.CASES,
    *recurrent.CASES,
    *pointwise.CASES,
    *loops.CASES,
    *precision.CASES,
    *calls.CASES,
    *custom.CASES,
    *lightning.CASES,
    *first_call.CASES,
    *memory.CASES,
    *ipus.CASES,
]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filter", default="", help="regular expression on case names")
    parser.add_argument("--rounds", type=int, default=12, help="samples of each variant")
    parser.add_argument("--threads", default="2,1", help="thread counts, the first is judged")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--peers-only", action="store_true", help="leave ourselves out")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build" / "bench")
    parser.add_argument("--list", action="store_true", help="print the case names")
    return parser.parse_args()


def chosen_peers(arguments):
    peers = [OURS, EAGER, FUSED, COMPILED]
    if arguments.no_compile:
        peers.remove(COMPILED)
    if arguments.peers_only:
        peers.remove(OURS)
    return peers


def run_case(chosen, peers, threads, rounds):
    """Result of one case at one thread count: {variant: {"best": ...}}."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    torch._dynamo.reset()
    ctx = Context(peers, threads)
    if not isinstance(chosen, Case):
        return {name: {"best": value} for name, value in chosen.measure(ctx).items()}
    samples = measure_steps(chosen.build(ctx), rounds, chosen.same_result)
    return {name: summary(values) for name, values in samples.items()}


def cell(chosen, result, peer, judge):
    """One ratio, beside its target where that is judged, e.g. `6.31x (5x) hit`."""
    if peer not in result:
        return ""
    if OURS not in result:
        return f"[{amount(chosen, result[peer]['best'])}]"
    ours, theirs = result[OURS]["best"], result[peer]["best"]
    if isinstance(chosen, Case):
        ratio, good = theirs / ours, lambda target: theirs / ours >= target
    else:
        ratio, good = ours / theirs, lambda target: ours / theirs <= target
    return judged(f"{ratio:.2f}x", chosen.targets.get(peer) if judge else None, "x", good)


def judged(text, target, unit, good):
    if target is None:
        return text
    return f"{text} ({target:g}{unit}) {'hit' if good(target) else 'MISS'}"


def amount(chosen, value):
    return f"{value * 1e3:.3f} ms" if isinstance(chosen, Case) else f"{value:.2f} {chosen.unit}"


def own_cell(chosen, result, judge):
    if OURS not in result:
        return ""
    value = result[OURS]["best"]
    return judged(
        amount(chosen, value),
        chosen.targets.get(OURS) if judge else None,
        getattr(chosen, "unit", ""),
        lambda target: value <= target,
    )


TITLE = 48
COLUMNS = (20, 20, 22)


def print_row(first, groups):
    """One line: the title, then per thread count our figure and the ratios to eager and compile."""
    cells = [
        f"{text:<{width}}" for group in groups for text, width in zip(group, COLUMNS, strict=True)
    ]
    print(f"{first:<{TITLE}}" + "".join(cells).rstrip(), flush=True)


def print_header(threads):
    print()
    groups = [
        (f"ours, {n} thread{'s' * (n > 1)}", "against eager", "against torch.compile")
        for n in threads
    ]
    print_row("work (target in brackets)", groups)
    print("-" * (TITLE + sum(COLUMNS) * len(threads)))


def print_result(chosen, results):
    """The targets are those of all cores; other thread counts are printed without a verdict."""
    judged_first = [(r, i == 0) for i, r in enumerate(results.values())]
    groups = [
        (own_cell(chosen, r, j), cell(chosen, r, EAGER, j), cell(chosen, r, COMPILED, j))
        for r, j in judged_first
    ]
    print_row(chosen.title, groups)
    if any(FUSED in r for r in results.values()):
        groups = [("", cell(chosen, r, FUSED, j), "") for r, j in judged_first]
        print_row("    fused=True in eager", groups)


def warn_if_busy():
    """Two threads that share two cores with other work wait for each other: ratios mean nothing."""
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"WARNING: load average {load:.1f}: other work is running, figures are not valid")
    return load


def machine():
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def commit():
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def main():
    arguments = parse_arguments()
    warnings.filterwarnings("ignore")
    selected = [c for c in CASES if re.search(arguments.filter, c.name)]
    if arguments.list:
        print("\n".join(c.name for c in selected))
        return 0
    threads = [int(n) for n in arguments.threads.split(",")]
    peers = chosen_peers(arguments)
    report = {
        "commit": commit(),
        "time": datetime.datetime.now().isoformat(timespec="seconds"),
        "machine": machine(),
        "load_before": warn_if_busy(),
        "rounds": arguments.rounds,
        "cases": {},
    }
    print_header(threads)
    failed = []
    for chosen in selected:
        results = {}
        try:
            for n in threads:
                results[n] = run_case(chosen, peers, n, arguments.rounds)
        except Exception:
            failed.append(chosen.name)
            print(f"{chosen.title:<44}FAILED\n{traceback.format_exc()}", flush=True)
            continue
        print_result(chosen, results)
        report["cases"][chosen.name] = {"targets": chosen.targets, "threads": results}
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / f"{report['time'].replace(':', '')}-{report['commit']}.json"
    path.write_text(json.dumps(report, indent=1))
    print(f"\nbest of {arguments.rounds} rounds; samples in {path}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
