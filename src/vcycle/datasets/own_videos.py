"""Videos of one's own, in any of the forms in which people keep them.

A folder or a table goes in, a ``Listing`` or a manifest comes out. A folder holds a folder for each
class, a ``metadata.csv`` as Hugging Face datasets do, or WebDataset shards.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vcycle.data.metadata import IMAGE_SUFFIXES
from vcycle.datasets.choices import Choices
from vcycle.datasets.class_folders import list_class_folders
from vcycle.datasets.folders import (
    READ_SUFFIXES,
    VIDEO_SUFFIXES,
    is_hidden,
    is_prepared,
    videos_under,
)
from vcycle.datasets.index import Indexed, index_videos
from vcycle.datasets.listing import Listing, dataset_folder
from vcycle.datasets.splits import Splitting
from vcycle.datasets.table_rows import TABLE_SUFFIXES
from vcycle.datasets.video_table import list_metadata, list_table, metadata_tables
from vcycle.datasets.webdataset import list_shards, shards_under
from vcycle.schedule.messages import counted


def index_own_videos(
    source: str | os.PathLike[str],
    directory: str | os.PathLike[str] | None = None,
    choices: Choices = Choices(),
    *,
    videos: str | os.PathLike[str] | None = None,
    num_workers: int = 1,
    ray: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Indexed:
    """Index a folder of videos or a table of them, with the choices of earlier runs kept.

    See ``list_folder``, ``list_table`` and ``index_videos``. The manifest is written to
    ``directory``, by default beside the videos.
    """
    is_table = Path(source).suffix.lower() in TABLE_SUFFIXES or Path(source).is_file()
    beside = (videos or Path(source).parent) if is_table else source
    folder = Path(directory if directory is not None else beside)
    origin = os.path.relpath(Path(source).absolute(), folder.absolute())
    choices = replace(choices, source=origin).with_earlier(Choices.read(folder))
    val_share = 0.1 if choices.val_share is None else choices.val_share
    pattern = choices.group_pattern or None
    if is_table:
        listing = list_table(source, videos=videos, val_share=val_share, group_pattern=pattern)
    else:
        listing = list_folder(source, val_share=val_share, group_pattern=pattern)
    return index_videos(
        listing, folder, choices=choices, num_workers=num_workers, ray=ray, progress=progress
    )


def list_folder(
    root: str | os.PathLike[str], *, val_share: float = 0.1, group_pattern: str | None = None
) -> Listing:
    """The videos of a folder of class folders, with a ``metadata.csv``, or of WebDataset shards.

    Splits that the folder has are kept: folders ``train``, ``val`` and ``test``, a column of the
    table, names of the shards. Without them ``val_share`` of each class is for validation, and what
    ``group_pattern`` finds the same in the names stays on one side.

    Raises ValueError, saying what the folder holds, if it has none of these forms.
    """
    top = dataset_folder(root)
    splitting = Splitting(val_share, group_pattern)
    if is_prepared(top):
        raise ValueError(f"{top}: was written by `vcycle data prepare`; use its manifest as it is")
    tables = metadata_tables(top)
    if tables:
        return list_metadata(top, tables, splitting)
    listing = list_class_folders(top, splitting)
    if listing.entries:
        return listing
    shards = shards_under(top)
    if shards:
        return list_shards(top, shards, splitting)
    raise ValueError(f"{top}: {_what_is_there(top)}")


def _what_is_there(top: Path) -> str:
    """What a folder holds that cannot be indexed, and what to do."""
    videos = [path for path in videos_under(top) if path.suffix.lower() in VIDEO_SUFFIXES]
    files = [Path(name) for _, _, names in os.walk(top) for name in names if not is_hidden(name)]
    images = sum(file.suffix.lower() in IMAGE_SUFFIXES for file in files)
    if videos:
        return (
            f"holds {counted(len(videos), 'video')} but no folder of a class; put the videos of "
            "each class in a folder named after it, or use `vcycle data index table`"
        )
    if images:
        return (
            f"holds {counted(images, 'image')} and no video; a video kept as images is a folder of "
            "its own, as in CLASS/VIDEO/frame_0001.jpg"
        )
    if files:
        return (
            f"holds no video among {counted(len(files), 'file')}, such as {min(files).name!r}; "
            f"{READ_SUFFIXES}"
        )
    folders = sum(is_folder for is_folder in map(Path.is_dir, top.iterdir()))
    if folders:
        return (
            f"holds {counted(folders, 'folder')} and no file; put the videos of each class in the "
            f"folder that is named after it"
        )
    return "is empty; put the videos of each class in a folder named after it"
