# SPDX-License-Identifier: Apache-2.0
"""What a library of custom ops does wrong is an error that says where, and nothing is half done."""

import subprocess
import sys

import poptorch
import pytest
import torch
from custom_support import TESTS, build, copy_of, custom, load_door
from function_model import Call


@pytest.fixture(autouse=True, scope="module")
def _library():
    load_door()


def run(function, *inputs):
    return poptorch.inferenceModel(Call(function))(*inputs)


def wrong(how):
    return lambda x: custom([x], "Wrong", how=how)


SETUP = {
    "setup": "exception in setup: not set up",
    "setup int": "unknown exception in setup",
    "no output": "setup gave no outputs",
    "two outputs": "has 2 outputs, but example_outputs has 1",
    "negative": "output 0 has a negative dimension",
    "huge": "output 0 has no room in any memory",
    "kind": "attribute how is not an int",
    "index": "there is no input 7",
    "prepare": "exception in prepare: not prepared",
}


@pytest.mark.parametrize("how", SETUP)
def test_setup_goes_wrong(how):
    with pytest.raises(poptorch.Error) as caught:
        run(wrong(how), torch.ones(4))
    text = str(caught.value)
    assert SETUP[how] in text and "test.door.Wrong:1" in text and str(load_door()) in text


def test_a_composition_of_itself_is_refused():
    with pytest.raises(poptorch.Error, match="composition: it contains itself"):
        run(lambda x: custom([x], "Endless"), torch.ones(4))


COMPUTE = {
    "compute": "exception in compute: it is negative",
    "fail": "it is negative",
    "type": "input 0 is float32, not float64",
    "nothing": "compute wrote nothing to output 0",
    "part": "compute left element 4999 of output 0 unwritten",
}


@pytest.mark.parametrize("how", COMPUTE)
def test_compute_goes_wrong(how):
    model = poptorch.inferenceModel(Call(wrong(how)))
    with pytest.raises(poptorch.Error) as caught:
        model(-torch.ones(5000))
    text = str(caught.value)
    assert COMPUTE[how] in text and "[test.door.Wrong:1]" in text
    assert "custom_support.py" in text or "test_custom_errors.py" in text
    if how in ("compute", "fail"):  # the model stays usable
        x = torch.ones(5000)
        assert model(x).equal(x)


class Steps(torch.nn.Module):
    """A weight, and a buffer that counts."""

    def __init__(self, how):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.register_buffer("seen", torch.zeros(4))
        self.how = how

    def forward(self, x):
        self.seen += x.abs()
        y = custom([x * self.weight], "Wrong", how=self.how)
        return poptorch.identity_loss(y.sum() + (self.weight * 2).sum(), "sum")


@pytest.mark.parametrize("how", ["compute", "fail"])
def test_an_error_in_compute_leaves_the_state_as_it_was(how):
    model = Steps(how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = poptorch.trainingModel(model, optimizer=optimizer)
    trainer(torch.ones(4))
    before = model.weight.detach().clone(), model.seen.clone()
    with pytest.raises(poptorch.Error, match="it is negative"):
        trainer(-torch.ones(4))
    trainer.copyWeightsToHost()
    assert model.weight.equal(before[0]) and model.seen.equal(before[1])
    trainer(torch.ones(4))
    assert not model.weight.equal(before[0])


GRADIENTS = {
    "gradients": "exception in gradients: no gradients today",
    "gradient name": "No class for test.door.NoSuchGrad:1",
    "gradient input": "input 0 of its gradient op test.door.Identity is nothing that the op has",
    "gradient output": "is the gradient of input 5, which the op does not have",
    "gradient shape": "gives (9,) for input 0, which has shape (4,)",
}


@pytest.mark.parametrize("how", GRADIENTS)
def test_gradients_go_wrong(how):
    model = Steps(how)
    trainer = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(poptorch.Error) as caught:
        trainer(torch.ones(4))
    assert GRADIENTS[how] in str(caught.value)


def test_inference_asks_for_no_gradients():
    assert run(wrong("gradients"), torch.ones(4)).equal(torch.ones(4))


TEXTS = {
    "": "compose gave no composition",
    "tessera 2": "this text is of version 2",
    'tessera 1 graph "g" { input %0 "x" : f32[4] output %1 }': "%1 is not defined here",
    'tessera 1\ngraph "g" {\n input %0 "x" : f32[4]\n %1 = nope(%0) : f32[4]\n output %1\n}': (
        "line 4, column 11: `nope` is no op"
    ),
    'tessera 1\ngraph "g" {\n input %0 "x" : f32[4]\n %1 = relu(%0) : f32[4]\n output %1': "line 5",
    'tessera 1 graph "g" { input %0 "x" : f32[5] output %0 }': (
        "input 0 is f32[5], that of the op is f32[4]"
    ),
    'tessera 1 graph "g" { input %0 "x" : f32[4] input %1 "y" : f32[4] output %1 }': (
        "it has 2 inputs, the op has 1"
    ),
    'tessera 1 graph "g" { input %0 "x" : f32[4] output %0, %0 }': "it has 2 outputs, setup says 1",
    'tessera 1 graph "g" { param %0 "x" : f32[4] output %0 }': "only inputs may be",
    'tessera 1\ngraph "g" {\n input %0 "x" : f32[4]\n %1 = _to_copy(%0) : f16[4]\n output %1\n}': (
        "output 0 is f16[4], setup says f32[4]"
    ),
    'tessera 1\ngraph "g" {\n input %0 "x" : f32[4]\n %1 = relu(%0) : f32[5]\n output %1\n}': (
        "does not broadcast"
    ),
    'tessera 1\ngraph "g" {\n input %0 "x" : f32[4]\n'
    ' %1 = host_call("a", %0) : f32[4]\n output %1\n}': "host_call has no place in one (line 4",
    'tessera 1\ngraph "g" {\n input %0 "x" : f32[4]\n'
    ' %1 = resample(%0, "nearest", [4], false, [0.0]) : f32[4]\n output %1\n}': (
        "resample (line 4, column 7 of its text): a composition can't have it"
    ),
    'tessera 1\ngraph "g" {\n input %0 "x" : f32[4]\n'
    ' %1 = custom("test.door", "Nope", 1, [%0], []) : f32[4]\n output %1\n}': (
        "No class for test.door.Nope:1"
    ),
    'tessera 1 graph "g" { input %0 "x" : f32[4] output %0 loss %0 }': "only outputs may be",
}


@pytest.mark.parametrize("text", TEXTS, ids=[str(i) for i in range(len(TEXTS))])
def test_a_composition_is_wrong(text):
    with pytest.raises(poptorch.Error) as caught:
        run(lambda x: custom([x], "Text", text=text, shape=[4]), torch.ones(4))
    assert TEXTS[text] in str(caught.value) and "internal error" not in str(caught.value)


def test_an_exception_in_compose():
    with pytest.raises(poptorch.Error, match="exception in compose: nothing comes to mind"):
        run(lambda x: custom([x], "Identity", throws=1), torch.ones(4))


def test_an_op_that_is_not_there_names_near_ones():
    with pytest.raises(poptorch.Error) as caught:
        run(lambda x: custom([x], "LeakyRely"), torch.ones(4))
    text = str(caught.value)
    assert "No class for test.door.LeakyRely:1" in text and "test.door.LeakyRelu" in text
    assert load_door().name in text
    with pytest.raises(poptorch.Error, match="No class for test.door.Versioned:1"):
        run(lambda x: custom([x], "Versioned", version=1), torch.ones(4))


def test_a_library_of_another_interface_is_refused():
    source = """
    #include <tessera/custom_op.h>
    using namespace tessera::custom;
    struct Future {
      static void setup(Setup& s) { s.output(0, s.input(0)); }
      static void compute(const Run&) {}
    };
    static const int answer = [] {
      tessera_op op = describe<Future>("test.future", "Future", 1);
      op.abi = 99;
      return tessera_register_op(&op);
    }();
    int future_answer() { return answer; }
    """
    with pytest.raises(poptorch.Error, match="built for version 99 of the interface"):
        poptorch.load_custom_op_library(build(source))
    with pytest.raises(poptorch.Error, match="No class for test.future.Future:1"):
        run(lambda x: poptorch.custom_op([x], "Future", "test.future", 1, [x])[0], torch.ones(4))


def test_files_that_are_no_libraries(tmp_path):
    with pytest.raises(poptorch.Error, match="there is no file"):
        poptorch.load_custom_op_library(tmp_path / "none.so")
    text = tmp_path / "text.so"
    text.write_text("not a library")
    with pytest.raises(poptorch.Error, match="Build it with the flags"):
        poptorch.load_custom_op_library(text)


LOAD = """
import sys, poptorch
try:
    poptorch.load_custom_op_library(sys.argv[1])
except poptorch.Error as error:
    print(error)
"""


@pytest.mark.parametrize("left", ["nothing", "header", "half", "most", "zeros"])
def test_a_library_that_is_not_complete_is_an_error(left, tmp_path):
    # In another process: the loader would end it.
    whole = build(TESTS / "library/door.cpp").read_bytes()
    count = {"nothing": 0, "header": 64, "half": len(whole) // 2, "most": len(whole) - 1}
    file = tmp_path / "half.so"
    begun = whole[: count.get(left, len(whole) // 2)]
    file.write_bytes(begun.ljust(len(whole), b"\0") if left == "zeros" else begun)
    done = subprocess.run([sys.executable, "-c", LOAD, file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(file) in done.stdout and "Build it with the flags" in done.stdout
    assert ("no shared library" if left == "nothing" else "not complete") in done.stdout


def test_a_library_that_changed_since_it_was_loaded(tmp_path, caplog):
    file = copy_of(load_door(), tmp_path)
    poptorch.load_custom_op_library(file)
    poptorch.load_custom_op_library(file)
    assert "has changed" not in caplog.text
    file.unlink()
    file.write_bytes(load_door().read_bytes() + b"more")
    poptorch.load_custom_op_library(file)
    assert "has changed since this process loaded it" in caplog.text
