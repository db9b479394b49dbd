"""Mistakes in the datasets' own files: one line that names file, line and fix; exit code 2."""

from __future__ import annotations

import json

import pytest

from vcycle.cli.main import main

KINETICS = "label,youtube_id,time_start,time_end,split\nrun,abc,0,10,train\n"
CHARADES = "id,subject,actions\nAAA,x,c000 0.00 1.50\n"


@pytest.fixture
def index(tmp_path, capfd):
    """Runs ``vcycle data index`` of a dataset over files with these texts; gives its error."""
    videos = tmp_path / "videos"
    for name in ("abc.mp4", "AAA.mp4", "1.webm", "Run/v.avi", "outside.avi"):
        (videos / name).parent.mkdir(parents=True, exist_ok=True)
        (videos / name).touch()

    def run(dataset, flags, files):
        for name, text in files.items():
            if isinstance(text, bytes):
                (tmp_path / name).write_bytes(text)
            else:
                (tmp_path / name).write_text(text)
        words = [str(tmp_path / word) if word in {*files, "."} else word for word in flags]
        code = main(["data", "index", dataset, str(videos), *words, "--workers", "0"])
        error = capfd.readouterr().err
        assert code == 2
        assert error.startswith("vcycle: ")
        assert error.count("\n") == 1
        return error.replace(f"{tmp_path}/", "")

    return run


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (KINETICS + "run,abc\n", "line 3: has 2 values for 5 columns"),
        (KINETICS + "run,abc,0,10,train,0,0\n", "line 3: has 7 values for 5 columns"),
        (KINETICS + '"' + 140_000 * "x", "line 3: field larger than field limit"),
        (KINETICS + "run,abc,zero,10,train\n", "line 3: time_start 'zero' is not a number"),
        (KINETICS + "run,abc,0,inf,train\n", "line 3: time_end 'inf' is not a number"),
        (KINETICS + ",abc,0,10,train\n", "line 3: no label"),
        (KINETICS + "run,,0,10,train\n", "line 3: no youtube_id"),
        (KINETICS + '"a\nb",abc,0,10,train\n', r"line 4: label 'a\nb' has a line break"),
        (
            KINETICS + "a\x1b[31m,abc,0,10,train\n",
            r"line 3: label 'a\x1b[31m' has a line break or ",
        ),
        ("youtube_id,time_start,time_end,split\nabc,0,10,test\n", "line 1: no column label"),
        ("", "line 1: no column label, youtube_id, split"),
        (KINETICS.encode() + b"\xff", ": byte 62 is not UTF-8 text"),
    ],
)
def test_kinetics(index, text, message):
    error = index("kinetics", ["--tables", "k.csv"], {"k.csv": text})
    assert f"k.csv{'' if message[0] == ':' else ' '}{message}" in error
    assert "give DeepMind's CSV files that have labels" in error


def test_a_file_that_is_not_there(index):
    error = index("kinetics", ["--tables", "nowhere.csv"], {})
    assert "nowhere.csv: not found; give DeepMind's CSV files" in error


LABELS = {"Pushing something": "0", "Pulling something": "1"}
ITEM = {"id": "1", "template": "Pushing [something]"}


@pytest.mark.parametrize(
    ("labels", "train", "message"),
    [
        (LABELS, [ITEM, {"id": "1"}], "train.json item 2: no template"),
        (LABELS, [ITEM, "1"], "train.json item 2: is not an object"),
        (LABELS, [{**ITEM, "id": 1}], "train.json item 1: id '1' is not text"),
        (LABELS, [{**ITEM, "id": "Run/../outside"}], "train.json item 1: path 'Run"),
        (LABELS, [{**ITEM, "id": "\ud800"}], r"train.json item 1: id '\ud800' is not UTF-8"),
        (LABELS, [{**ITEM, "template": "Eating [something]"}], "item 1: template 'Eating some"),
        (LABELS, {"1": ITEM}, "train.json: is not a list of videos"),
        ([*LABELS], [ITEM], "labels.json: is not an object of names and numbers"),
        ({"Pushing something": "one"}, [ITEM], "labels.json: label 'one' is not a whole number"),
        ({"Pushing something": "1"}, [ITEM], "labels.json: does not number its 1 classes from 0"),
        ({"Pushing\nsomething": 0}, [], r"videos: class 'Pushing\nsomething' has a line break"),
    ],
)
def test_something_something(index, labels, train, message):
    (files := {"labels.json": json.dumps(labels), "train.json": json.dumps(train)})["val"] = "[]"
    flags = ["--labels", "labels.json", "--train", "train.json", "--val", "val"]
    assert message in index("something", flags, files)


def test_broken_json_is_named(index):
    files = {"labels.json": json.dumps(LABELS), "train.json": "[\n{id: 1}]", "val": "[]"}
    flags = ["--labels", "labels.json", "--train", "train.json", "--val", "val"]
    error = index("something", flags, files)
    assert "train.json line 2: is not JSON (Expecting property name enclosed in double" in error


@pytest.mark.parametrize(
    ("classes", "actions", "message"),
    [
        ("c000 Holding", "c001 0.00 1.50", "train.csv line 3: action 'c001 0.00 1.50' is of no"),
        ("c000 Holding", "c000 0.00", "train.csv line 3: action 'c000 0.00' is not a code"),
        ("c000 Holding", "c000 0 1;c000 0 1 2", "line 3: action 'c000 0 1 2' is not a code"),
        ("c000 Holding", "c000 zero 1", "train.csv line 3: start 'zero' is not a number"),
        ("c000 Holding", "c000 0 -1", "train.csv line 3: end '-1' is not a number"),
        ("c000 Holding\nc001\n", "", "classes.txt line 2: 'c001' is one word instead of two"),
    ],
)
def test_charades(index, classes, actions, message):
    files = {"classes.txt": classes, "train.csv": f"{CHARADES}AAA,x,{actions}\n", "val": CHARADES}
    flags = ["--classes", "classes.txt", "--train", "train.csv", "--val", "val"]
    assert message in index("charades", flags, files)


@pytest.mark.parametrize(
    ("classes", "line", "message"),
    [
        ("1 Run\n2\n", "Run/v.avi 1", "classInd.txt line 2: '2' is one word instead of two"),
        ("1 Run\n", "Sit/v.avi 2", "trainlist01.txt line 2: 'Sit/v.avi' is of no class"),
        ("1 Run\n", "Run/../outside.avi 1", "line 2: path 'Run/../outside.avi' leaves"),
        ("1 Run\n", "/Run/v.avi 1", "line 2: '/Run/v.avi' is of no class"),
    ],
)
def test_ucf101(index, classes, line, message):
    train = f"Run/v.avi 1\n{line}\n"
    files = {"classInd.txt": classes, "trainlist01.txt": train, "testlist01.txt": ""}
    error = index("ucf101", ["--splits", "."], files)
    assert message in error
    assert "give the folder of UCF101's split files" in error


def test_a_split_file_that_is_not_there(index):
    files = {"classInd.txt": "1 Run\n", "trainlist01.txt": "Run/v.avi 1\n"}
    assert "testlist01.txt: not found" in index("ucf101", ["--splits", "."], files)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("v.avi", "Run_test_split1.txt line 2: 'v.avi' is one word instead of two"),
        ("v.avi 3", "Run_test_split1.txt line 2: 'v.avi' is followed by '3'"),
        ("../outside.avi 1", "line 2: path 'Run/../outside.avi' leaves"),
    ],
)
def test_hmdb51(index, line, message):
    files = {"Run_test_split1.txt": f"v.avi 1 \n{line}\n"}
    assert message in index("hmdb51", ["--splits", "."], files)


def test_a_share_that_is_none(index):
    assert "val_share 2.0: give a share from 0 to 1" in index("folder", ["--val-share", "2"], {})
