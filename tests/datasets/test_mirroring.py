"""Class names that tell left from right, and those that only look so."""

from __future__ import annotations

import pytest

from vcycle.datasets.mirroring import names_of_sides


@pytest.mark.parametrize(
    "name",
    [
        *("left_serve", "serve-right", "turnLeft", "RIGHT TURN", "lefthand", "RightHanded swing"),
        *("Pulling something from left to right", "to the left", "step leftwards", "leftmost"),
        *("nach links", "rechts abbiegen", "linker Arm", "tourner à gauche", "a la derecha"),
        *("左に曲がる", "向右转", "왼손", "오른손", "顺时针", "逆時針", "反時計回り"),
        *("spin clockwise", "counter-clockwise", "anticlockwise", "counterclockwise spin"),
        *("rotate_cw", "rotate_ccw", "spinACW"),
    ],
)
def test_a_name_with_a_side(name):
    assert names_of_sides(["jump", name]) == [name]


@pytest.mark.parametrize(
    "name",
    ["bright", "腕時計を見る", "upright row", "eat leftovers", "alright", "playwright", "cleft"],
)
def test_a_name_without_a_side(name):
    assert names_of_sides(["jump", name]) == []


@pytest.mark.parametrize(
    "pair", [("kickleft", "kickright"), ("arm_L", "arm_R"), ("RH forehand", "LH forehand")]
)
def test_a_pair_of_opposites(pair):
    assert names_of_sides(["jump", *pair]) == [*pair]
    assert names_of_sides(["jump", pair[0]]) == []


def test_one_letter_is_a_side_only_beside_its_opposite():
    assert names_of_sides(["L", "B", "plan_b", "lay", "ray"]) == []
    assert names_of_sides(["L", "R"]) == ["L", "R"]
