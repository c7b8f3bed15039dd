"""Imports run pages -> gamelora -> analysis and never back, and the two libraries know no Streamlit."""

import ast
import subprocess
import sys

import pytest

from tests.conftest import ROOT

FORBIDDEN = {  # library -> what it never imports, directly or through another module
    "analysis": {"gamelora", "streamlit", "pages", "app"},
    "gamelora": {"streamlit", "pages", "app"},
}


def sources(library):
    """module name -> file of every module of a library."""
    files = sorted((ROOT / library).rglob("*.py"))
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]
    return dict(zip(names, files, strict=True))


def imported_roots(tree):
    """Top-level names of all import statements, also of those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("library", FORBIDDEN)
def test_no_source_imports_upwards(library):
    found = {
        name: roots
        for name, file in sources(library).items()
        if (roots := set(imported_roots(ast.parse(file.read_text(encoding="utf-8")))) & FORBIDDEN[library])
    }
    assert not found


def test_the_import_scan_sees_every_form():
    code = "import a.b, c as d\nfrom e.f import g\ndef h():\n    from i import j\nfrom . import k\n"
    assert set(imported_roots(ast.parse(code))) == {"a", "c", "e", "i"}


# One interpreter imports the lower library first and checks after each, so that the upper one cannot hide what it loads.
_IMPORT_ALL = """
import importlib, sys
for library, modules, forbidden in {plan!r}:
    for module in modules:
        importlib.import_module(module)
    loaded = [name for name in forbidden if name in sys.modules]
    if loaded:
        sys.exit(f"importing {{library}} loads {{', '.join(loaded)}}")
print("ok")
"""


def test_every_library_module_imports_in_a_fresh_interpreter_without_streamlit():
    plan = [(library, list(sources(library)), sorted(forbidden)) for library, forbidden in FORBIDDEN.items()]
    assert [len(modules) > 1 for _, modules, _ in plan] == [True, True]
    command = [sys.executable, "-c", _IMPORT_ALL.format(plan=plan)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
