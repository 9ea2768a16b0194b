#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on an #include, an import or a private attribute that layers.toml does not allow."""

import ast
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def cpp_layer(path):
    """Folder a C++ file belongs to: core/ops/x.cpp is `ops`, bindings/x.cpp is `bindings`."""
    parts = path.relative_to(ROOT).parts
    return parts[1] if parts[0] == "core" else parts[0]


def include_problem(layer, name, rules):
    """Why `layer` may not include `name`, or None."""
    allowed = rules["cpp"][layer]
    if "*" in allowed:
        return None
    head = re.split(r"[/._]", name)[0]
    if head in rules["external"]:
        return None if layer in rules["external"][head] else f"library {head} is not for {layer}/"
    if head not in rules["cpp"] or "/" not in name:
        return None  # standard library, or a file beside the including one
    if head == layer or head in allowed or name in allowed:
        return None
    return f"{layer}/ may include {', '.join(allowed) or 'nothing of core'}"


def check_cpp(rules):
    for folder in ("core", "custom", "include", "bindings", "tools", "bench", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in {".cpp", ".h", ".def"}:
                continue
            layer = cpp_layer(path)
            if layer not in rules["cpp"]:
                yield path, 1, f"folder {layer}/ has no row in layers.toml"
                continue
            text = path.read_text()
            for match in INCLUDE.finditer(text):
                problem = include_problem(layer, match[2], rules)
                if problem:
                    line = text.count("\n", 0, match.start(2)) + 1
                    yield path, line, f'"{match[2]}": {problem}'


def imports(tree):
    """(line, absolute module name) of every import; relative ones stay inside their package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def check_python(rules):
    for package, allowed in rules["python"].items():
        if "*" in allowed:
            continue
        folder = ROOT / package
        siblings = {p.stem for p in folder.rglob("*.py")} | {p.name for p in folder.glob("*/")}
        for path in sorted(folder.rglob("*.py")):
            for line, module in imports(ast.parse(path.read_text())):
                top, *rest = module.split(".")
                known = top in sys.stdlib_module_names or top in allowed or top in siblings
                if not known:
                    yield path, line, f"{package}/ may import {', '.join(allowed)}, not {top}"
                room = rest[0] if top == "poptorch" and rest else ""
                private = room in rules["private"]["rooms"] or re.match(r"_[^_]", room)
                if private and package in rules["private"]["packages"]:
                    yield path, line, f"{module} is private to poptorch"


def private_names(tree):
    """Names with one underscore that a module gives to its objects and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            name = node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node):
            name = node.attr
        else:
            continue
        if re.match(r"_[^_]", name):
            yield name


def is_own(node):
    return isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}


def check_attributes(rules):
    """Private attributes of poptorch's objects, told by their names, in packages that may not use
    them."""
    sources = [ast.parse(path.read_text()) for path in (ROOT / "python/poptorch").rglob("*.py")]
    known = {name for tree in sources for name in private_names(tree)}
    for package in rules["private"]["attributes"]:
        files = {path: ast.parse(path.read_text()) for path in (ROOT / package).rglob("*.py")}
        own = {name for tree in files.values() for name in private_names(tree)}
        for path, tree in files.items():
            for node in ast.walk(tree):
                if (
                    isinstance(node, ast.Attribute)
                    and node.attr in known - own
                    and not is_own(node)
                ):
                    yield path, node.lineno, f"{node.attr} is private to poptorch's objects"


def main():
    rules = tomllib.loads((ROOT / "layers.toml").read_text())
    problems = sorted(set([*check_cpp(rules), *check_python(rules), *check_attributes(rules)]))
    for path, line, message in problems:
        print(f"{path.relative_to(ROOT)}:{line}: {message}")
    if problems:
        sys.exit(f"{len(problems)} layer violations")


if __name__ == "__main__":
    main()
