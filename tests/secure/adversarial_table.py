"""Prints the adversarial table with the outcome seen, row by row: ``python tests/secure/adversarial_table.py``.

Options:
    --slow    run the slow tests too
    --write   rewrite docs/adversarial.md instead (runs nothing)
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DOCUMENT = ROOT / "docs" / "adversarial.md"
FILES = [*sorted(HERE.glob("test_adversarial_*.py")), *sorted(HERE.glob("test_homomorphic_*.py"))] + [
    HERE / f"test_{name}.py" for name in ("byte_search", "claims", "properties", "schedules")
]
sys.path.insert(0, str(HERE))

from adversarial import ATTEMPTS, ROWS  # noqa: E402 - after the path is set

INTRODUCTION = """# Adversarial tests of secure aggregation

Written by `python tests/secure/adversarial_table.py --write`; a test holds it to be current. Without `--write` the same
command runs these tests and prints the table with the outcome seen (`--slow` adds the slow ones).

"""


class Outcomes:
    """A pytest plugin: which test belongs to which row, and what came of it."""

    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = defaultdict(list)
        self.results: dict[str, set[str]] = defaultdict(set)
        self.rows_of: dict[str, tuple[str, ...]] = {}

    def pytest_collection_modifyitems(self, items) -> None:
        for item in items:
            keys = getattr(item.function, "adversarial", ())
            inner = getattr(getattr(item.function, "hypothesis", None), "inner_test", None)
            keys = keys or getattr(inner, "adversarial", ())
            self.rows_of[item.nodeid] = keys
            name = f"{item.path.name}::{item.originalname}"
            for key in keys:
                if name not in self.tests[key]:
                    self.tests[key].append(name)

    def pytest_runtest_logreport(self, report) -> None:
        if report.when == "call" or report.outcome == "skipped" or report.failed:
            outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
            for key in self.rows_of.get(report.nodeid, ()):
                self.results[key].add(outcome)


def collect() -> Outcomes:
    """Rows and their tests, without running any."""
    return _pytest(["--collect-only", "-q"])


def _pytest(arguments: list[str]) -> Outcomes:
    import pytest

    outcomes = Outcomes()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*map(str, FILES), "-p", "no:cacheprovider", f"--rootdir={ROOT}", *arguments], plugins=[outcomes])
    return outcomes


def document(outcomes: Outcomes) -> str:
    """docs/adversarial.md."""
    parts = [INTRODUCTION]
    for title, rows in (("The table of the design", ROWS), ("Further attempts", ATTEMPTS)):
        parts.append(f"## {title}\n\n| attempt | expected | tests |\n|---|---|---|\n")
        for key, (attempt, expected) in rows.items():
            tests = "<br>".join(f"`{name}`" for name in outcomes.tests[key])
            parts.append(f"| {attempt} | {expected} | {tests} |\n")
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def verdict(seen: set[str]) -> str:
    """One word for a row."""
    if "failed" in seen:
        return "NOT MET"
    if "xfailed" in seen:
        return "known gap"
    return "met" if "passed" in seen else "not run"


def main(arguments: list[str]) -> int:
    """Print or write the table; the exit status says whether every row is met."""
    if "--write" in arguments:
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(document(collect()))
        print(f"{DOCUMENT.relative_to(ROOT)} written")
        return 0
    outcomes = _pytest(["-q"] if "--slow" in arguments else ["-q", "-m", "not slow"])
    verdicts = {key: verdict(outcomes.results[key]) for key in (*ROWS, *ATTEMPTS)}
    for title, rows in (("THE TABLE OF THE DESIGN", ROWS), ("FURTHER ATTEMPTS", ATTEMPTS)):
        print(f"\n{title}")
        for key, (attempt, expected) in rows.items():
            print(f"\n{verdicts[key]:>9}  {attempt}\n           expected: {expected}")
            print("".join(f"           {name}\n" for name in outcomes.tests[key]), end="")
    met = sum(word == "met" for word in verdicts.values())
    print(f"\n{met} of {len(verdicts)} rows met")
    return 0 if met == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
