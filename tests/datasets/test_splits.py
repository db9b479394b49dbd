"""Splits by class and by group: what holds for any videos, and what is wrong with a pattern."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
from hypothesis import given, strategies as st

from vcycle.datasets.splits import Splitting, groups_by_pattern, repaired_splits, split_videos

shares = st.sampled_from([0.01, 0.1, 0.25, 0.5, 0.9])
sizes = st.lists(st.integers(1, 40), min_size=1, max_size=8)  # of classes


def sides_of(labels, groups, splits):
    """The groups of each class on each side."""
    found = defaultdict(lambda: {"train": set(), "val": set()})
    for video_labels, group, split in zip(labels, groups, splits, strict=True):
        for label in video_labels or (None,):  # videos without labels are split alike
            found[label][split].add(group)
    return found


@given(sizes, shares)
def test_each_class_is_on_both_sides_near_its_share(sizes, share):
    labels = [(label,) for label, size in enumerate(sizes) for _ in range(size)]
    names = [f"{label}/{k}" for k, (label,) in enumerate(labels)]
    splits = split_videos(labels, names, val_share=share)
    for label, size in enumerate(sizes):
        num_val = sum(s == "val" and x == (label,) for s, x in zip(splits, labels, strict=True))
        if size == 1:
            assert num_val == 0
        else:
            assert 1 <= num_val <= size - 1
            nearest = min(max(share * size, 1), size - 1)
            assert abs(num_val - nearest) <= 0.5 + 1e-9


videos = st.lists(
    st.tuples(st.lists(st.integers(0, 5), max_size=3), st.sampled_from("abcdefgh")),
    min_size=1,
    max_size=60,
)


@given(videos, shares, st.randoms(use_true_random=False))
def test_groups_are_never_split_and_the_order_does_not_matter(videos, share, random):
    labels, groups = [tuple(x) for x, _ in videos], [group for _, group in videos]
    splits = split_videos(labels, groups, val_share=share)
    by_group = dict(zip(groups, splits, strict=True))
    assert [by_group[group] for group in groups] == splits
    random.shuffle(videos)
    shuffled = split_videos([tuple(x) for x, _ in videos], [g for _, g in videos], val_share=share)
    assert [by_group[group] for _, group in videos] == shuffled


def num_one_sided(labels, groups, splits):
    found = sides_of(labels, groups, splits).values()
    return sum(
        len(sides["train"] | sides["val"]) > 1 and not (sides["train"] and sides["val"])
        for sides in found
    )


@given(videos, shares)
def test_no_group_could_move_so_that_fewer_classes_lack_a_side(videos, share):
    labels, groups = [tuple(x) for x, _ in videos], [group for _, group in videos]
    splits = split_videos(labels, groups, val_share=share)
    left = num_one_sided(labels, groups, splits)
    other = {"train": "val", "val": "train"}
    for moved in set(groups):
        changed = [other[s] if g == moved else s for g, s in zip(groups, splits, strict=True)]
        assert num_one_sided(labels, groups, changed) >= left


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(1, 9))), shares)
def test_groups_of_one_class_leave_no_class_on_one_side(rows, share):
    labels = [(label,) for label, _, count in rows for _ in range(count)]
    groups = [f"{label}-{group}" for label, group, count in rows for _ in range(count)]
    assert num_one_sided(labels, groups, split_videos(labels, groups, val_share=share)) == 0


@given(st.integers(2, 30), st.integers(1, 5), st.integers(1, 6), shares)
def test_persons_who_do_everything_are_split_near_the_share(persons, classes, repeats, share):
    rows = [(c, p) for p in range(persons) for c in range(classes) for _ in range(repeats)]
    splits = split_videos([(c,) for c, _ in rows], [f"p{p}" for _, p in rows], val_share=share)
    val_persons = len({p for (_, p), split in zip(rows, splits, strict=True) if split == "val"})
    assert 1 <= val_persons <= persons - 1
    assert abs(val_persons - share * persons) <= 1


def test_a_new_video_moves_at_most_one_other():
    labels, names = [(0,)] * 40, [f"run/{k}" for k in range(40)]
    before = dict(zip(names, split_videos(labels, names, val_share=0.25), strict=True))
    names = [*names, "run/new"]
    after = dict(zip(names, split_videos([*labels, (0,)], names, val_share=0.25), strict=True))
    assert sum(before[name] != after[name] for name in before) <= 1


def test_shares_that_leave_a_side_empty():
    assert split_videos([(0,)] * 3, ["a", "b", "c"], val_share=0) == ["train"] * 3
    assert split_videos([(0,)] * 3, ["a", "b", "c"], val_share=1) == ["val"] * 3
    for share in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match=f"val_share {share}: give a share from 0 to 1"):
            Splitting(share)


@pytest.mark.parametrize(("share", "side"), [(0, "train"), (1, "val")])
def test_videos_all_of_one_side_have_no_group(share, side):
    assert Splitting(share).divide(["a", "b"], [(0,), (0,)], ["p", "q"]) == [(side, None)] * 2


def test_some_of_train_is_for_validation_by_its_own_groups():
    splits = ["test", *["train"] * 4, "test"]
    names, labels = [f"{k}.mp4" for k in range(6)], [(0,)] * 6
    groups = ["p", "q", "q", "r", "r", "s"]
    found, _ = Splitting(0.5).with_val(splits, names, labels, groups, reason="x")
    assert [group for _, group in found] == [None, "q", "q", "r", "r", None]
    assert dict(found[1:5]).keys() == {"train", "val"}
    assert len(set(found[1:5])) == 2  # no group is on both sides


@pytest.mark.parametrize("pattern", ["(g", "g[0-9]"])
def test_a_wrong_pattern_is_refused_where_none_is_needed(pattern):
    with pytest.raises(ValueError, match=re.escape(f"group_pattern {pattern!r}")):
        Splitting(group_pattern=pattern)


def test_a_pattern_names_the_group():
    names = ["run/v_run_g01_c01.mp4", "sit/v_sit_g01_c02.mp4", "sit/v_sit_g02_c01.mp4", "sit/x.mp4"]
    assert groups_by_pattern(names, "_(g[0-9]+)_") == ["g01", "g01", "g02", "/sit/x.mp4"]
    assert groups_by_pattern(names, "_(c)?(?P<group>g[0-9]+)_")[:2] == ["g01", "g01"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(g", "group_pattern '(g': is not a regular expression (missing ), unterminated"),
        ("g[0-9]", "group_pattern 'g[0-9]': has no group; put what names the person"),
        ("(person)", "group_pattern '(person)': matches no name such as 'run/a.mp4'"),
    ],
)
def test_a_pattern_that_gives_no_groups(pattern, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        groups_by_pattern(["run/a.mp4"], pattern)


@pytest.mark.parametrize("names", [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")])
def test_the_smallest_group_changes_sides_when_a_class_has_lost_its_validation(names):
    groups = [name for name, size in zip(names, (20, 4, 1), strict=True) for _ in range(size)]
    splits = repaired_splits([(0,)] * 25, groups, ["train"] * 25)
    assert splits == ["train"] * 24 + ["val"]
