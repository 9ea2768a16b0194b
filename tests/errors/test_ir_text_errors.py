# SPDX-License-Identifier: Apache-2.0
"""Text and options that the core cannot use: poptorch.Error with a place, never a crash."""

import random
import re
from pathlib import Path

import poptorch
import pytest
from poptorch import _core
from poptorch.base.errors import raise_core_error

TEXT = """tessera 1
graph "inference" {
  input %0 "x" : f32[2,3]
  param %1 "w" : f32[3,4]
  %2 = mm(%0, %1) : f32[2,4] !0
  %3 = relu(%2) : f32[2,4] !0
  output %3
}
loc !0 "model.py" 12 "fc" fwd 0 0 -1
"""
OPTIONS = {"threads": 1, "replicas": 1, "training": False}
PROGRAMS = Path(__file__).parents[1] / "fuzz" / "programs"


def compile_text(text: str, options: object = OPTIONS) -> object:
    try:
        return _core.compile(text, options, {})
    except _core.Error as exc:
        raise_core_error(exc)


def test_the_program_itself_compiles() -> None:
    program = compile_text(TEXT)
    assert [name for name, _, _ in program.inputs] == ["x"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("mm(%0, %1)", "mm(%0)", "mm takes 2 arguments, not 1"),
        ("mm(%0, %1)", "mm(%0, 1.5)", "argument 1 of mm is not a tensor"),
        ("relu(%2) : f32[2,4]", "sqrt(%2) : i64[2,4]", "sqrt has no result of type i64"),
        ("relu(%2) : f32[2,4]", "cumsum(%2, 7) : f32[2,4]", "dim 7 is out of range"),
        ("relu(%2) : f32[2,4]", "nothing(%2) : f32[2,4]", "no op of this build"),
        ("f32[2,3]", "f32[4294967296,4294967296]", "no room in any memory"),
        ("relu(%2) : f32[2,4] !0", "relu(%2) : f32[2,4] !-7", "location -7 is out of range"),
        ("relu(%2)", "permute(%2, " + "[" * 300_000, "deep in each other"),
        (TEXT[TEXT.index("}") :], "", "the graph does not end"),
    ],
)
def test_bad_text_is_an_error_with_line_and_column(old: str, new: str, words: str) -> None:
    assert old in TEXT
    with pytest.raises(poptorch.Error, match=re.escape(words)) as caught:
        compile_text(TEXT.replace(old, new))
    assert re.search(r"line \d+, column \d+", caught.value.message)
    assert caught.value.type == ("memory" if "memory" in words else "poptorch_cpp_error")
    assert "internal error" not in str(caught.value)


def test_the_location_is_the_line_of_the_users_program() -> None:
    with pytest.raises(poptorch.Error) as caught:
        compile_text(TEXT.replace("relu(%2)", "cumsum(%2, 7)"))
    assert caught.value.location == "model.py:12 (fc)"
    assert str(caught.value).startswith("In model.py:12: 'poptorch_cpp_error': ")
    assert "(line 6, column 8 of the program text)" in caught.value.message


@pytest.mark.parametrize(
    "options",
    [
        {"replicas": 0},
        {"replicas": -1},
        {"replicas": 2**70},
        {"replicas": 1.5},
        {"replicas": "two"},
        {"threads": 0},
        {"threads": -1},
        {"threads": [1]},
        {"device_iterations": 0},
        {"device_iterations": 2**62},
        {"gradient_accumulation": -(2**63)},
        {"device_iterations": 2**30, "gradient_accumulation": 2**30},
        {"input_group": 0},
        {"replicas": 4, "input_group": 3},
        {"grouped": [["w", 0, False]]},
        {"grouped": [["w"]]},
        {"grouped": 3},
        {"outputs": [["final", 0]]},
        {"outputs": [["sometimes", 1]]},
        {"output_mode": "none"},
        {"output_return_period": 0},
        {"reduction": "median"},
        {"strategy": "elsewhere"},
        {"liveness": 4},
        {"liveness": 256},
        {"location_weight": [9, False, 1, 1]},
        {"location_weight": [1]},
        {"training": "yes"},
        {"anchors": [1]},
        {"trace": 5},
        {"replica": 1},
        {1: 1},
        {"threads": {}},
        {"threads": Ellipsis},
        {"recompute": 1},
        {"half_partials": "yes"},
        {"reduction": True},
        "{}",
        [],
        "",
        None,
    ],
    ids=lambda options: str(options)[:40],
)
def test_bad_options_are_errors(options: object) -> None:
    with pytest.raises(poptorch.Error, match=r"\[options\]"):
        compile_text(TEXT, options)


def test_lists_deep_in_each_other_are_errors() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(poptorch.Error, match=r"\[options\] threads"):
        compile_text(TEXT, {"threads": deep})


def damaged(text: str, rng: random.Random) -> str:
    """The text with one or two of its words or lines changed."""
    for _ in range(rng.randint(1, 2)):
        words = re.findall(r"%\d+|-?\w[\w.]*|\"[^\"]*\"|\s+|.", text, re.S)
        at = rng.randrange(len(words))
        kind = rng.randrange(4)
        if kind == 0:
            del words[at]
        elif kind == 1:
            words.insert(at, words[rng.randrange(len(words))])
        elif kind == 2:
            words[at] = words[rng.randrange(len(words))]
        else:
            words[at] = rng.choice(["0", "-1", "2147483648", "9223372036854775807", "none", "[]"])
        text = "".join(words)
    return text


def test_damaged_programs_compile_or_raise() -> None:
    files = sorted(PROGRAMS.glob("*.tir"))
    programs = [
        "tessera 1" + part for file in files for part in file.read_text().split("tessera 1")[1:]
    ]
    rng = random.Random(0)
    refused = 0
    for _ in range(300):
        text = damaged(rng.choice(programs), rng)
        try:
            compile_text(text)
        except poptorch.Error as error:
            assert "internal error" not in str(error), text
            refused += 1
    assert refused > 100
