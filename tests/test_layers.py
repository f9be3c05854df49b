"""Layers point one way, modules stay small, and the public names are complete."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import beam_lateness

ROOT = Path(__file__).parent.parent
PACKAGE = "beam_lateness"
MODULES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("transforms", "pipelines")
    for path in (ROOT / folder).rglob("*.py")
    if path.name != "__init__.py"
)

# Each layer, and the layers that it may import besides itself.
BASE = "base"
LAYERS = {
    BASE: set[str](),
    "watermarks": {BASE},
    "lateness": {BASE},
    "commits": {BASE, "lateness"},
    "sources": {BASE, "watermarks", "commits"},
    "sinks": {BASE, "lateness"},
    "reconcile": {BASE, "lateness", "sinks"},
    "pipelines": {BASE, "watermarks", "sources", "lateness", "commits", "sinks", "reconcile"},
}
BASE_MODULES = {
    "batch",
    "beam_time",
    "database",
    "kafka_metadata",
    "metrics",
    "private_files",
    "results",
    "times",
}

NO_BEAM = (
    "transforms/times.py",
    "transforms/lateness/windows.py",
    "transforms/lateness/aggregation.py",
)


def layer_of(module: str) -> str:
    """The layer of a module, given by its path."""
    parts = Path(module).with_suffix("").parts
    if parts[0] == "pipelines":
        return "pipelines"
    if len(parts) == 2:
        assert parts[1] in BASE_MODULES, f"{module}: in no layer; name its layer here"
        return BASE
    return parts[1]


def tree(module: str) -> ast.Module:
    """A module, parsed."""
    return ast.parse((ROOT / module).read_text())


def imports(module: str) -> Iterator[str]:
    """Gives every module that a module imports, at the top or inside a function.

    What it imports only when run as a program does not count.
    """
    for node in _nodes(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _nodes(parsed: ast.Module) -> Iterator[ast.AST]:
    for node in parsed.body:
        if not (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)):
            yield from ast.walk(node)


def own_imports(module: str) -> set[str]:
    """Gives the paths of the modules of ours that a module imports."""
    paths = {
        name.removeprefix(f"{PACKAGE}.").replace(".", "/") + ".py"
        for name in imports(module)
        if name.startswith(f"{PACKAGE}.")
    }
    return paths & set(MODULES)


def imports_beam(module: str) -> bool:
    """Whether a module imports Beam."""
    return any(name.split(".")[0] == "apache_beam" for name in imports(module))


def test_there_are_modules_to_look_at() -> None:
    """The other laws would hold for none."""
    assert {layer_of(module) for module in MODULES} == set(LAYERS)


@pytest.mark.parametrize("module", MODULES)
def test_no_module_imports_upward_or_sideways(module: str) -> None:
    """Base <- watermarks <- sources; base <- lateness <- commits <- sources; pipelines on top."""
    own = layer_of(module)
    allowed = LAYERS[own] | {own}
    wrong = {each: layer_of(each) for each in own_imports(module)}
    assert {path: layer for path, layer in wrong.items() if layer not in allowed} == {}


@pytest.mark.parametrize("module", MODULES)
def test_no_module_imports_the_whole_package(module: str) -> None:
    """`from beam_lateness import X` would import every layer."""
    assert PACKAGE not in set(imports(module))


def test_no_module_imports_itself_in_a_circle() -> None:
    """Within a layer either."""
    todo = {module: own_imports(module) for module in MODULES}
    while todo:
        free = [module for module, needs in todo.items() if not needs & todo.keys()]
        assert free, f"a circle among {sorted(todo)}"
        for module in free:
            del todo[module]


@pytest.mark.parametrize(
    "module",
    [
        *NO_BEAM,
        *(m for m in MODULES if "/watermarks/" in m and not m.endswith("/estimator.py")),
    ],
)
def test_arithmetic_imports_no_beam(module: str) -> None:
    """Neither itself nor through what it imports of ours."""
    seen, todo = set[str](), {module}
    while todo:
        each = todo.pop()
        seen.add(each)
        assert not imports_beam(each) or each == "transforms/batch.py", f"{module} by way of {each}"
        todo |= own_imports(each) - seen
    assert not imports_beam(module)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_at_most_400_lines(module: str) -> None:
    """More is two subjects."""
    assert len((ROOT / module).read_text().splitlines()) <= 400


def test_a_test_has_at_most_400_lines() -> None:
    """The same for tests."""
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines())
        for path in (ROOT / "tests").rglob("*.py")
    }
    assert {path: length for path, length in lengths.items() if length > 400} == {}


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("transforms")])
def test_no_lambda_stands_in_a_module_that_imports_beam(module: str) -> None:
    """Beam pickles functions by their name where they have one."""
    found = [node.lineno for node in ast.walk(tree(module)) if isinstance(node, ast.Lambda)]
    assert not (found and imports_beam(module)), f"{module}: lambdas in lines {found}"


@pytest.mark.parametrize("module", MODULES)
def test_no_assert_checks_what_a_user_gave(module: str) -> None:
    """`assert` vanishes under -O: one is allowed only beside the reason why it cannot fail."""
    lines = (ROOT / module).read_text().splitlines()
    bare = [
        node.lineno
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Assert) and "# noqa: S101 (" not in lines[node.lineno - 1]
    ]
    assert bare == []


def test_the_public_names_are_sorted_and_complete() -> None:
    """`__all__` is what `__init__` imports, in order."""
    parsed = ast.parse((ROOT / PACKAGE / "__init__.py").read_text())
    imported = [
        alias.asname or alias.name
        for node in parsed.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert beam_lateness.__all__ == sorted(beam_lateness.__all__)
    assert sorted(imported) == beam_lateness.__all__
    assert [name for name in beam_lateness.__all__ if not hasattr(beam_lateness, name)] == []


@pytest.mark.parametrize("name", beam_lateness.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    """Its first line is one sentence."""
    document = getattr(beam_lateness, name).__doc__
    assert document
    assert document.split("\n\n")[0].strip().endswith((".", ":"))
