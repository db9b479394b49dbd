"""``vcycle data``: generate videos, index a dataset, prepare it so that it decodes fast.

Flags go in; files, a manifest and a line that says what was done come out.
"""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from rich.console import Console

from vcycle.devices.cores import process_cores
from vcycle.schedule.messages import counted
from vcycle.train.activity import progress_bar

if TYPE_CHECKING:
    from vcycle.datasets.listing import Listing


def add_data_flags(parser: argparse.ArgumentParser) -> None:
    """Add the actions of ``vcycle data`` and their flags."""
    actions = parser.add_subparsers(title="actions", required=True)
    _add_synth(actions.add_parser("synth", help="write generated action videos and their manifest"))
    _add_index(actions.add_parser("index", help="write the manifest of a dataset"))
    _add_prepare(actions.add_parser("prepare", help="rewrite a dataset so that it decodes fast"))


def _add_synth(synth: argparse.ArgumentParser) -> None:
    synth.add_argument("folder", help="where they are written")
    synth.add_argument("--train-videos", type=int, default=1200)
    synth.add_argument("--val-videos", type=int, default=240)
    synth.add_argument("--seed", type=int, default=0, help="the same seed writes the same files")
    synth.set_defaults(run=_synth)


def _add_index(index: argparse.ArgumentParser) -> None:
    datasets = index.add_subparsers(
        title="datasets", required=True, dest="dataset", metavar=" | ".join(_DATASETS)
    )
    for name, (about, root, own) in _DATASETS.items():
        dataset = datasets.add_parser(name, help=about)
        dataset.add_argument("root", metavar=root[0], help=root[1])
        for flag, options in own:
            dataset.add_argument(flag, **options)
        dataset.add_argument("--out", help="where the manifest is written; beside the videos")
        dataset.add_argument(
            "--flip",
            action=argparse.BooleanOptionalAction,
            help="mirror clips, or not; unless given they are if no class tells left from right",
        )
        _add_workers(dataset)
        dataset.set_defaults(run=_index)


def _add_prepare(prepare: argparse.ArgumentParser) -> None:
    prepare.add_argument("manifest", help="the manifest of the originals, which are only read")
    prepare.add_argument("out", help="where the rewritten videos and their manifest go")
    prepare.add_argument("--short-side", type=int, help="in pixels (256)")
    prepare.add_argument("--key-interval", type=int, help="frames from key frame to key frame (1)")
    prepare.add_argument("--quality", type=int, help="x264's CRF, 0 is best (23)")
    prepare.add_argument("--preset", help="of x264 (veryfast)")
    prepare.add_argument("--shard-mb", type=int, default=0, help="pack into tars of this size")
    prepare.add_argument("--base-uri", default="", help="where the tars will be served from")
    _add_workers(prepare)
    prepare.set_defaults(run=_prepare)


_Flags = list[tuple[str, dict[str, Any]]]
_VIDEOS = ("ROOT", "the folder that holds the videos")
DIVIDE: _Flags = [
    ("--val-share", {"type": float, "help": "of each class, without splits (0.1)"}),
    (
        "--group-pattern",
        {
            "metavar": "REGEX",
            "help": "what is the same in the parentheses stays on one side, as in '_(g[0-9]+)_'",
        },
    ),
]
_SPLITS: _Flags = [
    ("--splits", {"required": True, "help": "the folder of split files"}),
    ("--split", {"type": int, "default": 1, "choices": (1, 2, 3)}),
]
# What each dataset is, its root, and its flags.
_DATASETS: dict[str, tuple[str, tuple[str, str], _Flags]] = {
    "folder": ("a folder for each class, a metadata.csv, or WebDataset shards", _VIDEOS, DIVIDE),
    "table": (
        "a CSV, JSON-lines or Parquet table of paths and labels",
        ("TABLE", "with columns path and label; split, group, start and end if there are any"),
        [("--videos", {"help": "the folder that paths start from; the table's own"}), *DIVIDE],
    ),
    "lists": (
        "a list of paths and classes for each split, as MMAction and VideoMAE have them",
        ("ROOT", "the folder that paths start from"),
        [
            ("--train", {"required": True, "metavar": "FILE"}),
            ("--val", {"required": True, "metavar": "FILE"}),
            ("--test", {"metavar": "FILE"}),
            ("--classes", {"metavar": "FILE", "help": "the name of each class, a line each"}),
        ],
    ),
    "kinetics": (
        "Kinetics, from DeepMind's CSVs",
        _VIDEOS,
        [("--tables", {"nargs": "+", "required": True, "help": "DeepMind's CSVs, with labels"})],
    ),
    "something": (
        "Something-Something V2, from its JSON files",
        _VIDEOS,
        [
            (f"--{name}", {"required": True, "metavar": "JSON"})
            for name in ("labels", "train", "val")
        ],
    ),
    "charades": (
        "Charades, from its CSVs",
        _VIDEOS,
        [
            ("--classes", {"required": True, "metavar": "TXT"}),
            ("--train", {"required": True, "metavar": "CSV"}),
            ("--val", {"required": True, "metavar": "CSV"}),
        ],
    ),
    "ucf101": ("UCF101, from its split files", _VIDEOS, _SPLITS),
    "hmdb51": ("HMDB51, from its split files", _VIDEOS, _SPLITS),
}


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, help="processes (one for each core)")
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="use the CPUs of the Ray cluster there instead; or auto"
    )


def _who_works(options: argparse.Namespace) -> dict[str, Any]:
    if options.ray is None:
        workers = process_cores() if options.workers is None else options.workers
        return {"num_workers": workers}
    if options.workers is not None:
        raise ValueError("--ray and --workers: the cluster says how many work; leave one out")
    return {"ray": options.ray}


def _synth(options: argparse.Namespace) -> None:
    from vcycle.demo.videos import write_videos

    with progress_bar("writing videos", Console()) as progress:
        manifest = write_videos(
            options.folder,
            train_videos=options.train_videos,
            val_videos=options.val_videos,
            seed=options.seed,
            progress=progress,
        )
    classes = counted(manifest.num_classes, "class")
    print(f"{counted(len(manifest), 'video')} of {classes} in {options.folder}")


def _index(options: argparse.Namespace) -> None:
    from vcycle.datasets.choices import Choices
    from vcycle.datasets.index import index_videos
    from vcycle.datasets.own_videos import index_own_videos

    is_own = options.dataset in ("folder", "table")
    listing = None if is_own else _published(options)
    who = _who_works(options)
    with progress_bar("probing videos", Console()) as progress:
        how = {**who, "progress": progress}
        if listing is None:
            choices = Choices(options.flip, options.val_share, options.group_pattern)
            videos = getattr(options, "videos", None)
            indexed = index_own_videos(options.root, options.out, choices, videos=videos, **how)
        else:
            indexed = index_videos(listing, options.out, choices=Choices(options.flip), **how)
    print(indexed)
    print(indexed.report())


def _published(options: argparse.Namespace) -> Listing:
    from vcycle.datasets import annotations
    from vcycle.datasets.split_lists import list_splits

    root = options.root
    match options.dataset:
        case "lists":
            lists = {"train": options.train, "val": options.val, "test": options.test}
            given = {split: file for split, file in lists.items() if file is not None}
            return list_splits(root, given, classes=options.classes)
        case "kinetics":
            return annotations.list_kinetics(root, *options.tables)
        case "something":
            return annotations.list_something(
                root, labels=options.labels, train=options.train, val=options.val
            )
        case "charades":
            return annotations.list_charades(
                root, classes=options.classes, train=options.train, val=options.val
            )
        case "ucf101":
            return annotations.list_ucf101(root, options.splits, split=options.split)
        case _:
            return annotations.list_hmdb51(root, options.splits, split=options.split)


def _prepare(options: argparse.Namespace) -> None:
    from vcycle.data.manifest import Manifest
    from vcycle.datasets.prepare import Preparation, check_apart, prepare_videos

    given = {
        name: getattr(options, name) for name in ("short_side", "key_interval", "quality", "preset")
    }
    preparation = Preparation(**{name: value for name, value in given.items() if value is not None})
    manifest = Manifest.read(options.manifest)
    check_apart(manifest, options.out)
    who = _who_works(options)
    with progress_bar("preparing videos", Console()) as progress:
        prepared = prepare_videos(
            manifest,
            options.out,
            preparation,
            **who,
            shard_bytes=options.shard_mb * 10**6,
            base_uri=options.base_uri,
            progress=progress,
        )
    print(prepared)
    uploaded = ""
    if options.base_uri:
        uploaded = f"copy {shlex.quote(str(options.out))}/*.tar to {options.base_uri}, then "
    print(f"{uploaded}train on them: vcycle train {shlex.quote(str(options.out))}")
