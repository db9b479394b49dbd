"""Jobs in processes: one that fails, hangs or dies is a line, never the end of the others."""

from __future__ import annotations

import errno
import os
import signal
import time

import pytest

from tests.processes import have_ended
from vcycle.data.metadata import UnreadableVideo
from vcycle.datasets.parallel import Failed, one_video, run_jobs


def _job(number):
    if number == 1:
        os._exit(3)
    if number == 2:
        time.sleep(60)
    if number == 5:
        raise KeyError("a mistake")
    if number == 6:
        raise UnreadableVideo("a.mp4", "no frame decodes")
    return number * 10


def _limit(number):
    return 0.5 if number == 2 else 60


def test_jobs_that_die_or_hang_fail_alone():
    outcomes = dict(run_jobs(_job, [0, 1, 2, 3, 4, 6], num_workers=2, limit_seconds=_limit))
    assert [outcomes[i] for i in (0, 3, 4)] == [0, 30, 40]
    died = "it ended the process that read it (exit code 3)"
    assert outcomes[1] == Failed(died, passing=True)
    assert outcomes[2] == Failed("took longer than the time limit", passing=True)
    assert outcomes[6] == Failed("no frame decodes")
    for num_workers in (0, 1):
        with pytest.raises((RuntimeError, KeyError), match="a mistake"):
            list(run_jobs(_job, [5], num_workers=num_workers))


def _process_of(_):
    return os.getpid()


def test_a_worker_that_is_killed_between_two_jobs_ends_nothing():
    outcomes = run_jobs(_process_of, [0, 1, 2], num_workers=1)
    _, process = next(outcomes)
    os.kill(process, signal.SIGKILL)
    time.sleep(0.2)
    others = dict(outcomes)
    assert others.keys() == {1, 2}
    assert all(isinstance(each, int) and each != process for each in others.values())


def _mark_and_die(task):
    """Die as often as ``task`` says, and leave a mark each time."""
    folder, name, num_deaths = task
    with (folder / name).open("a") as file:
        file.write(".")
    if len((folder / name).read_text()) <= num_deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return name


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_job_is_blamed_for_its_workers_second_death(tmp_path, num_workers):
    jobs = [(tmp_path, f"job {k}", k) for k in range(4)]
    outcomes = dict(run_jobs(_mark_and_die, jobs, num_workers=num_workers))
    failed = Failed("it ended the process that read it (signal SIGKILL)", passing=True)
    assert [outcomes[job] for job in jobs] == ["job 0", "job 1", failed, failed]
    assert [len((tmp_path / name).read_text()) for _, name, _ in jobs] == [1, 2, 2, 2]


def _hang(pipe):
    os.write(pipe, str(os.getpid()).encode())
    time.sleep(600)


def _wait_or_nap(task):
    """Two jobs: the first ends when the second has begun, which takes a while."""
    begun, is_first = task
    while is_first and not begun.exists():
        time.sleep(0.01)
    if not is_first:
        begun.touch()
        time.sleep(2.5)


def test_the_time_in_which_nobody_looked_is_none_of_a_job(tmp_path, monkeypatch):
    """The machine, or the processes together, may have been stopped for it."""
    monkeypatch.setattr("vcycle.datasets.parallel.STOOD_STILL_SECONDS", 1.0)
    first, second = jobs = [(tmp_path / "begun", True), (tmp_path / "begun", False)]
    outcomes = run_jobs(_wait_or_nap, jobs, num_workers=2, limit_seconds=lambda job: 1.5)
    assert next(outcomes) == (first, None)
    time.sleep(2.0)
    assert list(outcomes) == [(second, None)]


def test_a_killed_parent_leaves_no_job_that_hangs():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            list(run_jobs(_hang, [write], num_workers=1))
        finally:
            os._exit(1)
    os.close(write)
    worker = int(os.read(read, 100))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert have_ended([worker])


def _hostile(error):
    with one_video("a.mp4"):
        raise error


@pytest.mark.parametrize("num_workers", [0, 1])
def test_whatever_a_video_provokes_is_its_own_failure(num_workers):
    errors = [
        MemoryError(),
        OSError(errno.ENAMETOOLONG, "File name too long", "aaa"),
        ZeroDivisionError("Fraction(1, 0)"),
    ]
    outcomes = [outcome for _, outcome in run_jobs(_hostile, errors, num_workers=num_workers)]
    assert outcomes == [
        Failed("not enough memory", passing=True),
        Failed("File name too long", passing=True),
        Failed("ZeroDivisionError: Fraction(1, 0)"),
    ]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_place_that_cannot_be_written_ends_the_run(num_workers, number):
    error = OSError(number, os.strerror(number), "out/a.mp4")
    with pytest.raises(OSError, match=r"out/a\.mp4") as caught:
        list(run_jobs(_hostile, [error], num_workers=num_workers))
    assert caught.value.errno == number
