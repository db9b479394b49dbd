"""``vcycle data``: generate videos, index a dataset, prepare it so that it decodes fast.

Flags go in; files, a manifest and a line that says what was done come out.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from vcycle.report.progress_bar import progress_bar

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
    datasets = index.add_subparsers(title="datasets", required=True, dest="dataset")
    flags: dict[str, Sequence[tuple[str, dict[str, object]]]] = {
        "folder": [("--val-share", {"type": float, "default": 0.1, "help": "without val/"})],
        "kinetics": [
            ("--tables", {"nargs": "+", "required": True, "help": "DeepMind's CSVs, with labels"})
        ],
        "something": [
            (f"--{name}", {"required": True, "metavar": "JSON"})
            for name in ("labels", "train", "val")
        ],
        "charades": [
            ("--classes", {"required": True, "metavar": "TXT"}),
            ("--train", {"required": True, "metavar": "CSV"}),
            ("--val", {"required": True, "metavar": "CSV"}),
        ],
        "ucf101": _SPLIT_FLAGS,
        "hmdb51": _SPLIT_FLAGS,
    }
    for name, own in flags.items():
        dataset = datasets.add_parser(name, help=(_HELP[name]))
        dataset.add_argument("root", help="the folder that holds the videos")
        for flag, options in own:
            dataset.add_argument(flag, **options)  # type: ignore[arg-type]
        dataset.add_argument("--out", help="where the manifest is written; the root unless given")
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


_SPLIT_FLAGS: list[tuple[str, dict[str, object]]] = [
    ("--splits", {"required": True, "help": "the folder of split files"}),
    ("--split", {"type": int, "default": 1, "choices": (1, 2, 3)}),
]
_HELP = {
    "folder": "a folder for each class, under train/ and val/ or not",
    "kinetics": "Kinetics, from DeepMind's CSVs",
    "something": "Something-Something V2, from its JSON files",
    "charades": "Charades, from its CSVs",
    "ucf101": "UCF101, from its split files",
    "hmdb51": "HMDB51, from its split files",
}


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")


def _synth(options: argparse.Namespace, _: Sequence[str]) -> None:
    from vcycle.demo.videos import write_videos

    with progress_bar("writing videos", Console()) as progress:
        manifest = write_videos(
            options.folder,
            train_videos=options.train_videos,
            val_videos=options.val_videos,
            seed=options.seed,
            progress=progress,
        )
    print(f"{len(manifest)} videos of {manifest.num_classes} classes in {options.folder}")


def _index(options: argparse.Namespace, _: Sequence[str]) -> None:
    from vcycle.datasets.index import index_videos

    listing = _listing(options)
    with progress_bar("probing videos", Console()) as progress:
        print(index_videos(listing, options.out, num_workers=options.workers, progress=progress))


def _listing(options: argparse.Namespace) -> Listing:
    from vcycle.datasets import annotations
    from vcycle.datasets.class_folders import list_folder

    root = options.root
    match options.dataset:
        case "folder":
            return list_folder(root, val_share=options.val_share)
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


def _prepare(options: argparse.Namespace, _: Sequence[str]) -> None:
    from vcycle.data.manifest import Manifest
    from vcycle.datasets.prepare import Preparation, check_apart, prepare_videos

    given = {
        name: getattr(options, name) for name in ("short_side", "key_interval", "quality", "preset")
    }
    preparation = Preparation(**{name: value for name, value in given.items() if value is not None})
    manifest = Manifest.read(options.manifest)
    check_apart(manifest, options.out)
    with progress_bar("preparing videos", Console()) as progress:
        prepared = prepare_videos(
            manifest,
            options.out,
            preparation,
            num_workers=options.workers,
            shard_bytes=options.shard_mb * 10**6,
            base_uri=options.base_uri,
            progress=progress,
        )
    print(prepared)
