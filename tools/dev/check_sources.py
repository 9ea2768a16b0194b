#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the source lists in CMake are sorted and name every file; --fix rewrites them."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# List file -> {list variable: pattern of its files, relative to the list file}
LISTS = {
    "core/CMakeLists.txt": {"core_sources": "*/*.cpp"},
    "bindings/CMakeLists.txt": {"binding_sources": "*.cpp"},
    "tests/CMakeLists.txt": {"test_sources": "cpp/*.cpp"},
}


def wanted(folder, variable, pattern):
    names = sorted(str(path.relative_to(folder)) for path in folder.glob(pattern))
    return f"set({variable}\n" + "".join(f"  {name}\n" for name in names) + ")"


def main():
    fix = "--fix" in sys.argv[1:]
    stale = []
    for file, variables in LISTS.items():
        path = ROOT / file
        text = path.read_text()
        for variable, pattern in variables.items():
            found = re.search(rf"^set\({variable}\n.*?^\)", text, re.MULTILINE | re.DOTALL)
            if not found:
                sys.exit(f"{file}: no list {variable}")
            right = wanted(path.parent, variable, pattern)
            if found[0] != right:
                stale.append(f"{file}: {variable}")
                text = text.replace(found[0], right)
        if fix:
            path.write_text(text)
    if stale and not fix:
        print("\n".join(stale))
        sys.exit(
            "source lists differ from the folders; tools/dev/check_sources.py --fix mends them"
        )


if __name__ == "__main__":
    main()
