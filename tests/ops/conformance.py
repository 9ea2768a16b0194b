# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own operator samples (OpInfo) through the public API and in eager, and compares.

    python tests/ops/conformance.py                    a few samples of every op
    python tests/ops/conformance.py --full             every sample, every type
    python tests/ops/conformance.py --ops 'cumsum|sort' --samples 5 --verbose
    python tests/ops/conformance.py --full --write docs/op-coverage.md

A sample becomes a model that calls the op once. Its tensors are inputs; where the op is
differentiable, each is added to a parameter of -0.0, which changes no bit of it, so that after one
step of SGD with rate 1 the parameter is the negated gradient.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import traceback
import warnings

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (HERE.parent, HERE.parent / "capture", HERE):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
if not os.environ.get("PYTHONPATH"):
    sys.path.insert(0, str(ROOT / "python"))

import poptorch  # noqa: E402
import torch  # noqa: E402
from against_eager import quiet, summary, visible  # noqa: E402
from poptorch import _core  # noqa: E402
from poptorch.capture import identity_loss  # noqa: E402
from tolerances import assert_near_truth  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402
from tqdm import tqdm  # noqa: E402

# Types of the sampled run, and those that the full run adds.
SAMPLED = (torch.float32, torch.float16, torch.int64, torch.bool)
EXTRA = (torch.bfloat16, torch.int32, torch.uint8, torch.int8)
HALVES = (torch.float16, torch.bfloat16)
SECONDS_PER_SAMPLE = 60

# Ops whose results or calls no static program can have: name -> why.
NOT_STATIC = {
    "argwhere": "the number of rows of the result depends on the data",
    "masked_select": "the size of the result depends on the data",
    "nonzero": "the number of rows of the result depends on the data",
    "unique": "the size of the result depends on the data",
    "unique_consecutive": "the size of the result depends on the data",
    "allclose": "the result is a Python bool that depends on the data",
    "bincount": "the size of the result depends on the data, unless minlength is large enough",
    "equal": "the result is a Python bool that depends on the data",
    "item": "the result is a Python number that depends on the data",
    "to_sparse": "the result is a sparse tensor, whose size depends on the data",
    "sparse.sampled_addmm": "takes sparse tensors",
    "sparse.mm": "takes sparse tensors",
}
# Results without a defined value, or random: types and shapes are compared, statistics are tested
# in test_random_ops.py.
UNDEFINED = re.compile(
    r"(new_)?empty(_like|_strided|_permuted)?|new_empty_strided|resize_(as_)?|rand(n|int)?(_like)?|"
    r"bernoulli|multinomial|normal|cauchy|exponential|geometric|log_normal|uniform|"
    r"nn\.functional\.(alpha_dropout|dropout|dropout2d|dropout3d|feature_alpha_dropout|rrelu|"
    r"fractional_max_pool[23]d|multi_head_attention_forward)|svd_lowrank|pca_lowrank"
)
# Among equal elements these may name any place; what lies there is compared.
TIED = re.compile(r"(arg|m)?sort|topk|kthvalue|(nan)?median|mode")


def title(op):
    """Name of an OpInfo entry, with its variant."""
    return f"{op.name}:{op.variant_test_name}" if op.variant_test_name else op.name


def ops():
    """Entries of the database that a CPU can run in a type of ours, without those for GPUs."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [
        op
        for op in op_db
        if types_of(op, all_types=True) and "jiterator" not in op.name and "triton" not in title(op)
    ]


class Call(torch.nn.Module):
    """One call of an op. The tensors of the sample are the arguments of forward."""

    def __init__(self, op, sample, training, fixed=False):
        """``fixed`` makes indices and masks constants of the model."""
        super().__init__()
        tree = (sample.input, sample.args, sample.kwargs)
        self.leaves, self.spec = pytree.tree_flatten(tree)
        self.function, self.process = op.op, sample.output_process_fn_grad
        # an empty tensor cannot be an input (as in PopTorch), but a model may make one
        self.where = [
            i
            for i, t in enumerate(self.leaves)
            if isinstance(t, torch.Tensor) and not is_empty(t) and not (fixed and is_index(t))
        ]
        self.training_call = training
        self.offsets = torch.nn.ParameterList(
            torch.full_like(t, -0.0, memory_format=torch.contiguous_format)
            for t in self.tensors()
            if training and t.requires_grad
        )

    def tensors(self):
        """The sample's tensors, contiguous: what a program takes as input."""
        return [self.leaves[i] for i in self.where]

    def arguments(self, dtype=None):
        """Fresh copies of the sample's tensors, in a wider type if asked."""
        found = [t.detach().clone(memory_format=torch.contiguous_format) for t in self.tensors()]
        wide = dtype and [t.to(dtype) if t.is_floating_point() else t for t in found]
        return wide or found

    def forward(self, *tensors):
        offsets = iter(self.offsets)
        leaves = list(self.leaves)
        for i, tensor in zip(self.where, tensors, strict=True):
            tensor = from_input(tensor, self.leaves[i].dtype)
            moved = self.training_call and self.leaves[i].requires_grad
            leaves[i] = tensor + next(offsets) if moved else tensor
        leaves = [torch.zeros(t.shape, dtype=t.dtype) if is_empty(t) else t for t in leaves]
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        out = self.process(self.function(first, *args, **kwargs))
        return (out, identity_loss(weighted(out), reduction="none")) if self.training_call else out


def as_input(tensor):
    """A tensor of a type that a program takes (as in PopTorch, no bfloat16 and no complex)."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj()).contiguous()
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


def from_input(tensor, dtype):
    if dtype.is_complex:
        return torch.view_as_complex(tensor)
    return tensor.to(dtype) if dtype is torch.bfloat16 else tensor


def is_empty(leaf):
    return isinstance(leaf, torch.Tensor) and leaf.numel() == 0


def is_index(leaf):
    return isinstance(leaf, torch.Tensor) and not leaf.dtype.is_floating_point


def weighted(out):
    """A loss that gives every element of every differentiable result its own gradient."""
    total = 0.0
    for leaf in pytree.tree_leaves(out):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            values = torch.view_as_real(leaf) if leaf.is_complex() else leaf
            weight = torch.arange(values.numel(), dtype=torch.float32).mul(0.7).cos()
            total = total + (values.float() * weight.reshape(values.shape)).sum()
    return total


@dataclasses.dataclass
class Outcome:
    """What happened to one op in one type."""

    samples: int = 0
    right: int = 0
    refused_by_eager: int = 0
    native: int = 0
    host: list = dataclasses.field(default_factory=list)
    wrong: list = dataclasses.field(default_factory=list)
    errors: list = dataclasses.field(default_factory=list)


def spread(items, count):
    """At most `count` items, evenly from first to last."""
    items = list(items)
    if count is None or len(items) <= count:
        return items
    return [items[i * (len(items) - 1) // max(count - 1, 1)] for i in range(count)]


def differentiable(op, dtype):
    return op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")


def check_op(op, dtype, count):
    """Runs samples of an op in a type; returns an Outcome."""
    outcome = Outcome()
    grad = differentiable(op, dtype)
    torch.manual_seed(0)
    samples = op.sample_inputs("cpu", dtype, requires_grad=grad)
    for i, sample in enumerate(spread(samples, count)):
        if any(is_odd(t) for t in pytree.tree_leaves((sample.input, sample.args, sample.kwargs))):
            continue
        outcome.samples += 1
        try:
            with time_limit(SECONDS_PER_SAMPLE):
                targets = check_sample(op, sample, grad)
        except RefusedByEager:
            outcome.samples -= 1
            outcome.refused_by_eager += 1
        except AssertionError as e:
            outcome.wrong.append(f"sample {i}: {e}")
        except Exception as e:
            at = traceback.extract_tb(e.__traceback__)[-1]
            where = f"{os.path.basename(at.filename)}:{at.lineno}"
            outcome.errors.append(f"sample {i}: {type(e).__name__} {where}: {e}")
        else:
            outcome.right += 1
            outcome.native += not targets
            outcome.host += [t for t in targets if t not in outcome.host]
    return outcome


def is_odd(leaf):
    """Whether a leaf is a tensor that no program takes: sparse."""
    return isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided


def drops(sample):
    """Whether attention drops weights at random."""
    return sample.kwargs.get("dropout_p", 0) > 0 or (
        sample.kwargs.get("training") is True and "use_separate_proj_weight" in sample.kwargs
    )


class RefusedByEager(Exception):
    """Eager PyTorch cannot run the sample either."""


def check_sample(op, sample, grad):
    """Compares one sample with eager; returns the host calls of the program."""
    model = Call(op, sample, training=grad)
    try:
        expected, gradients = run_eager(model)
    except Exception as e:
        raise RefusedByEager from e
    if grad and gradients is None:  # no result is differentiable
        model = Call(op, sample, training=False)
    try:
        executor, actual, ours = run_ours(model)
    except poptorch.Error as error:
        if "captured once" not in str(error):
            raise
        # sizes that depend on indices or masks are static where those are constants
        model = Call(op, sample, model.training_call, fixed=True)
        executor, actual, ours = run_ours(model)
    defined = not UNDEFINED.fullmatch(op.name) and not drops(sample)
    truth = Truth(op, sample, model)
    ties = TIED.fullmatch(op.name) and sample.input
    moved = compare(actual, expected, truth.results, defined, "result", ties)
    if TIED.fullmatch(op.name):
        moved |= sample.input.unique().numel() < sample.input.numel()
    if gradients is not None and defined and not moved:
        compare(ours, gradients, truth.gradients, defined, "gradient")
    return sorted({call["target"] for call in summary(executor)["host_calls"]})


def run_eager(model, dtype=None):
    """(results, gradients or None) of a model in eager PyTorch."""
    args = model.arguments(dtype)
    leaves = [
        a.requires_grad_(model.training_call and t.requires_grad)
        for a, t in zip(args, model.tensors(), strict=True)
    ]
    # as the compiled model sees them: not leaves, so that ops may write into them
    moved = [a + -0.0 if a.requires_grad else a for a in leaves]
    first, rest, kwargs = pytree.tree_unflatten(
        [
            moved[model.where.index(i)] if i in model.where else leaf
            for i, leaf in enumerate(model.leaves)
        ],
        model.spec,
    )
    with torch.set_grad_enabled(model.training_call):
        out = model.process(model.function(first, *rest, **kwargs))
    wanted = [a for a in leaves if a.requires_grad]
    loss = weighted(out) if wanted else 0.0
    if not isinstance(loss, torch.Tensor):
        return out, None
    gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
    return out, [
        torch.zeros_like(a) if g is None else g for a, g in zip(wanted, gradients, strict=True)
    ]


def run_ours(model, options=None):
    """(executor, results, gradients or None) of a model compiled by the core."""
    if not model.training_call:
        executor = poptorch.inferenceModel(model, options=options or quiet())
        return executor, executor(*map(as_input, model.arguments())), None
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0)
    executor = poptorch.trainingModel(model, options=quiet(), optimizer=optimizer)
    out, _ = executor(*map(as_input, model.arguments()))
    executor.copyWeightsToHost()
    return executor, out, [-p.detach() for p in model.offsets]


class Truth:
    """What the sample gives in float64, computed only when float32 results differ."""

    def __init__(self, op, sample, model):
        self.op, self.sample, self.model, self.found = op, sample, model, None

    def _run(self):
        if self.found is None:
            self.found = (None, None)
            if torch.float64 in self.op.supported_dtypes("cpu"):
                with contextlib.suppress(Exception):
                    self.found = run_eager(self.model, torch.float64)
        return self.found

    def results(self):
        return self._run()[0]

    def gradients(self):
        return self._run()[1]


def compare(actual, expected, truth, defined, what, ties=None):
    """Returns whether places differ that hold the same elements of the tensor `ties`."""
    moved = False
    got, want = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    assert len(got) == len(want), f"{what}: {len(got)} values instead of {len(want)}"
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if not isinstance(b, torch.Tensor):
            assert a == b, f"{what} {i}: {a!r} instead of {b!r}"
            continue
        b = visible(b) if what == "result" else b
        assert a.dtype == b.dtype, f"{what} {i}: {a.dtype} instead of {b.dtype}"
        assert a.shape == b.shape, f"{what} {i}: {list(a.shape)} instead of {list(b.shape)}"
        if isinstance(ties, torch.Tensor) and not b.is_floating_point() and not torch.equal(a, b):
            if same_elements(ties.detach(), a.long(), b.long()):
                moved = True
                continue
        if defined:
            # Gradients of a float32 operand beside one in half precision were rounded like those.
            halves = [t.dtype for t in want if what == "gradient" and t.dtype in HALVES]
            rounded = halves[0] if halves and b.dtype is torch.float32 else None
            assert_near_truth(a, b, lambda i=i: leaf_of(truth(), i), f"{what} {i}", rounded)
    return moved


def same_elements(x, ours, theirs):
    """Whether both name the same elements of x along one of its dims, ours each at most once."""

    def line(index, dim):
        return index if index.dim() == x.dim() else index.unsqueeze(dim)

    for dim in range(x.dim()):
        a, b = line(ours, dim), line(theirs, dim)
        if any(p > q for d, (p, q) in enumerate(zip(a.shape, x.shape, strict=True)) if d != dim):
            continue
        if not bool(((a >= 0) & (a < x.shape[dim])).all()):
            continue
        once = bool((a.sort(dim)[0].diff(dim=dim) != 0).all())
        if once and torch.equal(x.gather(dim, a), x.gather(dim, b)):
            return True
    return False


def leaf_of(tree, i):
    leaf = None if tree is None else pytree.tree_leaves(tree)[i]
    return leaf.detach() if isinstance(leaf, torch.Tensor) else None


@contextlib.contextmanager
def time_limit(seconds):
    def stop(*_):
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def types_of(op, all_types):
    wanted = SAMPLED + EXTRA if all_types else SAMPLED
    return [d for d in wanted if d in op.supported_dtypes("cpu")]


def worker(names, all_types, count):
    """Checks ops in this process, one line of JSON each; the parent notices if it dies."""
    warnings.simplefilter("ignore")
    chosen = {title(op): op for op in ops()}
    for name in names:
        for dtype in types_of(chosen[name], all_types):
            print(json.dumps({"begin": [name, short(dtype)]}), flush=True)
            try:
                outcome = dataclasses.asdict(check_op(chosen[name], dtype, count))
            except Exception as e:
                outcome = dataclasses.asdict(Outcome(errors=[f"{type(e).__name__}: {e}"]))
            print(json.dumps({"end": [name, short(dtype)], "outcome": outcome}), flush=True)


def short(dtype):
    return str(dtype).removeprefix("torch.")


def run_all(names, all_types, count, show):
    """{op: {type: outcome}} of all names, each in a process that may die."""
    results = {}
    left = list(names)
    while left:
        flags = ["--worker", "--samples", str(count or 0)] + (["--all-types"] if all_types else [])
        child = subprocess.Popen(
            [sys.executable, __file__, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("TESSERA_DEBUG") else subprocess.DEVNULL,
            text=True,
        )
        child.stdin.write("\n".join(left))
        child.stdin.close()
        begun = None
        for line in child.stdout:
            if not line.startswith('{"'):
                continue
            message = json.loads(line)
            begun = message.get("begin", begun)
            if "end" in message:
                name, dtype = message["end"]
                results.setdefault(name, {})[dtype] = message["outcome"]
                show(name, dtype, message["outcome"])
                begun = None
        code = child.wait()
        if code == 0:
            break
        name, dtype = begun or (left[0], "float32")
        outcome = dataclasses.asdict(Outcome(errors=[f"crash: the process ended with {code}"]))
        results.setdefault(name, {})[dtype] = outcome
        show(name, dtype, outcome)
        left = left[left.index(name) + 1 :]
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ops", default=".*", help="regular expression on names, e.g. 'cumsum'")
    parser.add_argument("--full", action="store_true", help="every sample in every type")
    parser.add_argument("--samples", type=int, default=4, help="samples per op and type")
    parser.add_argument("--all-types", action="store_true", help="every type, as --full does")
    parser.add_argument("--verbose", action="store_true", help="a line per op even if all is well")
    parser.add_argument("--json", help="write all outcomes to this file")
    parser.add_argument("--write", help="write the table of the documentation to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    count = None if args.full else args.samples or None
    all_types = args.full or args.all_types
    if args.worker:
        worker(sys.stdin.read().split("\n"), all_types, count)
        return 0
    names = [title(op) for op in ops() if re.search(args.ops, title(op))]
    names = [n for n in names if n.partition(":")[0] not in NOT_STATIC]

    bar = tqdm(total=len(names), unit="op", disable=None)
    seen = set()

    def show(name, dtype, outcome):
        seen.add(name)
        bar.update(len(seen) - bar.n)
        bad = outcome["wrong"] + outcome["errors"]
        if bad or args.verbose:
            host = " host: " + ", ".join(outcome["host"]) if outcome["host"] else ""
            share = f"{outcome['right']}/{outcome['samples']} right"
            bar.write(f"{name} {dtype}: {share}, {outcome['native']} native{host}")
            for text in bad if args.verbose else bad[:1]:
                bar.write("    " + text[:600].replace("\n", "\n    "))

    results = run_all(names, all_types, count, show)
    bar.close()
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results))
    import coverage_table

    print(coverage_table.totals(results))
    if args.write:
        pathlib.Path(args.write).write_text(coverage_table.page(results, NOT_STATIC, count))
    return int(any(o["wrong"] or o["errors"] for r in results.values() for o in r.values()))


if __name__ == "__main__":
    assert _core  # the extension must be there before any op is blamed
    sys.exit(main())
