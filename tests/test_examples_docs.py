# SPDX-License-Identifier: Apache-2.0
"""What the documents show is true: their code runs, their links lead to files, their tables
match the sources."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "tests/README.md"])
FENCE = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language):
    """Every fenced block of a language, named after its page and its number there; but for files
    and quotes, which name theirs (test_guides.py)."""
    named = []
    for page in PAGES:
        fences = FENCE.findall(page.read_text())
        found = [text for kind, file, text in fences if kind == language and not file]
        for number, text in enumerate(found):
            named.append(pytest.param(text, id=f"{page.relative_to(ROOT)}-{number}"))
    assert named, f"no page has {language} code"
    return named


@pytest.mark.parametrize("text", blocks("python"))
def test_python_block_runs(text, tmp_path):
    script = tmp_path / "example.py"
    script.write_text(text)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", blocks("tir"))
def test_ir_block_is_printed_as_written(text):
    tool = ROOT / "build" / "release" / "tools" / "tessera-opt"
    done = subprocess.run([tool], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == text


def test_quotes_stand_in_their_files() -> None:
    quote = re.compile(r"^```\w+ from (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    # Those of the guides are of files that the guides write (test_guides.py).
    pages = [page for page in PAGES if not page.name.startswith("adding-")]
    quotes = [found for page in pages for found in quote.findall(page.read_text())]
    assert quotes
    for path, text in quotes:
        assert text in (ROOT / path).read_text(), f"{path} does not say\n{text}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", FENCE.sub("", page.read_text()))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_the_map_of_tests_names_files() -> None:
    tests = ROOT / "tests"
    names = re.findall(
        r"`((?:core/)?[\w/*.]+(?:\.py|\.cpp|\.tir|/))`", (tests / "README.md").read_text()
    )
    assert len(names) > 50
    for name in names:
        folder = ROOT if name.startswith("core/") else tests
        assert list(folder.glob(name.rstrip("/"))), name


def test_every_environment_variable_has_its_row():
    pages = (ROOT / "docs" / "env-vars.md").read_text()
    documented = set(re.findall(r"^\| `(\w+)`", pages, re.MULTILINE))
    names = re.compile(r'"((?:TESSERA|POPTORCH|POPLAR|PVTI|PYTEST)_[A-Z_]+)"')
    sources = [*(ROOT / "core").rglob("*.h"), *(ROOT / "core").rglob("*.cpp")]
    sources += (ROOT / "python").rglob("*.py")
    read = {name for path in sources for name in names.findall(path.read_text())}
    assert read == documented


def test_defaults_of_core_variables_match_the_table():
    table = (ROOT / "core" / "base" / "env.h").read_text().replace("\\\n", " ")
    rows = re.findall(r'ROW\(\w+,\s*"(\w+)",\s*"([^"]*)"', table)
    assert rows
    page = (ROOT / "docs" / "env-vars.md").read_text()
    for name, default in rows:
        shown = f"`{default}`" if default else ""
        assert re.search(rf"^\| `{name}` \| {re.escape(shown)} ?\|", page, re.MULTILINE), name


@pytest.fixture
def copied_tree(tmp_path):
    """The layer checker with an empty tree around it."""
    (tmp_path / "tools" / "dev").mkdir(parents=True)
    shutil.copy(ROOT / "layers.toml", tmp_path)
    shutil.copy(ROOT / "tools" / "dev" / "check_layers.py", tmp_path / "tools" / "dev")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "text", "allowed"),
    [
        ("core/base/x.h", "#include <vector>\n", True),
        ("core/base/x.h", '#include "ir/graph.h"\n', False),
        ("core/ir/x.cpp", '#include "ops/op.h"\n', True),
        ("core/ir/x.cpp", '#include "ops/registry.h"\n', False),
        ("core/runtime/x.cpp", '#include "passes/pass.h"\n', False),
        ("core/plan/x.cpp", "#include <llvm/IR/Module.h>\n", False),
        ("core/unknown/x.cpp", "", False),
        ("bench/x.py", "import poptorch\n", True),
        ("bench/x.py", "from poptorch import _core\n", False),
        ("python/poptorch/x.py", "import transformers\n", False),
        ("python/poptorch/x.py", "from poptorch import _core\n", True),
    ],
)
def test_layer_check_tells_allowed_from_forbidden(copied_tree, path, text, allowed):
    file = copied_tree / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    done = check_layers(copied_tree)
    assert (done.returncode == 0) == allowed, done.stdout + done.stderr


def check_layers(tree):
    checker = tree / "tools" / "dev" / "check_layers.py"
    return subprocess.run([sys.executable, checker], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("package", "line", "allowed"),
    [
        ("python/lightning_ipu", "executor._program.run()", False),
        ("python/lightning_ipu", "executor._load()", False),
        ("python/lightning_ipu", "executor.options", True),
        ("python/lightning_ipu", "trainer._data_connector", True),
        ("python/popdist", "executor._program", False),
        ("examples", "executor._program", False),
        ("tests", "executor._program", True),
    ],
)
def test_layer_check_refuses_private_attributes(copied_tree, package, line, allowed):
    ours = copied_tree / "python" / "poptorch" / "executor.py"
    ours.parent.mkdir(parents=True)
    ours.write_text(
        "class Executor:\n"
        "    def __init__(self):\n"
        "        self._program = None\n"
        "    def _load(self):\n"
        "        return self._program\n"
    )
    user = copied_tree / package / "user.py"
    user.parent.mkdir(parents=True, exist_ok=True)
    user.write_text(f"def use(executor, trainer):\n    return {line}\n")
    done = check_layers(copied_tree)
    assert (done.returncode == 0) == allowed, done.stdout + done.stderr
