# SPDX-License-Identifier: Apache-2.0
"""``eval "$(python -m poptorch.custom_op_env)"`` lets compilers, linkers and CMake find the
headers and the library of custom ops without flags."""

import os
import shlex

from poptorch.ops.custom_library import include_folder, library_folder


def lines() -> list[str]:
    """The lines that a shell reads; what is set already stays, behind ours."""
    include, library = include_folder(), library_folder()
    paths = {
        "CPATH": [include, include / "tessera/compat"],
        "LIBRARY_PATH": [library],
        "LD_LIBRARY_PATH": [library],
        "CMAKE_PREFIX_PATH": [library.parent],
    }
    out = []
    for name, folders in paths.items():
        kept = [p for p in os.environ.get(name, "").split(":") if p]
        ours = [str(f) for f in folders]
        value = ":".join([*ours, *[p for p in kept if p not in ours]])
        out.append(f"export {name}={shlex.quote(value)}")
    return out


if __name__ == "__main__":
    print("\n".join(lines()))
