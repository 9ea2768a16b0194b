# SPDX-License-Identifier: Apache-2.0
"""Tracebacks of errors in a model: the user's frames, the user's line once, torch's own words."""

import pdb
import subprocess
import sys
import traceback

import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import words_support
from poptorch.base.progress import CAPTURE_SHARE, ProgressBar
from torch import nn
from words_support import Body


def mismatch(y):
    return helper(y)


def helper(y):
    return y @ y  # here


def reads(y):
    return y * y.sum().item()  # here


def nothing(y):
    return y.nonzero()  # here


X = torch.ones(4, 3)


def failure(model, *args, kind=Exception, training=False):
    wrap = poptorch.trainingModel if training else poptorch.inferenceModel
    options = poptorch.Options().valuesReadInForward("error")
    with pytest.raises(kind) as caught:
        wrap(model, options)(*args)
    return caught.value


def functions(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


# Frames ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body, inner", [(mismatch, ["mismatch", "helper"]), (nothing, ["nothing"])]
)
@pytest.mark.parametrize("training", [False, True])
def test_only_frames_of_the_user_are_left(body, inner, training):
    error = failure(Body(body), X, training=training)
    assert functions(error)[-len(inner) - 1 :] == ["forward", *inner]
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    assert files == {__file__, words_support.__file__}
    assert len(traceback.format_exception(error)) < 15


def test_compile_has_the_same_frames():
    with pytest.raises(RuntimeError) as caught:
        poptorch.inferenceModel(Body(mismatch)).compile(X)
    assert functions(caught.value)[-3:] == ["forward", "mismatch", "helper"]


def test_all_frames_with_the_switch(monkeypatch):
    monkeypatch.setenv("TESSERA_TRACEBACK", "full")
    error = failure(Body(mismatch), X)
    assert len(functions(error)) > 40 and "helper" in functions(error)


def test_the_exception_and_what_it_comes_from_stay():
    class Mine(Exception):
        def __init__(self, code):
            super().__init__("mine")
            self.code = code

    def chained(y):
        try:
            helper(y)
        except RuntimeError as cause:
            raise Mine(7) from cause

    error = failure(Body(chained), X)
    assert type(error) is Mine and error.code == 7 and error.args == ("mine",)
    assert isinstance(error.__cause__, RuntimeError)
    assert functions(error.__cause__) == ["chained", "helper"]


def test_what_torch_caught_itself_is_not_told():
    for body in (mismatch, reads, nothing):
        error = failure(Body(body), X)
        assert error.__cause__ is None and error.__context__ is None


def test_an_exception_while_the_user_handles_another_keeps_it():
    def handles(y):
        try:
            {}["key"]
        except KeyError:
            helper(y)

    error = failure(Body(handles), X, kind=RuntimeError)
    assert isinstance(error.__context__, KeyError)
    assert functions(error.__context__) == ["handles"]


def test_an_interrupt_has_the_users_frames_only():
    def interrupted(y):
        raise KeyboardInterrupt

    error = failure(Body(interrupted), X, kind=KeyboardInterrupt)
    assert functions(error)[-2:] == ["forward", "interrupted"] and len(functions(error)) < 6


def test_a_defect_of_ours_keeps_its_frames(monkeypatch):
    def defect(*args):
        raise KeyError("ours")

    monkeypatch.setattr("poptorch.compiling.compile.check_placement", defect)
    error = failure(Body(torch.relu), X, kind=KeyError)
    assert functions(error)[-2:] == ["compile_model", "defect"]


def test_a_debugger_sees_the_frames_of_the_user(capsys):
    error = failure(Body(mismatch), X)
    debugger = pdb.Pdb(stdin=open("/dev/null"), stdout=sys.stdout)  # noqa: SIM115
    debugger.setup(None, error.__traceback__)
    assert debugger.curframe.f_code.co_name == "helper"
    assert list(debugger.curframe.f_locals["y"].shape) == [4, 2]


# The user's line ---------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [reads, nothing, mismatch])
def test_prefix_and_line_come_once(body):
    error = failure(Body(body), X)
    text = "".join(traceback.format_exception_only(error))
    assert text.count(f"{__file__}:") == 1 and text.count("# here") == 1
    assert text.count("poptorch_py_error") == (0 if body is mismatch else 1)


def test_the_module_is_named():
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(5, 6)))
    (note,) = failure(model, X, kind=RuntimeError).__notes__
    assert "in module 1.1 (Linear)" in note and "in_features=5" in note
    assert f"at {__file__}:" in note, "the call, if forward has no line of the user's"


def test_the_words_are_those_of_torch():
    def eager(body):
        with pytest.raises(Exception) as caught:
            Body(body)(X)
        return caught.value

    for body in (
        mismatch,
        lambda y: nn.Linear(5, 5)(y),
        lambda y: F.embedding(y, torch.ones(3, 3)),
        lambda y: y.view(3, 3),
        lambda y: torch.cat([y, y[0]]),
        lambda y: y + torch.ones(7),
        lambda y: F.conv2d(y, torch.ones(1, 1, 3, 3)),
        lambda y: F.cross_entropy(y, torch.ones(4)),
        lambda y: y.masked_fill(y, 0.0),
        lambda y: y[:, 9],
        lambda y: y + "text",
        lambda y: torch.stack([y, None]),
        lambda y: y.permute(0, 0),
    ):
        theirs = eager(body)
        ours = failure(Body(body), X)
        assert type(ours) is type(theirs), body
        assert str(ours) == str(theirs)


CODE = """
import torch, poptorch
class M(torch.nn.Module):
    def forward(self, x):
        return x @ torch.ones(7, 7)
poptorch.inferenceModel({0})({1})
"""


@pytest.mark.parametrize("model, line", [("torch.nn.Embedding(4, 2)", 6), ("M()", 5)])
@pytest.mark.parametrize("way", ["stdin", "exec", "exec_alone", "command"])
def test_models_that_are_in_no_file(model, line, way):
    code = CODE.format(model, "torch.ones(3)")
    command, text = [sys.executable, "-"], code
    if way == "command":
        command, text = [sys.executable, "-c", code], None
    elif way != "stdin":
        text = f"exec({code!r}{', {}' if way == 'exec_alone' else ''})"
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    named = "stdin" if way == "stdin" else "string"
    assert f"at <{named}>:{line}" in done.stderr
    assert "contextlib" not in done.stderr and "site-packages" not in done.stderr


def test_a_cell_of_a_notebook():
    source = CODE.format("M()", "torch.ones(3)")
    scope = {"__name__": "__main__"}
    with pytest.raises(RuntimeError) as caught:
        exec(compile(source, "<ipython-input-3-abc>", "exec"), scope)
    assert "<ipython-input-3-abc>:5" in caught.value.__notes__[0]


# The bar -----------------------------------------------------------------------------------------


def test_capture_moves_the_bar_in_small_steps(monkeypatch):
    seen = []
    show = ProgressBar.__call__
    monkeypatch.setattr(
        ProgressBar, "__call__", lambda bar, *a: (seen.append(a[0]), show(bar, *a))[1]
    )

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*[nn.Linear(3, 3) for _ in range(60)])

        def forward(self, x):
            return F.mse_loss(self.layers(x), x)

    for wrap in (poptorch.trainingModel, poptorch.inferenceModel):
        seen.clear()
        wrap(Deep()).compile(X)
        assert seen == sorted(seen) and seen[-1] == 100
        capture = [n for n in seen if n <= CAPTURE_SHARE]
        assert len(set(capture)) > 50
        assert max(b - a for a, b in zip(capture, capture[1:], strict=False)) <= 10
