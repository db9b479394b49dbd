"""A run of 300 videos, and what its steps take."""

from __future__ import annotations

from dataclasses import replace

from vcycle.config.run import Model
from vcycle.config.user_recipes import scratch
from vcycle.train.measure.timing import Kind, StepTimes

CONFIG = replace(scratch(num_videos=300), model=Model("resnet3d_tiny"))
PLAN = CONFIG.plan()
TIMES = StepTimes(
    model={Kind.of(each): 0.1 + 0.01 * k for k, each in enumerate(PLAN.mini_batches())},
    decode=dict.fromkeys(PLAN.shapes, 0.004),
    workers=2,
    view_seconds=0.01,
)
WITH_FINAL = replace(CONFIG, evaluation=replace(CONFIG.evaluation, final_clips=10, final_crops=3))
FINAL_SECONDS = 50 * 10 * 3 * 0.01
WITH_NORMS = replace(CONFIG, ema_decay=0.9, evaluation=replace(CONFIG.evaluation, precise_bn=20))
NORMS_SECONDS = 2 * 20 * CONFIG.baseline.batch_size * 0.01
