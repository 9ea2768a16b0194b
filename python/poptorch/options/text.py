# SPDX-License-Identifier: Apache-2.0
"""Options from text: JSON objects, and files with a call on each line. A text reaches the setters
of options and the values that these take; nothing else, and none of it is executed."""

import ast
import inspect
import json
import operator
from collections.abc import Callable
from typing import Any

import torch

import poptorch
from poptorch import enums
from poptorch.base.naming import found_in
from poptorch.options.storage import OptionsDict, is_setter

#: The sub-objects of options, by the names that texts have for them.
SECTIONS = ("Distributed", "Jit", "Popart", "Precision", "TensorLocations", "Training", "_Popart")
_DEEPEST = 16  # levels of a JSON value; options need three
#: Objects that a line may make as arguments of setters, and what it may call on them.
_MAKERS = (
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
    "TensorLocationSettings",
)
_METHODS = (
    "ipu",
    "ipus",
    "phase",
    "sendTensorsOffChipAfterFwd",
    "setTensorsLiveness",
    "stage",
    "useSeparateBackwardPhase",
)
_CASTS = {"bool": bool, "float": float, "int": int}
_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_LARGEST_POWER = 64


@found_in("poptorch.options")
class ConfigFileError(Exception):
    """A line of a file given to ``Options.loadFromFile`` is no valid Python."""


class Refused(Exception):
    """A line that is Python but no setting of options."""


def find_setter(options: Any, names: list[str]) -> Callable[..., Any]:
    """The setter of ``options`` that ``["Training", "gradientAccumulation"]`` names."""
    part, name = options, names[-1]
    if len(names) == 2 and names[0] in SECTIONS:
        part = getattr(options, names[0])
    elif len(names) != 1:
        raise AttributeError(
            f"Invalid attribute {'.'.join(names)}. It must be a setter of poptorch.Options, or of "
            f"one of its parts: {', '.join(SECTIONS)}."
        )
    if not is_setter(type(part), name):
        raise AttributeError(f"Invalid attribute {name}. It is no setter of {_shown(part)}.")
    return getattr(part, name)


def _shown(part: Any) -> str:
    section = getattr(part, "section", "_Popart")
    return "poptorch.Options" if section == "Options" else f"poptorch.Options.{section}"


def _call(name: str, setter: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    try:
        inspect.signature(setter).bind(*args, **kwargs)
    except TypeError as exc:
        raise TypeError(f"{name}: {exc}") from None
    return setter(*args, **kwargs)


# JSON ---------------------------------------------------------------------------------------------


def apply_json(options: Any, text: str) -> None:
    """Call the setters that are the keys of a JSON object with its values."""
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("The JSON text of options is nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError(f"Options are a JSON object, not {_shortened(text)}")
    for path, value in values.items():
        setter = find_setter(options, path.split("."))
        if _depth(value) > _DEEPEST:
            raise ValueError(f"The value of {path} is nested too deeply")
        arguments = value if isinstance(value, list) else [value]
        _call(path, setter, [_enum_member(argument) for argument in arguments], {})


def _shortened(text: Any) -> str:
    shown = repr(text)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def _depth(value: Any) -> int:
    """Levels of lists and objects; the parser has already limited them."""
    depth, level = 0, [value]
    while level:
        inner: list[Any] = []
        for item in level:
            if isinstance(item, (list, dict)):
                inner.extend(item.values() if isinstance(item, dict) else item)
        level, depth = inner, depth + 1
    return depth


def _enum_member(value: Any) -> Any:
    if not isinstance(value, str) or value.count(".") != 1:
        return value
    name, member = value.split(".")
    if name not in enums.__all__:
        return value
    members = getattr(enums, name).__members__
    if member not in members:
        raise KeyError(f"{member} is no member of poptorch.{name}: {', '.join(members)}")
    return members[member]


# Lines of a file ----------------------------------------------------------------------------------


def apply_file(options: Any, filepath: str) -> None:
    """Set what the lines of a file set."""
    for number, raw in enumerate(_lines(filepath), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        try:
            apply_line(options, line, str(filepath))
        except (SyntaxError, Refused) as exc:
            kind = "SyntaxError" if isinstance(exc, SyntaxError) else "Error"
            text = exc.msg if isinstance(exc, SyntaxError) else exc
            raise ConfigFileError(
                f"{kind} at line {number} of {filepath}: {text}\n> {line}"
            ) from exc


def _lines(filepath: str) -> list[str]:
    try:
        with open(filepath, encoding="utf-8") as file:
            return file.readlines()
    except UnicodeDecodeError as exc:
        raise ConfigFileError(f"{filepath} is no text file: {exc}") from exc


def apply_line(options: Any, line: str, filename: str) -> None:
    """Set what a line such as ``Training.gradientAccumulation(4)`` sets.

    Raises:
        SyntaxError: it is no Python.
        Refused: it is something else than calls of setters with plain values.
    """
    try:
        statements = ast.parse(f"options.{line}", filename).body
    except (RecursionError, MemoryError, ValueError) as exc:
        raise Refused(str(exc) or "it is nested too deeply") from None
    statement = statements[0]
    if len(statements) != 1 or not isinstance(statement, (ast.Expr, ast.Assign)):
        raise Refused("a line is one call of a setter")
    reader = _Reader(options)
    if isinstance(statement, ast.Expr):
        reader.call_setter(statement.value)
        return
    names = reader.dotted(statement.targets[0])
    if len(statement.targets) != 1 or names is None or not 2 <= len(names) <= 3:
        raise Refused("only values of options can be assigned to")
    part = options if len(names) == 2 else reader.section(names[1])
    if not isinstance(part, OptionsDict):
        raise Refused("its values are set with _Popart.set")
    setattr(part, names[-1], reader.value(statement.value))


class _Reader:
    """Evaluates the few kinds of expressions that set options."""

    def __init__(self, options: Any) -> None:
        self._options = options

    def call_setter(self, node: ast.expr) -> Any:
        """A call of a setter of the options, or a chain of them."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            raise Refused("a line is one call of a setter")
        names = self.dotted(node.func)
        if names is not None:
            setter, name = find_setter(self._options, names[1:]), ".".join(names[1:])
        else:
            part, name = self.call_setter(node.func.value), node.func.attr
            if not is_setter(type(part), name):
                raise AttributeError(f"Invalid attribute {name}. It is no setter of {_shown(part)}")
            setter = getattr(part, name)
        return _call(name, setter, *self._arguments(node))

    def section(self, name: str) -> Any:
        """A sub-object of the options."""
        if name not in SECTIONS:
            raise AttributeError(f"Invalid attribute {name}.")
        return getattr(self._options, name)

    def dotted(self, node: ast.expr) -> list[str] | None:
        """``["options", "Training", "x"]`` for ``options.Training.x``; None for anything else."""
        names = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        return [node.id, *reversed(names)] if isinstance(node, ast.Name) else None

    def _arguments(self, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                args.extend(self.value(argument.value))
            else:
                args.append(self.value(argument))
        if any(keyword.arg is None for keyword in node.keywords):
            raise Refused("** is not supported")
        return args, {str(word.arg): self.value(word.value) for word in node.keywords}

    def value(self, node: ast.expr) -> Any:
        """The value of an argument."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
            return kind(self.value(item) for item in node.elts)
        if isinstance(node, ast.Dict):
            if None in node.keys:
                raise Refused("** is not supported")
            return {
                self.value(key): self.value(item)  # type: ignore[arg-type]
                for key, item in zip(node.keys, node.values, strict=True)
            }
        if isinstance(node, (ast.UnaryOp, ast.BinOp)):
            return self._arithmetic(node)
        if isinstance(node, ast.Call):
            return self._made(node)
        names = self.dotted(node)
        if names is None:
            raise Refused(f"{ast.unparse(node)} is no plain value")
        return self._named(names)

    def _arithmetic(self, node: ast.UnaryOp | ast.BinOp) -> Any:
        parts = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
        values = [self.value(part) for part in parts]
        numbers = all(type(value) in (int, float) for value in values)
        function = _OPERATORS.get(type(node.op))
        if numbers and isinstance(node.op, ast.Pow) and max(values) <= _LARGEST_POWER:
            function = operator.pow
        try:
            if numbers and function is not None:
                return function(*values)
        except ArithmeticError as exc:
            raise Refused(f"{ast.unparse(node)}: {exc}") from None
        raise Refused(f"{ast.unparse(node)} is no plain value")

    def _made(self, node: ast.Call) -> Any:
        """``int(...)``, a strategy, a stage, settings of a location, or a setter called on one."""
        names = self.dotted(node.func)
        args, kwargs = self._arguments(node)
        if names is not None and len(names) == 1 and names[0] in _CASTS:
            return _CASTS[names[0]](*args, **kwargs)
        if names is not None and names[:-1] == ["poptorch"] and names[-1] in _MAKERS:
            return getattr(poptorch, names[-1])(*args, **kwargs)
        if names is None and isinstance(node.func, ast.Attribute):
            part, name = self.value(node.func.value), node.func.attr
            known = type(part).__name__ in _MAKERS and type(part) is getattr(
                poptorch, type(part).__name__
            )
            if known and (name in _METHODS or is_setter(type(part), name)):
                return getattr(part, name)(*args, **kwargs)
        raise Refused(f"{ast.unparse(node.func)} must not be called here")

    def _named(self, names: list[str]) -> Any:
        """A member of an enumeration, a type of torch's, or a value of the options."""
        if names[0] == "options" and 2 <= len(names) <= 3:
            part = self._options if len(names) == 2 else self.section(names[1])
            if isinstance(part, OptionsDict):
                return part.__getattr__(names[-1])
        path = names[1:] if names[0] == "poptorch" else names
        if len(path) == 2 and path[0] == "torch":
            found = getattr(torch, path[1], None)
            if isinstance(found, torch.dtype):
                return found
        path = path[1:] if path[:1] == ["enums"] else path
        if names[0] == "poptorch" and len(path) == 2 and path[0] in enums.__all__:
            return getattr(getattr(enums, path[0]), path[1])
        raise Refused(f"{'.'.join(names)} is no plain value")
