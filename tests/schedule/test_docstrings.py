"""Every public name of the schedule has an example in its docstring, which runs."""

from __future__ import annotations

import doctest

import pytest

import vcycle

PUBLIC = [
    name
    for name in vcycle.__all__
    if name not in vcycle._MODULES  # those are imported when they are first used: not the schedule
]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_docstring_has_an_example_that_runs(name: str) -> None:
    found = getattr(vcycle, name)
    assert found.__module__.startswith("vcycle.schedule.")
    names = {each: getattr(vcycle, each) for each in PUBLIC}
    (test,) = doctest.DocTestFinder(recurse=False).find(found, name, globs=names)
    assert test.examples
    outcome = doctest.DocTestRunner(verbose=False).run(test)
    assert outcome.failed == 0
