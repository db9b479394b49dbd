"""A study: a grid of runs, carried out one after the other, and the tables that they make.

    python benchmarks/study.py STUDY.yaml --datasets DIR            until all runs are complete
    python benchmarks/study.py STUDY.yaml --datasets DIR --only X   those that begin with X
    python benchmarks/study.py STUDY.yaml --datasets DIR --only X --repeat   again, at their rates
    python benchmarks/study.py STUDY.yaml --list                    the runs and their accuracies
    python benchmarks/study.py STUDY.yaml --time --datasets DIR     seconds of a step of each shape
    python benchmarks/study.py STUDY.yaml --check-time --datasets DIR   whole runs, once more
    python benchmarks/study.py STUDY.yaml --collect                 write the table as JSON

It can be stopped at any moment and started again, and two processes may share a study: each run is
done once, in any order the table is the same. ``--folder`` (runs/STUDY by default) holds the run
folders, ``--datasets`` the data sets that the file names. The runs of ``--table`` are complete:
another machine goes on from it, and it is what ``--collect`` writes (by default study.json in the
folder, of the published study docs/results/study.json). ``--repeat`` does those of ``--only`` all
the same, unless they are in the folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from study_file import Study, read_study, row_name
from study_results import collect
from study_runs import StudyFolder, run_study
from study_timing import check_times, time_steps

PROOF = Path(__file__).parent.resolve() / "study" / "proof.yaml"
PUBLISHED = PROOF.parents[2] / "docs" / "results" / "study.json"


def main(arguments: list[str]) -> int:
    """Do one of the above; 2 for what a user has to change, 130 if interrupted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("study", type=Path)
    parser.add_argument("--datasets", type=Path, default=Path("datasets"))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", nargs="+", default=[""])
    parser.add_argument("--repeat", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--check-time", action="store_true")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--collect", action="store_true")
    options = parser.parse_args(arguments)
    try:
        study = read_study(options.study)
        path = options.folder or Path("runs") / study.name
        is_proof = options.study.resolve() == PROOF
        options.table = options.table or (PUBLISHED if is_proof else path / "study.json")
        published = _published(options.table, study)
        if options.repeat:
            chosen = tuple(options.only)
            rows = published.get("rows", [])
            published["rows"] = [row for row in rows if not row_name(row).startswith(chosen)]
        _do(study, StudyFolder(study, path, options.datasets, published), options)
    except ValueError as error:
        print(f"study: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"study: {error}", file=sys.stderr)
        return 130
    return 0


def _published(table: Path, study: Study) -> dict[str, Any]:
    """The table of an earlier collect; empty if there is none."""
    try:
        values: dict[str, Any] = json.loads(table.read_text()) if table.exists() else {}
        of = values.get("study", study.name)
        for row in values.get("rows", []):
            row_name(row)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"--table {table}: no table of a study ({error}); name another") from None
    if of != study.name:
        raise ValueError(f"--table {table}: the table of the study {of}; name another")
    return values


def _do(study: Study, folder: StudyFolder, options: argparse.Namespace) -> None:
    runs = study.selected(options.only)
    if not runs:
        raise ValueError(f"--only {' '.join(options.only)}: no run of {options.study} begins so")
    if options.list:
        for run in runs:
            print(run.name, (folder.row(run) or {}).get("top1", "-"))
    elif options.time:
        time_steps(folder, runs)
    elif options.check_time:
        check_times(folder, runs)
    elif options.collect:
        collect(folder, options.table)
    elif folder.left(runs):
        run_study(folder, runs, console=Console())
    else:
        print(f"all {len(runs)} runs are complete; --repeat does them again in another --folder")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
