"""What every command that runs a model builds first: the manifest and the network.

In: a RunConfig. Out: the Manifest checked against it, and the network with sub-batch norm and the
weights that it starts from.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from vcycle.config.pretrained import check_weights
from vcycle.config.run import RunConfig
from vcycle.data.decode.remote import check_store
from vcycle.data.manifest import Manifest
from vcycle.devices.fabric import Fabric
from vcycle.evaluate.checkpoint import find_trained_model
from vcycle.evaluate.run_manifest import kept_manifest
from vcycle.models import (
    SubBatchNorm3d,
    build_model,
    convert_batch_norm,
    convert_convolutions,
    convert_dropout,
    defer_statistics,
    load_weights,
    to_channels_last,
)


def read_manifest(config: RunConfig, run: Path | None = None) -> Manifest:
    """The manifest of a configuration; as it was when ``run`` began, if that folder keeps it.

    Raises ValueError if none is given, it is not enough to train on, or a store of its videos
    cannot be read.
    """
    file = config.data.given_manifest()
    kept = None if run is None else kept_manifest(run, file)
    manifest = Manifest.read(file) if kept is None else kept
    manifest.check_classes()
    some = manifest.videos[:: max(1, len(manifest) // 20)]
    places = [manifest.locate(video) for video in some]
    if all(place.is_local and not Path(place.uri).exists() for place in places):
        raise ValueError(
            f"manifest in {manifest.root}: its videos are not there ({places[0].uri}); move them "
            f"back, or index them where they are"
        )
    stores = {urlsplit(place.uri)[:2]: place for place in places if not place.is_local}
    for place in stores.values():
        check_store(place)
    return manifest


def _are_of(weights: Path, videos: Manifest) -> bool:
    """Whether weights are of the classes of ``videos``, or do not say of which."""
    trained = find_trained_model(weights) if weights.is_file() else None
    if trained is None:
        return True
    of_weights = trained.classes, trained.multi_label
    return of_weights == (videos.classes, videos.multi_label)


def make_network(
    config: RunConfig,
    *,
    num_classes: int,
    fabric: Fabric,
    fresh: bool = True,
    videos: Manifest | None = None,
) -> nn.Module:
    """The network with our layers in place of torch's and with its first weights, on the CPU.

    Norms are by group, dropout by clip, and convolutions take short clips.

    With ``fresh`` False, no pre-trained weights are read: a checkpoint replaces them at once. Their
    classifier is left out if they say that it is of other classes than those of ``videos``.
    Raises ValueError if the configuration asks for pre-trained weights and names no file of them.
    """
    if fresh:
        check_weights(config)
    torch.manual_seed(config.seed)
    network = build_model(config.model.name, num_classes=num_classes, **config.model.options)
    network = convert_convolutions(convert_dropout(convert_batch_norm(network)))
    if fresh and (weights := config.model.weights) is not None:
        keeps = videos is None or _are_of(Path(weights), videos)
        report = load_weights(network, weights, num_classes=num_classes, keep_classifier=keeps)
        fabric.print(report)
    others = sum(
        isinstance(module, _BatchNorm) and not isinstance(module, SubBatchNorm3d)
        for module in network.modules()
    )
    if others:
        fabric.print(
            f"{config.model.name}: {others} batch norms are no nn.BatchNorm3d and keep taking "
            f"their statistics from whole batches, not from norm groups"
        )
    # On a GPU it also takes fewer kernels to move the statistics of all layers at once.
    parts = fabric.world_size * config.micro_batches
    if parts > 1 or config.accumulate == "auto" or fabric.device.type != "cpu":
        defer_statistics(network)
    if config.channels_last:
        to_channels_last(network)
    return network
