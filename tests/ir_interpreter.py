# SPDX-License-Identifier: Apache-2.0
"""Reads text IR and evaluates it with plain torch ops, knowing nothing of capture and nothing of
the C++ core.

It is strict on purpose: unknown names, wrong arity, operands of unlike types and results that
differ from the stated type are errors, so a text that evaluates is also well formed.
"""

import math
import pathlib
import re
from dataclasses import dataclass, field

import ir_indexing
import ir_linalg
import ir_recurrent
import torch

OPS_DIR = pathlib.Path(__file__).resolve().parent.parent / "core" / "ops"
DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
    "c64": torch.complex64,
    "c128": torch.complex128,
}
NATIVE = set(DTYPES) - {"c64", "c128"}


def _table(name, pattern):
    return re.findall(pattern, (OPS_DIR / name).read_text(), re.M)


POINTWISE_ARITY = {
    text: int(arity)
    for text, arity in _table("pointwise.def", r'^POINTWISE\(\w+,\s*"([^"]+)",\s*(\d+)')
}
POINTWISE_ARITY["iota"] = 3  # dim, start, step
STRUCTURED = set(_table("ops.def", r'^OP\(\w+,\s*"([^"]+)"'))
VIEWS = set(_table("ops.def", r'^OP\(\w+,\s*"([^"]+)",\s*view,'))


@dataclass
class Row:
    """A row of the core's tables, as capture wants it."""

    name: str
    kind: str
    arity: int = 0
    rule: str = ""
    signature: str = ""
    facts: tuple = ()


def rows():
    """All rows of the core's tables by name."""
    found = []
    pattern = r'^POINTWISE\(\w+,\s*"([^"]+)",\s*(\d+), k(\w+)'
    for name, arity, rule in _table("pointwise.def", pattern):
        found.append(Row(name, "pointwise", int(arity), rule.lower(), "", ("double",)))
    pattern = r'^OP\(\w+,\s*"([^"]+)",\s*(\w+),\s*([^"]*),\s*"([^"]*)"'
    for name, family, facts, signature in _table("ops.def", pattern):
        double = family == "view" or "kDouble" in facts
        kind = "view" if family == "view" else "structured"
        found.append(Row(name, kind, 0, "", signature, ("double",) if double else ()))
    return {row.name: row for row in found}


# Text


@dataclass
class Ref:
    number: int


@dataclass
class Node:
    results: list
    name: str
    args: list
    types: list
    loc: int
    bodies: list = field(default_factory=list)


@dataclass
class Source:
    kind: str
    number: int
    name: str
    type: tuple


@dataclass
class Graph:
    name: str = ""
    sources: list = field(default_factory=list)
    nodes: list = field(default_factory=list)
    outputs: list = field(default_factory=list)
    loss: int = -1
    grads: list = field(default_factory=list)
    updates: list = field(default_factory=list)
    optimizers: list = field(default_factory=list)
    locations: dict = field(default_factory=dict)

    def ops(self):
        """Op names in order; a host call is named by its target."""
        return [n.args[0] if n.name == "host_call" else n.name for n in self.nodes]


_TOKEN = re.compile(
    r'\s*(?:(?P<str>"(?:\\.|[^"\\])*")|(?P<ref>%\d+)|(?P<loc>!\d+)'
    r"|(?P<num>[+-]?(?:inf|nan|\d[\d.]*(?:e[+-]?\d+)?))(?![\w.])|(?P<word>[A-Za-z_][\w.]*)|(?P<sym>[\[\](){},:=]))"
)


class _Line:
    def __init__(self, text):
        self.tokens, at = [], 0
        text = text.rstrip()
        while at < len(text):
            m = _TOKEN.match(text, at)
            assert m, f"cannot read {text[at:]!r}"
            self.tokens.append((m.lastgroup, m.group(m.lastgroup)))
            at = m.end()
        self.at = 0

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else (None, None)

    def next(self, want=None):
        kind, text = self.peek()
        assert want is None or want in (kind, text), f"expected {want}, found {text}"
        self.at += 1
        return text

    def take(self, text):
        if self.peek()[1] == text and self.peek()[0] == "sym":
            self.at += 1
            return True
        return False

    def ref(self):
        return int(self.next("ref")[1:])

    def integer(self):
        return int(self.next("num"))

    def string(self):
        body = self.next("str")[1:-1]
        return re.sub(r"\\(.)", lambda m: "\n" if m.group(1) == "n" else m.group(1), body)

    def type(self):
        dtype = self.next("word")
        assert dtype in DTYPES, f"{dtype} is not a dtype"
        self.next("[")
        shape = []
        while not self.take("]"):
            shape.append(self.integer())
            self.take(",")
        return dtype, tuple(shape)

    def argument(self):
        kind, text = self.peek()
        if kind == "ref":
            return Ref(self.ref())
        if kind == "str":
            return self.string()
        if kind == "num":
            self.at += 1
            return float(text) if re.search(r"[.einfa]", text) else int(text)
        if text == "[":
            self.at += 1
            items = []
            while not self.take("]"):
                items.append(self.argument())
                self.take(",")
            return items
        self.at += 1
        words = {"none": None, "true": True, "false": False}
        words |= {"inf": math.inf, "nan": math.nan}
        return words[text] if text in words else DTYPES[text]


def parse(text):
    """Graph of a text."""
    lines = [s for s in text.splitlines() if s.strip()]
    assert lines[0] == "tessera 1", "a text begins with its version"
    lines = lines[::-1]
    lines.pop()
    line = _Line(lines.pop())
    line.next("graph")
    g = Graph(line.string())
    line.next("{")
    end = _lines(g, lines)
    assert end.peek()[0] is None, "text after the graph"
    while lines:
        line = _Line(lines.pop())
        line.next("loc")
        key = int(line.next("loc")[1:])
        file, number, scope = line.string(), line.integer(), line.string()
        way = line.next("word")
        g.locations[key] = (file, number, scope, way, *[line.integer() for _ in range(3)])
    _share_locations(g)
    return g


def _share_locations(g):
    for node in g.nodes:
        for body in node.bodies:
            body.locations = g.locations
            _share_locations(body)


def _lines(g, lines):
    """Reads the lines of a graph; returns what stands after its closing brace."""
    seen_node, seen_end = False, False
    while True:
        raw = lines.pop()
        line = _Line(raw)
        kind, text = line.peek()
        if kind == "ref":
            assert not seen_end, "a node after the output lines"
            seen_node = True
            g.nodes.append(_node(line, lines))
        elif line.take("}"):
            return line
        elif text in ("param", "buffer", "const", "input", "random", "loss_scale"):
            assert not seen_node, "a source after a node"
            line.next()
            number, name = line.ref(), line.string()
            line.next(":")
            g.sources.append(Source(text, number, name, line.type()))
        else:
            assert text != "loc", f"unexpected line {raw!r}"
            seen_end = True
            _end_line(g, line)


def _node(line, lines):
    results = [line.ref()]
    while line.take(","):
        results.append(line.ref())
    line.next("=")
    name = line.next("word")
    line.next("(")
    args = []
    while not line.take(")"):
        args.append(line.argument())
        line.take(",")
    bodies = []
    while line.take("{"):
        assert line.peek()[0] is None, "text after an opening brace"
        body = Graph(name)
        line = _lines(body, lines)
        assert {s.kind for s in body.sources} <= {"input"}, "a body reads its inputs only"
        bodies.append(body)
    line.next(":")
    types = [line.type()]
    while line.take(","):
        types.append(line.type())
    assert len(types) == len(results), f"{name}: {len(results)} results, {len(types)} types"
    wanted = {"scan": 1, "while": 1, "branch": 2}.get(name, 0)
    assert len(bodies) == wanted, f"{name}: {len(bodies)} bodies"
    loc = int(line.next("loc")[1:]) if line.peek()[0] == "loc" else -1
    assert line.peek()[0] is None, f"text after the node: {line.peek()}"
    return Node(results, name, args, types, loc, bodies)


def _end_line(g, line):
    word = line.next("word")
    if word == "output":
        g.outputs.append(line.ref())
        while line.take(","):
            g.outputs.append(line.ref())
    elif word == "loss":
        g.loss = line.ref()
    elif word in ("grad", "update"):
        (g.grads if word == "grad" else g.updates).append((line.ref(), line.ref()))
    elif word == "optimize":
        g.optimizers.append(line.tokens)
    else:
        raise AssertionError(f"{word} begins no line")


# Evaluation


def uniform(key, stream, shape, dtype):
    """The random numbers of one stream; any good generator will do here."""
    seed = hash((int(key[0]), int(key[1]), int(stream))) & 0x7FFFFFFF
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator).to(dtype)


def _attention_weights(q, k, mask, causal, scale):
    scores = (q.double() @ k.double().transpose(-1, -2)) * scale
    if causal:
        keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        scores = scores.masked_fill(~keep, -math.inf)
    if mask is not None:
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -math.inf)
        else:
            scores = scores + mask.double()
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.unsqueeze(-1)).nan_to_num(0.0)
    return weights, lse


def _probability(p):
    assert ((p >= 0) & (p <= 1)).all()
    return p


def _keep(key, stream, p, like):
    if p == 0:
        return torch.ones_like(like)
    u = uniform(key, stream, like.shape, torch.float32)
    return (u >= p).to(like.dtype) / (1 - p)


def _sdpa(q, k, v, mask, key, stream, p, causal, scale):
    weights, lse = _attention_weights(q, k, mask, causal, scale)
    out = (weights * _keep(key, stream, p, weights)) @ v.double()
    return [out.to(q.dtype), lse.float()]


def _sdpa_backward(grad, q, k, v, mask, out, lse, key, stream, p, causal, scale):
    weights, again = _attention_weights(q, k, mask, causal, scale)
    torch.testing.assert_close(again.float(), lse, rtol=1e-4, atol=1e-4)
    keep = _keep(key, stream, p, weights)
    grad = grad.double()
    d_weights = (grad @ v.double().transpose(-1, -2)) * keep
    delta = (grad * out.double()).sum(-1, keepdim=True)
    d_scores = weights * (d_weights - delta) * scale
    dq, dk = d_scores @ k.double(), d_scores.transpose(-1, -2) @ q.double()
    dv = (weights * keep).transpose(-1, -2) @ grad
    return [dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)]


def _ctc(logp, targets, lengths, target_lengths, blank, zero_infinity, longest):
    loss, alpha = _aten._ctc_loss.Tensor(
        logp, targets, lengths, target_lengths, blank, zero_infinity
    )
    full = alpha.new_zeros((alpha.shape[0], logp.shape[0], 2 * longest + 1))
    full[:, : alpha.shape[1], : alpha.shape[2]] = alpha
    return [loss, full]


def _ctc_backward(grad, logp, targets, lengths, target_lengths, loss, alpha, blank, zero_infinity):
    alpha = alpha[:, : int(lengths.max()), : 2 * int(target_lengths.max()) + 1].contiguous()
    return _aten._ctc_loss_backward.Tensor(
        grad, logp, targets, lengths, target_lengths, loss, alpha, blank, zero_infinity
    )


def _conv_grad(which):
    def run(gy, other, shape, stride, padding, dilation, groups):
        x = torch.zeros(shape, dtype=gy.dtype) if which == 0 else other
        w = other if which == 0 else torch.zeros(shape, dtype=gy.dtype)
        mask = [which == 0, which == 1, False]
        return torch.ops.aten.convolution_backward(
            gy, x, w, None, stride, padding, dilation, False, [0] * len(stride), groups, mask
        )[which]

    return run


_UPSAMPLE = {
    ("nearest", 1): "upsample_nearest1d",
    ("nearest", 2): "upsample_nearest2d",
    ("nearest", 3): "upsample_nearest3d",
    ("nearest-exact", 1): "_upsample_nearest_exact1d",
    ("nearest-exact", 2): "_upsample_nearest_exact2d",
    ("nearest-exact", 3): "_upsample_nearest_exact3d",
    ("linear", 1): "upsample_linear1d",
    ("linear", 2): "upsample_bilinear2d",
    ("linear", 3): "upsample_trilinear3d",
    ("cubic", 2): "upsample_bicubic2d",
    ("linear-aa", 2): "_upsample_bilinear2d_aa",
    ("cubic-aa", 2): "_upsample_bicubic2d_aa",
}


def _resample(x, mode, size, align_corners, numbers):
    if mode in ("reflect", "replicate", "circular"):
        pad = []
        for d, low in enumerate(reversed(numbers), 1):
            pad += [int(low), size[-d] - x.shape[-d] - int(low)]
        return torch.nn.functional.pad(x, pad, mode=mode)
    corners = [] if "nearest" in mode else [align_corners]
    scales = [n or None for n in numbers]
    return getattr(_aten, _UPSAMPLE[mode, len(size)])(x, size, *corners, *scales)


def _resample_backward(gy, mode, size, align_corners, numbers):
    x = torch.zeros((*gy.shape[: -len(size)], *size), dtype=gy.dtype, requires_grad=True)
    with torch.enable_grad():
        y = _resample(x, mode, gy.shape[-len(size) :], align_corners, numbers)
        return torch.autograd.grad(y, x, gy)[0]


def _of_dims(name, dims_of):
    """The ATen op `name` with the number of spatial dims put in."""
    return lambda *args: getattr(_aten, name.format(dims_of(*args)))(*args)


def _adaptive_max_pool_backward(gy, x, size, index):
    return getattr(_aten, f"adaptive_max_pool{len(size)}d_backward")(gy, x, index)


def _pool_index_add(gy, index, size):
    lead = gy.shape[: gy.dim() - len(size)]
    flat = torch.zeros((*lead, torch.Size(size).numel()), dtype=gy.dtype)
    return flat.scatter_add(-1, index.flatten(len(lead)), gy.flatten(len(lead))).reshape(
        *lead, *size
    )


def _max_unpool(x, index, size):
    if len(size) == 2:
        return _aten.max_unpool2d(x, index, size)
    return _aten.max_unpool3d(x, index, size, [1, 1, 1], [0, 0, 0])


def _grid_sampler_backward(gy, x, grid, mode, padding, align_corners):
    backward = getattr(_aten, f"grid_sampler_{x.dim() - 2}d_backward")
    return backward(gy, x, grid, mode, padding, align_corners, [True, True])


def _reduce(function, empty_ok=True):
    def run(x, dims, keepdim):
        return function(x, dims or list(range(x.dim())), keepdim)

    return run


def _over_each(function):
    def run(x, dims, keepdim):
        for d in sorted(dims or range(x.dim()), reverse=True):
            x = function(x, d, True)
        if keepdim:
            return x
        return x.squeeze(dims or list(range(x.dim())))

    return run


_aten = torch.ops.aten


def _nll_loss(x, target, *rest):
    if x.dim() < 3:
        return _aten.nll_loss_forward(x, target, *rest)
    loss, total = _aten.nll_loss2d_forward(x[..., None], target[..., None], *rest)
    return loss.reshape(target.shape if loss.dim() else ()), total


def _nll_loss_backward(grad, x, target, *rest):
    if x.dim() < 3:
        return _aten.nll_loss_backward(grad, x, target, *rest)
    grad = grad[..., None] if grad.dim() else grad
    return _aten.nll_loss2d_backward(grad, x[..., None], target[..., None], *rest)[..., 0]


def _scan(function):
    def run(x, d, backwards):
        return function(x.flip(d), d).flip(d) if backwards else function(x, d)

    return run


EVALUATE = {
    "cumsum": _scan(lambda x, d: x.cumsum(d, dtype=x.dtype)),
    "cumprod": _scan(lambda x, d: x.cumprod(d, dtype=x.dtype)),
    "logcumsumexp": _scan(torch.logcumsumexp),
    "searchsorted": lambda x, v, right, i32: torch.searchsorted(x, v, right=right, out_int32=i32),
    "isin": lambda x, v: torch.isin(v, x),
    "bincount": lambda x, w, size: torch.bincount(x, w, size),
    "view": lambda x, shape: x.reshape(shape),
    "expand": lambda x, shape, implicit: x.expand(shape),
    "permute": lambda x, dims: x.permute(dims),
    "transpose": lambda x, a, b: x.transpose(a, b),
    "select": lambda x, d, i: x.select(d, i),
    "slice": lambda x, d, a, b, s: _aten.slice(x, d, a, b, s),
    "squeeze": lambda x, dims: x.squeeze(dims),
    "unsqueeze": lambda x, d: x.unsqueeze(d),
    "addmm": lambda x, a, b, beta, alpha: _aten.addmm(x, a, b, beta=beta, alpha=alpha),
    "baddbmm": lambda x, a, b, beta, alpha: _aten.baddbmm(x, a, b, beta=beta, alpha=alpha),
    "conv_input_grad": _conv_grad(0),
    "conv_weight_grad": _conv_grad(1),
    "max_pool": _of_dims("max_pool{}d_with_indices", lambda x, kernel, *_: len(kernel)),
    "max_pool_backward": _of_dims(
        "max_pool{}d_with_indices_backward", lambda gy, x, kernel, *_: len(kernel)
    ),
    "avg_pool": _of_dims("avg_pool{}d", lambda x, kernel, *_: len(kernel)),
    "avg_pool_backward": _of_dims("avg_pool{}d_backward", lambda gy, x, kernel, *_: len(kernel)),
    "adaptive_avg_pool": _of_dims("_adaptive_avg_pool{}d", lambda x, size: len(size)),
    "adaptive_avg_pool_backward": lambda gy, x, size: getattr(
        _aten, f"_adaptive_avg_pool{len(size)}d_backward"
    )(gy, x),
    "adaptive_max_pool": _of_dims("adaptive_max_pool{}d", lambda x, size: len(size)),
    "adaptive_max_pool_backward": _adaptive_max_pool_backward,
    "fractional_max_pool": _of_dims("fractional_max_pool{}d", lambda x, kernel, *_: len(kernel)),
    "max_unpool": _max_unpool,
    "pool_index_add": _pool_index_add,
    "resample": _resample,
    "resample_backward": _resample_backward,
    "grid_sampler_backward": _grid_sampler_backward,
    "probability": _probability,
    "sdpa": _sdpa,
    "sdpa_backward": _sdpa_backward,
    "ctc_loss": _ctc,
    "ctc_loss_backward": _ctc_backward,
    **ir_recurrent.EVALUATE,
    "sum": _reduce(lambda x, d, k: x.sum(d, k) if x.dim() else x.clone()),
    "mean": _reduce(lambda x, d, k: x.mean(d, k) if x.dim() else x.clone()),
    "amax": _reduce(torch.amax),
    "amin": _reduce(torch.amin),
    "any": _over_each(torch.any),
    "all": _over_each(torch.all),
    "prod": _over_each(torch.prod),
    "argmax": torch.argmax,
    "argmin": torch.argmin,
    "cat": torch.cat,
    "nll_loss_forward": _nll_loss,
    "nll_loss_backward": _nll_loss_backward,
    **ir_indexing.EVALUATE,
    **ir_linalg.EVALUATE,
}
POINTWISE = {
    "clone": lambda a: a.clone(),
    "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "elu_backward": lambda g, a, s, i, is_result, x: _aten.elu_backward(
        g, a, s, i, bool(is_result), x
    ),
    "leaky_relu_backward": lambda g, x, slope, is_result: _aten.leaky_relu_backward(
        g, x, slope, bool(is_result)
    ),
    "frexp_exponent": lambda x: torch.frexp(x)[1].to(x.dtype),
    "frexp_mantissa": lambda x: torch.frexp(x)[0],
    "gelu_backward": lambda g, x: _aten.gelu_backward(g, x),
    "gelu_tanh": lambda x: _aten.gelu(x, approximate="tanh"),
    "gelu_tanh_backward": lambda g, x: _aten.gelu_backward(g, x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "nextafter": lambda a, b, units: torch.nextafter(a, b),
    "addcdiv": lambda x, a, b, value: torch.addcdiv(x, a, b, value=value),
    "addcmul": lambda x, a, b, value: torch.addcmul(x, a, b, value=value),
    "polygamma": lambda n, x: torch.polygamma(int(n), x),
    "maximum": lambda a, b: torch.maximum(*_tensors(a, b)),
    "minimum": lambda a, b: torch.minimum(*_tensors(a, b)),
    "logical_and": lambda a, b: torch.logical_and(*_tensors(a, b)),
    "logical_or": lambda a, b: torch.logical_or(*_tensors(a, b)),
    "logical_xor": lambda a, b: torch.logical_xor(*_tensors(a, b)),
    "where": lambda c, a, b: torch.where(c, *_tensors(a, b)) if _both(a, b) else _where(c, a, b),
}


def _both(a, b):
    return isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor)


def _where(c, a, b):
    return torch.where(c, torch.tensor(a), torch.tensor(b))


def _tensors(*xs):
    like = next(x for x in xs if isinstance(x, torch.Tensor))
    return [x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=like.dtype) for x in xs]


def _pointwise(node, args):
    dtype, shape = node.types[0]
    assert len(args) == POINTWISE_ARITY[node.name], f"{node.name} has {len(args)} arguments"
    if node.name == "full":
        return torch.full(shape, args[0], dtype=DTYPES[dtype])
    if node.name == "iota":
        dim, start, step = args
        index = torch.arange(shape[dim]) * step + start
        return index.to(DTYPES[dtype]).view([-1] + [1] * (len(shape) - 1 - dim)).expand(shape)
    if node.name == "uniform":
        return uniform(args[0], args[1], shape, DTYPES[dtype])
    if node.name == "_to_copy":
        return args[0].to(DTYPES[dtype])
    operands = args[1:] if node.name == "where" else args
    assert node.name != "where" or args[0].dtype == torch.bool, "where needs a bool condition"
    kinds = {a.dtype for a in operands if isinstance(a, torch.Tensor)}
    assert len(kinds) <= 1, f"{node.name} on operands of types {kinds}"
    for a in operands:
        if not isinstance(a, torch.Tensor) and kinds:
            kind = next(iter(kinds))
            want = float if kind.is_floating_point else bool if kind == torch.bool else int
            assert type(a) is want, f"{node.name}: literal {a!r} beside {kind}"
    out = POINTWISE.get(node.name) or getattr(_aten, node.name)
    out = out(*args)
    return torch.broadcast_to(
        out, torch.broadcast_shapes(*[a.shape for a in args if isinstance(a, torch.Tensor)])
    )


def _host_call(args):
    target, *rest = args
    space, _, name = target.partition("::")
    base, _, overload = name.partition(".")
    op = getattr(getattr(getattr(torch.ops, space), base), overload)
    schema = op._schema.arguments
    assert len(schema) == len(rest), f"{target}: {len(rest)} arguments, schema has {len(schema)}"
    positional = [x for a, x in zip(schema, rest, strict=False) if not a.kwarg_only]
    keyword = {a.name: x for a, x in zip(schema, rest, strict=False) if a.kwarg_only}
    out = op(*positional, **keyword)
    out = list(out) if isinstance(out, (list, tuple)) else [out]
    return [x for x in out if x is not None]


def _loop(node, args):
    """scan(count, carries, xs, captures, reverse)"""
    count, carries, xs, captures, reverse = args
    (body,) = node.bodies
    kept = len(carries)
    assert all(x.shape[0] == count for x in xs)
    turns = [None] * count
    for t in reversed(range(count)) if reverse else range(count):
        out = run(body, {}, [*carries, *[x[t] for x in xs], *captures]).outputs
        for before, after in zip(carries, out, strict=False):
            assert (before.shape, before.dtype) == (after.shape, after.dtype)
        carries, turns[t] = out[:kept], out[kept:]
    stacked = [torch.stack(list(ys)) for ys in zip(*turns, strict=True)]
    return [*carries, *stacked]


def _open_loop(node, args):
    """while(carries, captures)"""
    carries, captures = args
    (body,) = node.bodies
    assert carries[0].dtype == torch.bool and carries[0].numel() == 1
    while bool(carries[0]):
        out = run(body, {}, [*carries, *captures]).outputs
        for before, after in zip(carries, out, strict=True):
            assert (before.shape, before.dtype) == (after.shape, after.dtype)
        carries = out
    return carries


def _choice(node, args):
    """branch(condition, operands)"""
    condition, operands = args
    assert condition.dtype == torch.bool and condition.numel() == 1
    ways = [run(body, {}, operands).outputs for body in node.bodies]
    for a, b in zip(*ways, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    return ways[0 if bool(condition) else 1]


def evaluate(node, args):
    """Results of one node."""
    if node.bodies:
        return {"scan": _loop, "while": _open_loop, "branch": _choice}[node.name](node, args)
    if node.name == "host_call":
        return _host_call(args)
    if node.name in POINTWISE_ARITY:
        out = _pointwise(node, args)
    else:
        assert node.name in STRUCTURED, f"{node.name} is not a row"
        for dtype, _ in node.types:
            assert dtype in NATIVE or node.name in VIEWS, f"{node.name} of type {dtype}"
        if node.name == "randperm":  # some order that depends on the stream
            return [uniform(*args, node.types[0][1], torch.float32).argsort()]
        function = EVALUATE.get(node.name) or getattr(_aten, node.name)
        out = function(*args)
    return list(out) if isinstance(out, (list, tuple)) else [out]


@dataclass
class Result:
    outputs: list
    loss: torch.Tensor
    grads: dict
    updates: dict


@torch.no_grad()
def run(graph, state, inputs, constants=None, key=(7, 0)):
    """Evaluates a Graph: `state` and `constants` by name, `inputs` in the order of the text."""
    values, names = {}, {}
    inputs = iter(inputs)
    constants = constants or {}
    for s in graph.sources:
        if s.kind == "input":
            value = next(inputs)
        elif s.kind == "const":
            value = constants[s.name]
        elif s.kind == "random":
            value = torch.tensor(key)
        else:
            value = state[s.name]
        assert s.number not in values, f"%{s.number} is defined twice"
        assert (value.dtype, tuple(value.shape)) == (DTYPES[s.type[0]], s.type[1]), s
        values[s.number], names[s.number] = value.detach(), s.name

    def look(a):
        if isinstance(a, Ref):
            return values[a.number]
        return [look(x) for x in a] if isinstance(a, list) else a

    for node in graph.nodes:
        assert node.loc < 0 or node.loc in graph.locations, f"location !{node.loc} is missing"
        results = evaluate(node, [look(a) for a in node.args])
        wanted = iter(results)
        for number, (dtype, shape) in zip(node.results, node.types, strict=False):
            value = next(wanted, None)
            if value is None and node.name.endswith("_backward"):
                # A result the mask does not ask for: any value may stand there, and nothing may
                # use it.
                value = torch.full(shape, math.nan, dtype=DTYPES[dtype])
            assert value.dtype == DTYPES[dtype], f"{node}: got {value.dtype}"
            assert tuple(value.shape) == shape, f"{node}: got {tuple(value.shape)}"
            assert number not in values, f"%{number} is defined twice"
            values[number] = value
    return Result(
        [values[v] for v in graph.outputs],
        values[graph.loss] if graph.loss >= 0 else None,
        {names[p]: values[g] for p, g in graph.grads},
        {names[s]: values[v] for s, v in graph.updates},
    )
