# SPDX-License-Identifier: Apache-2.0
"""The guides, followed word for word in a copy of the tree. A block is a step by what stands
beside its language: a file to write (``cpp path``), a change of one (``diff path``), what a file
then says (``text from path``), commands (``bash``)."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
GUIDES = sorted((ROOT / "docs").glob("adding-*.md"))
BLOCK = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def copy_tree(to: pathlib.Path, builds: bool) -> dict[str, str]:
    """A checkout that has been built, as a guide begins with; returns its environment."""
    for name in ("bindings", "cmake", "core", "custom", "docs", "include", "python", "tools"):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("CMakeLists.txt", "CMakePresets.json"):
        shutil.copy2(ROOT / name, to / name)
    (to / ".venv").symlink_to(sys.prefix)
    path = f"{sys.prefix}/bin:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(to / "python")}
    if builds:  # the objects of the tree come from the compiler's cache
        command = ["cmake", "--preset", "release", "-DTESSERA_BUILD_TESTS=OFF"]
        command.append(f"-DPython_EXECUTABLE={sys.executable}")
        subprocess.run(command, cwd=to, env=environment, check=True, stdout=subprocess.DEVNULL)
    return environment


def change(path: pathlib.Path, diff: str) -> None:
    """Applies the lines of a diff; those without a sign say where."""
    lines = [(line[:1], line[1:] + "\n") for line in diff.splitlines()]
    before = "".join(text for sign, text in lines if sign != "+")
    after = "".join(text for sign, text in lines if sign != "-")
    old = path.read_text()
    assert old.count(before) == 1, f"{path.name} does not say\n{before}"
    path.write_text(old.replace(before, after))


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_guide_works_word_for_word(guide: pathlib.Path, tmp_path: pathlib.Path) -> None:
    tree = tmp_path / "tree"
    steps = BLOCK.findall(guide.read_text())
    commands = [text for language, _, text in steps if language == "bash"]
    assert commands
    environment = copy_tree(tree, builds=any("cmake --build" in text for text in commands))
    for language, where, text in steps:
        said = where.removeprefix("from ")
        if said != where:
            assert text in (tree / said).read_text(), f"{said} does not say\n{text}"
        elif language == "diff":
            change(tree / where, text)
        elif where:
            (tree / where).write_text(text)
        elif language == "bash":
            command = ["bash", "-euo", "pipefail", "-c", text]
            done = subprocess.run(
                command, cwd=tree, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
