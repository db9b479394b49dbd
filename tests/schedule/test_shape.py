import pytest

from vcycle.schedule.shape import Shape, round_half_up, stride_range


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("16x224x224", Shape(16, 224, 224)),
        ("16x224", Shape(16, 224, 224)),
        ("1X90x160", Shape(1, 90, 160)),
    ],
)
def test_parse(text: str, shape: Shape) -> None:
    assert Shape.parse(text) == shape
    assert Shape.parse(str(shape)) == shape


@pytest.mark.parametrize("text", ["", "16", "16x", "axbxc", "1x2x3x4", "8x-1x4", "8x1.5x4"])
def test_text_that_is_no_shape(text: str) -> None:
    with pytest.raises(ValueError, match="write frames x height x width") as error:
        Shape.parse(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("sizes", [(0, 4, 4), (4, -1, 4), (4, 4, 2.5), (8.0, 4, 4)])
def test_sizes_are_whole_and_positive(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="give a whole number of at least 1"):
        Shape(*sizes)


def test_a_clip_is_one_that_memory_may_hold() -> None:
    assert Shape(128, 1080, 1920).num_pixels < 2**28
    with pytest.raises(ValueError, match=r"^shape 8x9600x9600: a clip of 737,280,000 pixels; give"):
        Shape(8, 9600, 9600)


def test_num_pixels() -> None:
    assert Shape(4, 90, 160).num_pixels == 4 * 90 * 160


@pytest.mark.parametrize(
    ("stride", "frames", "expected"),
    [(2, 32, (2, 2)), (2, 16, (2, 4)), (2, 8, (2, 8)), (3, 20, (3, 4)), (2, 64, (2, 2))],
)
def test_the_stride_range_of_a_32_frame_model(
    stride: int, frames: int, expected: tuple[int, int]
) -> None:
    """[stride, stride * T / t] of the paper's section 4, rounded down, by hand."""
    assert stride_range(stride, base_frames=32, frames=frames) == expected


def test_a_half_just_below_one_in_floating_point_is_rounded_up() -> None:
    assert 0.145 * 100 < 14.5
    assert round_half_up(0.145 * 100) == 15
    assert round_half_up(14.49) == 14
