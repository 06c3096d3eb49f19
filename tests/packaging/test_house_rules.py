"""The sizes that keep this code readable: a function fits a screen, a module fits a head."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINES_OF_A_FUNCTION = 40
LINES_OF_A_MODULE = 350


def sources() -> Iterator[Path]:
    """Every module of the two packages."""
    for package in ("fedgmi_fedml", "secure"):
        yield from sorted((ROOT / package).rglob("*.py"))


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the signature on, without the docstring (long ones are welcome) and decorators."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def test_modules_are_short() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in sources()}
    assert len(sizes) > 10
    assert {name: size for name, size in sizes.items() if size > LINES_OF_A_MODULE} == {}


def test_functions_fit_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length(node)} lines"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and length(node) > LINES_OF_A_FUNCTION
    ]
    assert long == []


def test_modules_and_public_functions_say_what_they_do() -> None:
    silent = []
    for path in sources():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if tree.body and ast.get_docstring(tree) is None:
            silent.append(str(path.relative_to(ROOT)))
        silent += [
            f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            if ast.get_docstring(node) is None
        ]
    assert silent == []
