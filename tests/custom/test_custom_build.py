# SPDX-License-Identifier: Apache-2.0
"""Libraries are built with our flags, with CMake and with the lines of PopART's users."""

import os
import pathlib
import subprocess
import sys

import poptorch

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/custom_op"
NAMES = [f"com.example.{name}:1" for name in ("LeakyRelu", "LeakyReluGrad", "NormalizedSwish")]


def ops_of(library):
    """What a fresh process finds in a library."""
    code = f"import poptorch; print(*poptorch.load_custom_op_library({str(library)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_example_runs():
    command = [sys.executable, EXAMPLE / "custom_op.py", "--steps", "3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "loss after 3 steps" in done.stdout


def test_cmake_finds_the_package(tmp_path):
    prefix = f"-DCMAKE_PREFIX_PATH={poptorch.__path__[0]}"
    for step in (["-S", EXAMPLE, "-B", tmp_path, prefix], ["--build", tmp_path]):
        subprocess.run(["cmake", *step], check=True, capture_output=True)
    assert ops_of(tmp_path / "libops.so") == NAMES


def test_the_lines_of_an_sdk_suffice(tmp_path):
    """No flags but the names of libraries that public ops link."""
    shell = (
        f'eval "$({sys.executable} -m poptorch.custom_op_env)" && g++ -std=c++14 -fPIC -O1 -shared '
        f"{EXAMPLE / 'ops.cpp'} -lpopart -lpoplar -lpopops -lpoputil -Wl,--no-undefined -o ops.so"
    )
    env = {**os.environ, "CPATH": "/nowhere"}
    subprocess.run(["bash", "-ec", shell], check=True, cwd=tmp_path, env=env)
    assert ops_of(tmp_path / "ops.so") == NAMES


def test_flags_lead_to_files():
    includes = [f[2:] for f in poptorch.custom_op_cflags() if f.startswith("-I")]
    assert (pathlib.Path(includes[0]) / "tessera/custom_op.h").is_file()
    (folder,) = [f[2:] for f in poptorch.custom_op_ldflags() if f.startswith("-L")]
    assert (pathlib.Path(folder) / "libtessera_ops.so.1").is_file()


def test_the_header_is_free_of_warnings(tmp_path):
    source = tmp_path / "a.cpp"
    source.write_text("#include <tessera/custom_op.h>\n")
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
    for standard in ("c++14", "c++17", "c++20"):
        command = ["g++", *poptorch.custom_op_cflags(), f"-std={standard}", *flags]
        subprocess.run([*command, "-fsyntax-only", source], check=True)
    source = tmp_path / "a.c"
    source.write_text("#include <tessera/abi.h>\n")
    include = poptorch.custom_op_cflags()[2]
    subprocess.run(["gcc", "-std=c99", *flags, include, "-fsyntax-only", source], check=True)
