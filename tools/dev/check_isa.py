#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that AVX-512 code cannot leak into the baseline.

A function that is inline in a header and not inlined becomes a weak symbol of every object that
uses it, and the linker keeps any one of them. If the one of an x86-64-v4 object wins, the library
crashes on a CPU without AVX-512. So those objects may define weak symbols only in their own
namespace `v4`.
"""

import pathlib
import subprocess
import sys


def leaks(path):
    """Weak symbols of one object that another object could define too."""
    out = subprocess.run(
        ["nm", "--demangle", "--defined-only", path], capture_output=True, text=True, check=True
    ).stdout
    for line in out.splitlines():
        _, kind, name = line.split(maxsplit=2)
        if kind in "WVu" and "::v4::" not in name and not name.startswith("DW.ref."):
            yield name


def main():
    build = pathlib.Path(sys.argv[1])
    objects = sorted(build.glob("core/CMakeFiles/tessera_kernels_v4.dir/**/*.o"))
    if not objects:
        sys.exit(f"no x86-64-v4 objects in {build}")
    found = [f"{path.name}: {name}" for path in objects for name in leaks(path)]
    for line in found:
        print(line)
    if found:
        sys.exit("these symbols are compiled for AVX-512 but may be linked into baseline code")


if __name__ == "__main__":
    main()
