"""Policies that read as they are written, views of any origin, and the same bits in any batch."""

import multiprocessing
import pickle
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atta import calibrators
from atta._base.errors import InputError
from atta.data import transforms
from atta.data.draws import random_numbers
from atta.data.views import (
    PAPER_POLICIES,
    POLICIES,
    VIEWS,
    Policy,
    View,
    from_kornia,
    from_torchvision,
)

ALL = "flip + 2 crop + brightness + contrast + noise + blur + native-crop"


def photos(
    n: int = 256, shape: tuple[int, int, int] = (3, 10, 9), dtype: torch.dtype = torch.float32
) -> Tensor:
    return torch.rand(
        n, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).to(dtype)


def rendered(
    policy: str, images: Tensor, indices: Tensor, **settings
) -> dict[tuple[str, int], Tensor]:
    return {
        (kind, repeat): view
        for kind, repeat, view in Policy.parse(policy).render(images, indices, **settings)
    }


def assert_same_bits(
    some: dict[tuple[str, int], Tensor], others: dict[tuple[str, int], Tensor]
) -> None:
    assert list(some) == list(others)
    for key, view in some.items():
        assert torch.equal(view, others[key]), key


def joined(parts: list[dict[tuple[str, int], Tensor]]) -> dict[tuple[str, int], Tensor]:
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


def test_stratified_views_are_the_same_for_every_image_and_seed():
    images = photos(1).expand(5, -1, -1, -1)
    views = rendered(ALL, images, torch.tensor([4, 0, 99, 7, 2]), draws="stratified", seed=1)
    assert all(torch.equal(view, view[:1].expand_as(view)) for view in views.values())
    assert_same_bits(views, rendered(ALL, images, torch.arange(5), draws="stratified", seed=2))
    assert_same_bits(
        views, {key[:2]: key[2] for key in Policy.parse(ALL).render(images, draws="stratified")}
    )


@pytest.mark.parametrize("name", [name for name in VIEWS if VIEWS[name].random])
def test_one_and_two_stratified_repeats_of_a_view_show_something_new(name):
    images = photos(1, (3, 32, 32))
    (once,) = rendered(name, images, torch.arange(1), draws="stratified").values()
    first, second = rendered(f"2 {name}", images, torch.arange(1), draws="stratified").values()
    new = (once, first, second) if name not in ("brightness", "contrast") else (first, second)
    assert all(view.shape != images.shape or (view - images).abs().mean() > 0.01 for view in new)
    assert (first - second).abs().mean() > 0.01


def test_random_views_differ_between_images_repeats_and_seeds():
    images = photos(1).expand(2, -1, -1, -1)
    views = rendered("2 brightness + 2 noise", images, torch.tensor([0, 1]))
    other = rendered("2 brightness + 2 noise", images, torch.tensor([0, 1]), seed=1)
    for kind in ("brightness", "noise"):
        assert not torch.equal(views[kind, 0][0], views[kind, 0][1])
        assert not torch.equal(views[kind, 0], views[kind, 1])
        assert not torch.equal(views[kind, 0], other[kind, 0])


@pytest.mark.parametrize(
    ("draws", "dtype", "n"),
    [
        ("random", torch.float32, 256),
        ("random", torch.float64, 30),
        ("stratified", torch.float32, 30),
    ],
)
def test_batch_size_and_order_do_not_change_a_bit(draws, dtype, n):
    images, indices = photos(n, dtype=dtype), torch.arange(n)
    whole = rendered(ALL, images, indices, draws=draws)
    assert all(view.dtype == dtype for view in whole.values())
    for size in (1, 7):
        batches = zip(images.split(size), indices.split(size), strict=True)
        assert_same_bits(joined([rendered(ALL, *batch, draws=draws) for batch in batches]), whole)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(3))
    shuffled = rendered(ALL, images[order], indices[order], draws=draws)
    assert_same_bits(shuffled, {key: view[order] for key, view in whole.items()})


def worker(batch: tuple[Policy, list[int]]) -> bytes:
    policy, indices = batch
    return pickle.dumps([view.numpy() for *_, view in policy.render(photos(32)[indices], indices)])


def test_two_worker_processes_give_the_same_bits():
    policy = Policy.parse(ALL)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hypothesis", "torch"])  # once rather than in each worker
    with ProcessPoolExecutor(2, mp_context=context) as workers:
        halves = [
            pickle.loads(half)
            for half in workers.map(worker, [(policy, [*range(20)]), (policy, [*range(20, 32)])])
        ]
    whole = [view for *_, view in policy.render(photos(32), range(32))]
    for first, second, view in zip(*halves, whole, strict=True):
        assert torch.equal(torch.cat([torch.from_numpy(first), torch.from_numpy(second)]), view)


def test_the_global_generator_is_neither_read_nor_moved():
    torch.manual_seed(0)
    some = rendered(ALL, photos(3), torch.arange(3))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert_same_bits(rendered(ALL, photos(3), torch.arange(3)), some)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_repeat_is_the_same_in_every_policy_that_takes_it():
    few, many = (
        rendered(text, photos(4), torch.arange(4)) for text in ("2 crop", "flip + 5 crop + noise")
    )
    assert_same_bits(few, {key: many[key] for key in few})


def test_render_yields_each_view_with_the_numbers_drawn_for_it():
    images, indices = photos(4), torch.tensor([5, 3, 1000, 4])
    views = rendered("flip + 2 crop + contrast", images, indices, seed=9)
    assert list(views) == [("flip", 0), ("crop", 0), ("crop", 1), ("contrast", 0)]
    assert torch.equal(views["flip", 0], transforms.flip(images))
    u = random_numbers("crop", 2, indices, repeat=1, seed=9)
    assert torch.equal(views["crop", 1], transforms.crop(images, u))


def test_a_native_crop_has_fewer_pixels():
    (_, _, view), *_ = Policy.parse("native-crop").render(photos(2, (3, 32, 20)), [0, 1])
    assert view.shape == (2, 3, 26, 16)


BATCH = torch.export.Dim("batch", min=1)


def test_stratified_views_export_with_a_free_batch():
    class Views(torch.nn.Module):
        def forward(self, images: Tensor) -> list[Tensor]:
            return [
                view
                for *_, view in Policy.parse("flip + 2 crop + brightness").render(
                    images, draws="stratified"
                )
            ]

    program = torch.export.export(Views(), (photos(2),), dynamic_shapes=({0: BATCH},))
    for exported, eager in zip(program.module()(photos(5)), Views()(photos(5)), strict=True):
        torch.testing.assert_close(exported, eager)


class Shown(torch.nn.Module):
    """One view as a module, for the exporters."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self.view = view

    def forward(self, images: Tensor, u: Tensor) -> Tensor:
        return self.view(images, u)


def with_numbers(view: View, images: Tensor) -> tuple[Tensor, Tensor]:
    count = view.count(images)
    return images, random_numbers(view.name, max(1, count), torch.arange(images.shape[0]))


@pytest.mark.parametrize(
    "name", [name for name in VIEWS if name != "jpeg"]
)  # the longest goes on to ONNX, below
def test_every_view_exports_with_a_free_batch(name):
    view = VIEWS[name]
    program = torch.export.export(
        Shown(view),
        with_numbers(view, photos(2)),
        dynamic_shapes=({0: BATCH}, {0: BATCH}),
        strict=False,
    )
    for n in (1, 5):
        images, u = with_numbers(view, photos(n))
        torch.testing.assert_close(program.module()(images, u), view(images, u))


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
def test_jpeg_exports_to_onnx_with_a_free_batch(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    view = VIEWS["jpeg"]
    program = torch.onnx.export(
        Shown(view).eval(),
        with_numbers(view, photos(2)),
        dynamo=True,
        dynamic_shapes=({0: BATCH}, {0: BATCH}),
        input_names=["images", "u"],
        optimize=False,
        verbose=False,
    )
    program.save(tmp_path / "view.onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(
        tmp_path / "view.onnx", options, providers=["CPUExecutionProvider"]
    )
    images, u = with_numbers(view, photos(5))
    (shown,) = session.run(None, {"images": images.numpy(), "u": u.numpy()})
    torch.testing.assert_close(torch.from_numpy(shown), view(images, u), atol=1e-5, rtol=0)


def test_the_papers_policies_are_those_of_its_table():
    table = {
        "aug1": {"flip": 1, "crop": 5},
        "aug2": {"flip": 1, "brightness": 5},
        "aug3": {"crop": 5, "brightness": 5},
        "aug4": {"flip": 1, "crop": 5, "brightness": 5},
        "aug5": {"flip": 1, "crop": 5, "contrast": 5},
        "aug6": {"flip": 1, "brightness": 5, "contrast": 5},
        "aug7": {"crop": 5, "brightness": 5, "contrast": 5},
        "aug8": {"flip": 1, "crop": 5, "brightness": 5, "contrast": 5},
    }
    assert {name: POLICIES[name].repeats for name in PAPER_POLICIES} == table


def test_the_eighth_policy_serves_all_eight_in_17_passes_rather_than_94():
    assert Policy.union(*PAPER_POLICIES) == POLICIES["aug8"]
    assert POLICIES["aug8"].passes == 17
    assert sum(POLICIES[name].passes for name in PAPER_POLICIES) == 94


@pytest.mark.parametrize("name", sorted({*POLICIES} - {*PAPER_POLICIES}))
def test_the_name_of_any_other_policy_ends_in_its_passes(name):
    assert POLICIES[name].passes == int(name.rsplit("-", 1)[1])


def test_no_view_and_policy_share_a_name():
    assert not VIEWS.keys() & POLICIES.keys()


def test_a_policy_says_what_it_holds():
    policy = Policy.parse("flip + 5 crop + brightness")
    assert policy.kinds == ("flip", "crop", "brightness")
    assert policy.repeats == {"flip": 1, "crop": 5, "brightness": 1}
    assert policy.passes == 8


counts = st.dictionaries(st.sampled_from(sorted(VIEWS)), st.integers(1, 99), min_size=1)


def policy_of(counts: dict[str, int]) -> Policy:
    return Policy(
        tuple((VIEWS[name], count if VIEWS[name].random else 1) for name, count in counts.items())
    )


@settings(max_examples=40, deadline=None)
@given(counts=counts)
def test_a_policy_reads_as_it_is_written(counts):
    policy = policy_of(counts)
    assert Policy.parse(str(policy)) == policy
    assert Policy.parse(policy) is policy


@settings(max_examples=40, deadline=None)
@given(some=counts, other=counts)
def test_a_union_takes_the_most_repeats_of_each_view(some, other):
    some, other = policy_of(some), policy_of(other)
    union = Policy.union(some, other)
    for kind in {*some.kinds, *other.kinds}:
        assert union.repeats[kind] == max(some.repeats.get(kind, 0), other.repeats.get(kind, 0))
    assert Policy.union(union, some) == union
    assert union.repeats == Policy.union(other, some).repeats


@pytest.mark.parametrize(
    "text",
    [
        "flip+5crop",
        " flip  +  5  crop ",
        "1 flip + 5 x crop",
        "flip + 5x crop",
        "flip + 5*crop",
        "flip + 5 × crop",
    ],
)
def test_spaces_and_signs_of_multiplication_do_not_matter(text):
    assert Policy.parse(text) == POLICIES["aug1"]


def test_a_policy_goes_by_its_name():
    assert Policy.parse(" aug8 ") is POLICIES["aug8"]


def test_policies_survive_pickling():
    policy = Policy.parse(ALL)
    assert pickle.loads(pickle.dumps(policy)) == policy


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "A policy: expected at least one view, such as 'flip + 5 crop', got none."),
        ("   ", "A policy: expected at least one view, such as 'flip + 5 crop', got none."),
        (
            "flip + 5 crpo",
            "A view or a policy: expected a known name, got 'crpo'. Did you mean 'crop'?",
        ),
        (
            "blurred",
            "A view or a policy: expected a known name, got 'blurred'. Did you mean 'blur'?",
        ),
        (
            "quux",
            "got 'quux'.\nViews: flip, crop, brightness, contrast, noise, blur, native-crop, shift,",
        ),
        ("quux", "\nPolicies: aug1, aug2, aug3, aug4, aug5, aug6, aug7, aug8, flip-2,"),
        ("Flip", "got 'Flip'. Did you mean 'flip'"),
        ("aug9", "got 'aug9'. Did you mean 'aug8'?"),
        (
            "flip-2 + crop",
            "A term of a policy: expected a view, got the policy 'flip-2'. Use it alone, or write its views out: 'flip'.",
        ),
        ("0 crop", "Repeats of 'crop': expected 1 or more, got 0."),
        ("-3 crop", "Repeats of 'crop': expected 1 or more, got -3."),
        ("99999999 crop", "Repeats of 'crop': expected 1000 or fewer, got 99999999."),
        ("9" * 5000 + " crop", "such as '5 crop', got '999"),
        (
            "crop + 2 crop",
            "expected each view once, with its repeats in front, got 'crop' 2 times in 'crop + 2 crop'.",
        ),
        (
            "5 flip",
            "Repeats of 'flip': expected 1, since this view is not random and every repeat would be the same, got 5.",
        ),
        (
            "2.5 crop",
            "A term of a policy: expected a view or a count and a view, such as '5 crop', got '2.5 crop'.",
        ),
        ("flip + + crop", "such as '5 crop', got ' '."),
        ("flip, crop", "such as '5 crop', got 'flip, crop'."),
    ],
)
def test_a_policy_that_cannot_be_read_says_why(text, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        Policy.parse(text)


def test_two_views_of_one_name_do_not_merge():
    mine, yours = (Policy(((View("wobble", fn), 1),)) for fn in (torch.neg, torch.abs))
    with pytest.raises(
        InputError, match="expected one view named 'wobble', got two different ones"
    ):
        Policy.union(mine, yours)


@pytest.mark.parametrize(
    ("images", "indices", "settings", "sentence"),
    [
        (
            torch.zeros(2, 3, 8, 8, dtype=torch.uint8),
            [0, 1],
            {},
            "expected floats in [0, 1] of shape (n, c, h, w), got (2, 3, 8, 8) of torch.uint8",
        ),
        (torch.zeros(3, 8, 8), [0], {}, "of shape (n, c, h, w), got (3, 8, 8) of torch.float32."),
        (
            torch.zeros(2, 3, 8, 8),
            [0],
            {},
            "indices: expected 2 whole numbers, one per image, got (1,) of torch.int64.",
        ),
        (
            torch.zeros(2, 3, 8, 8),
            torch.tensor([0.0, 1.0]),
            {},
            "indices: expected 2 whole numbers, one per image, got (2,) of torch.float32.",
        ),
        (
            torch.zeros(2, 3, 8, 8),
            None,
            {},
            "indices: expected each image's position, for random draws, got None.",
        ),
        (
            torch.zeros(2, 3, 8, 8),
            [0, 1],
            {"draws": "sobol"},
            "draws: expected 'random' or 'stratified', got 'sobol'.",
        ),
    ],
)
def test_input_that_cannot_be_rendered_says_why(images, indices, settings, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        list(POLICIES["aug1"].render(images, indices, **settings))


def darken(images: Tensor) -> Tensor:
    return images / 2


def mix(images: Tensor, u: Tensor) -> Tensor:
    return images * u[:, :1, None, None] + (1 - images) * u[:, 1:, None, None] / 2


def test_any_function_of_a_batch_is_a_view():
    darker = View.of("darken", darken)
    assert not darker.random
    assert darker == View("darken", darken)
    policy = Policy.parse("darken + 2 crop", views={"darken": darker})
    assert torch.equal(rendered_by(policy)["darken", 0], photos(4) / 2)


def rendered_by(policy: Policy, **settings) -> dict[tuple[str, int], Tensor]:
    return {
        (kind, repeat): view
        for kind, repeat, view in policy.render(photos(4), range(4), **settings)
    }


def test_a_function_of_images_and_numbers_is_a_random_view():
    mixed = View("mix", mix, numbers=2)
    assert mixed.random
    views = rendered_by(Policy.parse("3 mix", views={"mix": mixed}), seed=5)
    for repeat in range(3):
        u = random_numbers("mix", 2, torch.arange(4), repeat=repeat, seed=5)
        assert torch.equal(views["mix", repeat], mix(photos(4), u))


def test_the_count_of_numbers_may_follow_the_shape():
    rows = View("rows", lambda images, u: images * u[:, None, :, None], numbers=lambda c, h, w: h)
    assert rows.random
    shown = rendered_by(Policy(((rows, 1),)))["rows", 0]
    assert torch.equal(
        shown, photos(4) * random_numbers("rows", 10, torch.arange(4))[:, None, :, None]
    )


@pytest.mark.parametrize(
    ("transform", "got"),
    [
        (lambda images: images[:2], "(2, 3, 10, 9) of torch.float32"),
        (lambda images: images[:, :1], "(4, 1, 10, 9) of torch.float32"),
        (lambda images: images.flatten(2), "(4, 3, 90) of torch.float32"),
        (lambda images: images.double(), "(4, 3, 10, 9) of torch.float64"),
        (lambda images: (images * 255).byte(), "(4, 3, 10, 9) of torch.uint8"),
        (lambda images: images.numpy(), "ndarray"),
        (lambda images: None, "NoneType"),
    ],
)
def test_a_view_that_returns_something_else_is_named(transform, got):
    sentence = f"View 'odd': expected images of shape (4, 3, h, w) of torch.float32, got {got}."
    with pytest.raises(InputError, match=re.escape(sentence)):
        View("odd", transform)(photos(4))


def test_a_view_that_is_given_too_few_numbers_says_so():
    with pytest.raises(InputError, match=r"View 'crop': expected 2 numbers per image, got none\."):
        VIEWS["crop"](photos(4))
    with pytest.raises(InputError, match=r"View 'noise': expected 273 numbers per image, got 2\."):
        VIEWS["noise"](photos(4), torch.zeros(4, 2))


@pytest.mark.parametrize("name", ["", "two words", "a+b", "5crop", "-x"])
def test_a_name_that_a_policy_could_not_hold_is_refused(name):
    with pytest.raises(InputError, match=re.escape(f"letters, digits, '-' or '_', got {name!r}.")):
        View(name, darken)


def test_a_negative_count_of_numbers_is_refused():
    with pytest.raises(
        InputError, match=r"View 'mix': expected 0 or more numbers per image, got -1\."
    ):
        View("mix", mix, numbers=-1)


def test_a_view_goes_by_its_own_name():
    with pytest.raises(
        InputError, match="expected each view under its own name, got 'darken' under 'dim'"
    ):
        Policy.parse("dim", views={"dim": View("darken", darken)})


@pytest.mark.parametrize("name", ["crop", "aug1"])
def test_a_name_that_is_taken_is_refused(name):
    with pytest.raises(InputError, match=f"expected a new name, but atta has another {name!r}"):
        Policy.parse(name, views={name: View(name, darken)})


def jitter(images: Tensor) -> Tensor:
    """Draws from torch's global generator, as kornia and torchvision do; works on one image and on a batch."""
    return images * torch.empty(1).uniform_(0.5, 2.0) + 0.1 * torch.randn_like(images)


def odd_size(image: Tensor) -> Tensor:
    return image[..., : int(torch.randint(1, 9, (1,)))]


adapters = pytest.mark.parametrize("adapt", [from_kornia, from_torchvision])


@adapters
def test_a_transform_of_the_global_generator_becomes_a_function_of_its_numbers(adapt):
    view = adapt("jitter", jitter)
    u = random_numbers("jitter", 2, torch.arange(8))
    shown = view(photos(8), u)
    torch.manual_seed(123)
    assert torch.equal(view(photos(8), u), shown)
    assert torch.equal(
        torch.cat([view(photos(8)[i : i + 1], u[i : i + 1]) for i in range(8)]), shown
    )
    assert 0 <= shown.min() <= shown.max() <= 1
    gains = view(torch.full((8, 1, 10, 9), 0.3), u).mean((1, 2, 3))
    assert gains.unique().numel() == 8


@adapters
def test_the_global_generator_is_put_back_even_after_an_error(adapt):
    def broken(images: Tensor) -> Tensor:
        torch.rand(3)
        raise RuntimeError("broken")

    u = random_numbers("jitter", 2, torch.arange(2))
    before = torch.get_rng_state()
    adapt("jitter", jitter)(photos(2), u)
    with pytest.raises(RuntimeError, match="broken"):
        adapt("broken", broken)(photos(2), u)
    assert torch.equal(torch.get_rng_state(), before)


@adapters
def test_stratified_repeats_of_an_adapted_view_differ_from_each_other(adapt):
    policy = Policy.parse("5 jitter", views={"jitter": adapt("jitter", jitter)})
    views = rendered_by(policy, draws="stratified")
    assert len({view.mean().item() for view in views.values()}) == 5


def test_images_of_different_sizes_are_refused():
    with pytest.raises(InputError, match="expected one shape for all images of a batch"):
        from_torchvision("odd", odd_size)(photos(8), random_numbers("odd", 2, torch.arange(8)))


def test_kornia_augmentations_are_views():
    kornia = pytest.importorskip("kornia.augmentation", exc_type=ImportError)
    augmentation = kornia.AugmentationSequential(
        kornia.RandomAffine(degrees=20.0, p=1.0), kornia.ColorJiggle(0.2, 0.2, 0.2, 0.1, p=1.0)
    )
    assert_pure(from_kornia("affine", augmentation))


def test_torchvision_transforms_are_views():
    v2 = pytest.importorskip("torchvision.transforms.v2")
    transform = v2.Compose(
        [v2.RandomResizedCrop(16, antialias=True), v2.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    )
    assert_pure(from_torchvision("zoom", transform))


def assert_pure(view: View) -> None:
    images, indices = photos(6, (3, 16, 16)), torch.arange(6)
    policy = Policy.parse(f"3 {view.name}", views={view.name: view})
    whole = {key[:2]: key[2] for key in policy.render(images, indices)}
    single = [
        {key[:2]: key[2] for key in policy.render(images[i : i + 1], indices[i : i + 1])}
        for i in reversed(range(6))
    ]
    assert_same_bits(joined(single[::-1]), whole)
    assert all(
        view.shape == images.shape and not torch.equal(view, images) for view in whole.values()
    )
    assert not torch.equal(whole[view.name, 0], whole[view.name, 1])


PAGE = Path(__file__).parents[2] / "docs" / "extend.md"


EXAMPLES = [
    (
        section.splitlines()[0],
        re.findall(r"(?:<!-- needs: (\w+) -->\n)?```python\n(.*?)```", section, re.DOTALL),
    )
    for section in re.split(r"^##+ ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
]


@pytest.mark.parametrize(
    "examples", [pytest.param(found, id=title) for title, found in EXAMPLES if found]
)
def test_the_examples_of_the_page_on_extending_run(examples, tmp_path, monkeypatch, few_resamples):
    monkeypatch.chdir(tmp_path)
    for table in ("METHODS", "CALIBRATORS"):  # an example adds to them
        monkeypatch.setattr(calibrators, table, dict(getattr(calibrators, table)))
    for library, _ in examples:
        if library:
            pytest.importorskip(library, exc_type=ImportError)
    names = {"__name__": "__main__"}  # dataclasses look up the module that they are in
    for _, example in examples:
        exec(compile(example, str(PAGE), "exec"), names)


def test_the_guide_lists_every_policy_but_the_papers_and_method_every_view():
    guide = (PAGE.parent / "guide.md").read_text()
    table = guide.split("| policy | views | meant for |")[1].split("\n\n")[0]
    listed = dict(re.findall(r"^\| `([\w-]+)` \| (.+?) \|", table, re.MULTILINE))
    assert listed == {
        name: str(policy) for name, policy in POLICIES.items() if name not in PAPER_POLICIES
    }
    rows = re.findall(
        r"^\| ([a-z][\w, -]*) \|", (PAGE.parent / "method.md").read_text(), re.MULTILINE
    )
    assert VIEWS.keys() - {"native-crop"} <= {name for row in rows for name in row.split(", ")}


class Library:
    """Stands for a transform of another library, which is told by the module of its class."""

    def __init__(self, function):
        self.function = function

    def __call__(self, images):
        return self.function(images)


@pytest.mark.parametrize("module", ["kornia.augmentation", "torchvision.transforms.v2"])
def test_a_transform_of_another_library_is_a_policy(module, monkeypatch):
    monkeypatch.setattr(Library, "__module__", module)
    for thing in (
        Library(jitter),
        [Library(jitter)],
        [(Library(jitter), 1)],
        [(1, Library(jitter))],
    ):
        policy = Policy.parse(thing)
        assert (str(policy), policy.passes) == ("Library", 2)
        assert len(rendered_by(policy, draws="stratified")) == 1
    assert (
        str(Policy.parse([(3, Library(jitter)), "flip", "2 crop"])) == "3 Library + flip + 2 crop"
    )


def test_an_albumentations_transform_is_a_policy_and_seeded():
    class Rotate:
        __module__ = "albumentations.augmentations"

        def set_random_seed(self, seed):
            self.generator = torch.Generator().manual_seed(seed)

        def __call__(self, *, image):
            return {"image": image * torch.rand((), generator=self.generator).item()}

    assert_pure(Policy.parse(Rotate()).terms[0][0])


def test_an_albumentations_augmentation_is_a_view():
    albumentations = pytest.importorskip("albumentations")
    turned = albumentations.Compose(
        [albumentations.Affine(rotate=(5, 30), p=1.0), albumentations.RandomGamma(p=1.0)]
    )
    policy = Policy.parse([(3, turned)])
    assert policy.passes == 4
    assert_pure(policy.terms[0][0])


@pytest.mark.parametrize("thing", [3.5, [3], [("flip", "crop")], len, [(2, 3)], None])
def test_what_is_no_view_is_refused(thing):
    with pytest.raises(
        InputError,
        match=r"A view: expected a name of atta.VIEWS, an atta.View, or a transform of kornia",
    ):
        Policy.parse(thing)


def test_a_policy_shows_itself_in_a_notebook():
    assert "4 passes per image" in Policy.parse("flip + 2 crop")._repr_html_()
