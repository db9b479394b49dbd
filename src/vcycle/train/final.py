"""The evaluation that ends a run: the paper's own protocol for its recipes (section 4).

In: a run whose last step is done. Out: what ``result.json`` keeps of it beside the last validation;
``scores.csv`` is now its.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from vcycle.evaluate.evaluate import score_videos, summary
from vcycle.evaluate.intervals import intervals
from vcycle.evaluate.loaders import make_eval_loader
from vcycle.evaluate.metric_names import nonfinite_line
from vcycle.evaluate.scores_file import write_scores
from vcycle.train.activity import Activity
from vcycle.train.loop import share_bad_videos
from vcycle.train.start import Run


def final_evaluation(run: Run, activity: Activity) -> dict[str, Any] | None:
    """Score the validation videos by the views of ``config.final``; None if there is none.

    All processes call this. Returns the protocol, its views, and every metric with its interval.
    Raises TooManyBadVideos if they could not read more videos together than the run accepts.
    """
    config = run.config.final
    if config is None:
        return None
    activity.begin(f"final evaluation: {config.protocol}")
    with closing(make_eval_loader(config, run.val_videos, run.fabric)) as loader:
        scored = score_videos(run.validated, loader, run.val_videos, fabric=run.fabric)
        share_bad_videos(run, loader)
    if run.fabric.is_global_zero:
        write_scores(run.folder.path / "scores.csv", scored, run.val_videos)
    scores = summary(scored, run.val_videos)
    if line := nonfinite_line(scores):
        activity.say(f"warning: final evaluation: {line}")
    return {
        "protocol": config.protocol,
        "num_clips": config.evaluation.num_clips,
        "num_crops": config.evaluation.num_crops,
        "shape": str(config.baseline.shape),
        **scores,
        "intervals": intervals(scored),
    }
