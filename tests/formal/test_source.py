"""Reading Lean files as text."""

from __future__ import annotations

from pathlib import Path

import source


def module(tmp_path: Path, text: str, name: str = "A") -> source.Module:
    path = tmp_path / f"{name}.lean"
    path.write_text(text, encoding="utf-8")
    return source.Module.read(name, path)


def test_imports_among_comments_and_modifiers(tmp_path: Path) -> None:
    mod = module(
        tmp_path,
        "\ufeff/- a /- b -/ import No -/\n-- import No\nimport Init.Data\npublic meta import all Std\nimport «A».B\n\n"
        "/-! import No -/\nimport_not := 1\nimport Late",
    )
    assert mod.imports == ["Init.Data", "Std", "A.B"]
    assert not mod.is_module


def test_a_module_header(tmp_path: Path) -> None:
    mod = module(tmp_path, "module\n\npublic import P.A\n\npublic section\n")
    assert mod.imports == ["P.A"]
    assert mod.is_module


def test_no_header(tmp_path: Path) -> None:
    assert module(tmp_path, "/-! text -/\ntheorem a : True := trivial\n").imports == []


def test_code_only_blanks_comments_and_strings_and_keeps_places() -> None:
    text = 'a -- sorry\n/- sorry /- x -/ sorry -/ b "sorry \\" sorry" c\nr#"so"rry"# d \'"\' sorry'
    code = source.code_only(text)
    assert len(code) == len(text)
    assert [i for i, c in enumerate(code) if c == "\n"] == [i for i, c in enumerate(text) if c == "\n"]
    assert code.split() == ["a", "b", "c", "d", "sorry"]


def test_an_unclosed_comment_or_string_ends_with_the_file() -> None:
    assert source.code_only("a /- sorry").split() == ["a"]
    assert source.code_only('a "sorry').split() == ["a"]


def test_reachable_and_discover(tmp_path: Path) -> None:
    for name, text in {
        "W.lean": "import W.A\n",
        "W/A.lean": "",
        "W/B.lean": "",
        "tools/T.lean": "",
        ".lake/H.lean": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    mods = source.discover(tmp_path)
    assert set(mods) == {"W", "W.A", "W.B"}
    assert source.reachable(mods, "W") == {"W", "W.A"}
    assert source.reachable(mods, "No") == set()


def test_plan_orders_skips_and_refuses(tmp_path: Path) -> None:
    files = {
        "A.lean": "import P.B\n", "P/B.lean": "import Init\n", "P/M.lean": "import Mathlib.Data\n", "P/N.lean": "import P.M\n",
        "P/Gone.lean": "import P.Nowhere\n", "P/After.lean": "import P.Gone\n", "P/Ring1.lean": "import P.Ring2\n",
        "P/Ring2.lean": "import P.Ring1\n", "P/Mod.lean": "module\n", "P/Bad.lean": "import Init.Nowhere\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_text(text)
    library = tmp_path / "lib"
    library.mkdir()
    (library / "Init.olean").touch()
    mods = source.discover(tmp_path / "src")
    plan = source.plan(mods, list(mods), library)
    assert plan.order == ["P.B", "A"] or plan.order.index("P.B") < plan.order.index("A")
    assert plan.skipped == {"P.M": "needs Mathlib", "P.N": "needs Mathlib (through P.M)"}
    assert plan.broken["P.Gone"] == "import P.Nowhere: no such file in the project"
    assert plan.broken["P.After"] == "its import P.Gone cannot be checked"
    assert plan.broken["P.Bad"] == "import Init.Nowhere: no such module in Lean's core library"
    assert "circle" in plan.broken["P.Ring1"] + plan.broken["P.Ring2"]
    assert "`module`" in plan.broken["P.Mod"]
    assert set(plan.order) == {"A", "P.B"}
