"""Views and policies: which changed versions of an image are shown to the network.

A `View` is a name and a function of pixels and given numbers (`transforms`, `draws`). A `Policy`
says how often each view is taken. `VIEWS` and `POLICIES` hold those of the package by name.

>>> import torch
>>> policy = Policy.parse("flip + 2 crop")
>>> for view, repeat, images in policy.render(torch.rand(4, 3, 32, 32), range(4)):
...     print(view, repeat, tuple(images.shape))
flip 0 (4, 3, 32, 32)
crop 0 (4, 3, 32, 32)
crop 1 (4, 3, 32, 32)
>>> POLICIES["shift-mix-4"].passes, "rotate" in VIEWS, PAPER_POLICIES[0]
(4, True, 'aug1')
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from atta._base.display import html_table
from atta._base.errors import InputError, suggest
from atta._base.settings import shown as quoted
from atta._base.types import Images
from atta.data import photographs, transforms
from atta.data.draws import random_numbers, stratified_numbers
from atta.data.photographs import Sheet, Terms
from atta.data.transforms import Numbers, Resized

REHEARSAL = "rehearse-"
"""Prefix of the names of rehearsals: corrupted images recorded for fits, never blended."""
MAX_REPEATS = 1000
"""Largest number of repeats of a view: more is most likely a typing error."""
_NAME = r"[A-Za-z][\w-]*"
Count: TypeAlias = int | Callable[[int, int, int], int]
"""How many numbers an image needs: a number, or a function of channels, height and width."""

# ------------------------------------------------------------------------------------------- views


@dataclass(frozen=True)
class View:
    """A named function that shows images in another way.

    Use it to bring an augmentation of your own: `View.of` for a plain function, `View(...)` for a
    function that needs random numbers. `Policy.parse(..., views={name: view})` then accepts it.

    The function takes pixels in [0, 1] of shape (n, c, h, w), and `u` of shape (n, numbers) in
    float32 if it needs numbers. It returns as many images of the same channels and dtype. Values
    outside of [0, 1] are clipped. Height and width may change.

    Args:
        name: A letter, then letters, digits, `-` or `_`.
        transform: `transform(images)`, or `transform(images, u)` where `numbers` is not 0.
        numbers: Uniform numbers per image: a count, or a function of channels, height and width.
        stratified: Whether stratified draws apply. False always draws by seed and image index.
        inverse: For segmentation: maps what a network answers to the view, (n, k, h, w), back to
            the image. `lambda answer: answer` for a view that moves no pixel.
        photograph: Whether it is one of `PHOTOGRAPH_VIEWS`, which `Preprocess` makes.

    Raises:
        InputError: The name or the count cannot be used.

    >>> darker = View("darker", lambda images, u: images * u[..., None, None], numbers=1)
    >>> darker(torch.ones(2, 1, 2, 2), torch.tensor([[0.25], [0.5]]))[:, 0, 0, 0]
    tensor([0.2500, 0.5000])
    """

    name: str
    transform: Callable[..., Tensor]
    numbers: Count = 0
    stratified: bool = True
    inverse: Callable[[Tensor], Tensor] | None = field(default=None, repr=False, compare=False)
    photograph: bool = False
    random: bool = field(init=False, repr=False, compare=False)
    """Whether the view needs numbers. A view that does not is worth one repeat."""
    own: bool = field(init=False, repr=False, compare=False)
    """Whether the view is one of `VIEWS`, which treat each image alone and stay in [0, 1]."""

    def __post_init__(self) -> None:
        if not re.fullmatch(_NAME, self.name):
            raise InputError(
                "The name of a view: expected a letter, then letters, digits, '-' or '_', got "
                f"{self.name!r}."
            )
        if isinstance(self.numbers, int) and self.numbers < 0:
            raise InputError(
                f"View {self.name!r}: expected 0 or more numbers per image, got {self.numbers}."
            )
        known = _FUNCTIONS.get(self.name) == (self.transform, self.numbers)
        own = self.photograph or (self.stratified and known)
        self.__dict__.update(random=self.numbers != 0, own=own)

    @classmethod
    def of(cls, name: str, transform: Callable[[Images], Tensor]) -> "View":
        """Make a view without random numbers from a function of a batch of images.

        Args:
            name: A letter, then letters, digits, `-` or `_`.
            transform: Takes and returns pixels in [0, 1] of shape (n, c, h, w).

        Returns:
            The view; a policy takes it once, since every repeat would be the same.

        >>> View.of("negative", lambda images: 1 - images)(torch.zeros(1, 1, 1, 2))
        tensor([[[[1., 1.]]]])
        """
        return cls(name, transform)

    def count(self, images: Images) -> int:
        """Return how many numbers the view needs for each of these images."""
        return self.numbers if isinstance(self.numbers, int) else self.numbers(*images.shape[1:])

    def __call__(self, images: Images, u: Numbers | None = None) -> Resized:
        """Show the images.

        Args:
            images: Pixels in [0, 1] of shape (n, c, h, w).
            u: `count(images)` uniform numbers per image; not needed by a view without numbers.

        Returns:
            As many images of the same channels and dtype, clipped to [0, 1].

        Raises:
            InputError: There are too few numbers, or the transform returns something else.
        """
        n, c, *_ = images.shape
        if self.random and (u is None or u.shape[1] != self.count(images)):
            got = "none" if u is None else u.shape[1]
            raise InputError(
                f"View {self.name!r}: expected {self.count(images)} numbers per image, got {got}."
            )
        shown = self.transform(images, u) if self.random else self.transform(images)
        if not isinstance(shown, Tensor):
            got = type(shown).__name__
        elif shown.ndim != 4 or shown.shape[:2] != images.shape[:2] or shown.dtype != images.dtype:
            got = f"{tuple(shown.shape)} of {shown.dtype}"
        else:
            return shown if self.own else shown.clamp(0, 1)
        raise InputError(
            f"View {self.name!r}: expected images of shape ({n}, {c}, h, w) of {images.dtype}, "
            f"got {got}."
        )


def _noise_numbers(c: int, h: int, w: int) -> int:
    return c + c * h * w


_NUMBERS: dict[Callable[..., Tensor], Count] = {
    transforms.flip: 0,
    transforms.crop: 2,
    transforms.brightness: 1,
    transforms.contrast: 1,
    transforms.gaussian_noise: _noise_numbers,
    transforms.gaussian_blur: 1,
    transforms.native_crop: 2,
    transforms.shift: 2,
    transforms.flip_shift: 2,
    transforms.nudge: 2,
    transforms.diagonal_shift: 2,
    transforms.flip_diagonal_shift: 2,
    transforms.vflip: 0,
    transforms.rot90: 0,
    transforms.rot180: 0,
    transforms.rot270: 0,
    transforms.transpose: 0,
    transforms.antitranspose: 0,
    transforms.zoom_in: 1,
    transforms.zoom_out: 1,
    transforms.rotate: 2,
    transforms.gamma: 1,
    transforms.autocontrast: 0,
    transforms.saturation: 2,
    transforms.hue: 2,
    transforms.grey: 0,
    transforms.sharpen: 1,
    transforms.jpeg: 1,
}
"""The functions of the views, with the numbers that each needs per image."""
_FUNCTIONS: dict[str, tuple[Callable[..., Tensor], Count]] = {
    function.__name__.removeprefix("gaussian_").replace("_", "-"): (function, numbers)
    for function, numbers in _NUMBERS.items()
}
_FUNCTIONS |= {
    f"{'flip-' if mirrored else ''}scale-{percent}": (transforms.Scale(percent, mirrored), 0)
    for mirrored in (False, True)
    for percent in (50, 75, 125, 150, 175, 200)
}
VIEWS = {name: View(name, *function) for name, function in _FUNCTIONS.items()}
"""The views of the package by name; docs/method.md lists their rules. `VIEWS["flip"]` is a `View`.

The first four are the paper's. Views of colours leave a grey image unchanged.
"""


def _needs_photograph(*_: Tensor) -> Tensor:
    raise InputError(
        f"Views of the photograph ({', '.join(photographs.MOST)}): expected files or Pillow images "
        "with preprocess=..., got pixels that are cropped already. Give the files, or take views "
        "of pixels, such as 'flip + 2 crop'."
    )


PHOTOGRAPH_VIEWS = {
    name: View(name, _needs_photograph, int(most > 1), photograph=True)
    for name, most in photographs.MOST.items()
}
"""Views that are cut from the photograph, not from its crop: `data.photographs` has their rules.

They need files or Pillow images and `preprocess`. Their positions are always stratified.
"""
_KNOWN = {**VIEWS, **PHOTOGRAPH_VIEWS}


# -------------------------------------------------------------------- views from other libraries


@dataclass(frozen=True)
class _Seeded:
    """A transform that draws from torch's global generator, made a function of given numbers.

    Each image is transformed alone with a seed of its own. The generator is restored afterwards.
    """

    transform: Callable[[Tensor], Tensor]
    batched: bool

    def __call__(self, images: Images, u: Numbers) -> Resized:
        # The CPU generator uses 32 bits of its seed: 24 from the first number, 8 from the second.
        high, low = (u.cpu().double() * torch.tensor([2**24, 2**8])).long().unbind(1)
        generators = [torch.default_generator]
        if images.is_cuda:
            generators.append(torch.cuda.default_generators[images.device.index])
        shown = []
        with torch.random.fork_rng([images.device] if images.is_cuda else []):
            for image, seed in zip(images, (high * 2**8 + low).tolist(), strict=True):
                for generator in generators:
                    generator.manual_seed(seed)
                one = self.transform(image[None])[0] if self.batched else self.transform(image)
                shown.append(one)
        if len(sizes := {tuple(image.shape) for image in shown}) > 1:
            raise InputError(
                f"A view: expected one shape for all images of a batch, got {sorted(sizes)}."
            )
        return torch.stack(shown)


def from_kornia(name: str, augmentation: Callable[[Tensor], Tensor]) -> View:
    """Make a view from a kornia augmentation, or a sequence of them.

    Args:
        name: The name of the view.
        augmentation: Called with a batch of one image at a time, under a seed of its own.

    Returns:
        A view that gives the same pixels for the same numbers.
    """
    return View(name, _Seeded(augmentation, batched=True), numbers=2)


def from_torchvision(name: str, transform: Callable[[Tensor], Tensor]) -> View:
    """Make a view from a torchvision v2 transform, or a composition of them.

    Args:
        name: The name of the view.
        transform: Called with one image (c, h, w) at a time, under a seed of its own.

    Returns:
        A view that gives the same pixels for the same numbers.
    """
    return View(name, _Seeded(transform, batched=False), numbers=2)


def from_albumentations(name: str, transform: Callable[..., Mapping[str, Any]]) -> View:
    """Make a view from an albumentations transform, called with one image (h, w, c) at a time."""

    def one(image: Tensor) -> Tensor:
        seed = int(torch.randint(2**31, (1,)))  # from torch's generator, which `_Seeded` has seeded
        transform.set_random_seed(seed)  # type: ignore[attr-defined]
        shown = transform(image=image.movedim(0, -1).float().cpu().numpy())["image"]
        return torch.as_tensor(shown).movedim(-1, 0).to(image)

    return from_torchvision(name, one)


_LIBRARIES: dict[str, Callable[[str, Any], View]] = {
    "kornia": from_kornia,
    "torchvision": from_torchvision,
    "albumentations": from_albumentations,
}


def _as_view(thing: object) -> View:
    """Return a view as it is; turn a transform of a known library into one, named by its class."""
    if isinstance(thing, View):
        return thing
    library = type(thing).__module__.partition(".")[0]
    if library in _LIBRARIES:
        return _LIBRARIES[library](type(thing).__name__, thing)
    raise InputError(
        "A view: expected a name of atta.VIEWS, an atta.View, or a transform of "
        f"{', '.join(_LIBRARIES)}, got {thing!r}. Turn a function of a batch of images into a view "
        "with atta.View.of('name', function)."
    )


# ---------------------------------------------------------------------------------------- policies


@dataclass(frozen=True)
class Policy:
    """The views that each image is shown in, and how often each view is taken.

    Use `Policy.parse` to read one from text. `str(policy)` writes it again.

    Args:
        terms: Pairs of a view and its repeats, in order; `()` shows the image itself only.

    Raises:
        InputError: A view occurs twice, or the repeats of a view are not possible.

    >>> print(Policy(((VIEWS["flip"], 1), (VIEWS["crop"], 5))))
    flip + 5 crop
    """

    terms: tuple[tuple[View, int], ...]
    kinds: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The names of the views, in order."""
    repeats: dict[str, int] = field(init=False, repr=False, compare=False)
    """How often each view is taken."""
    passes: int = field(init=False, repr=False, compare=False)
    """Forward passes per image: every repeat of every view, and the image itself."""

    def __post_init__(self) -> None:
        kinds = tuple(view.name for view, _ in self.terms)
        counts = {view.name: repeats for view, repeats in self.terms}
        self.__dict__.update(kinds=kinds, repeats=counts, passes=1 + sum(counts.values()))
        for view, repeats in self.terms:
            if not 1 <= repeats <= MAX_REPEATS:
                expected = "1 or more" if repeats < 1 else f"{MAX_REPEATS} or fewer"
                raise InputError(f"Repeats of {view.name!r}: expected {expected}, got {repeats}.")
            if repeats > 1 and not view.random:
                raise InputError(
                    f"Repeats of {view.name!r}: expected 1, since this view is not random and "
                    f"every repeat would be the same, got {repeats}."
                )
        if repeated := [kind for kind in kinds if kinds.count(kind) > 1]:
            raise InputError(
                f"A policy: expected each view once, with its repeats in front, got "
                f"{repeated[0]!r} {len(repeated)} times in {quoted(str(self))}."
            )

    @property
    def photographs(self) -> Terms:
        """The views of the photograph, with their repeats."""
        return tuple((view.name, repeats) for view, repeats in self.terms if view.photograph)

    @classmethod
    def parse(cls, text: object, *, views: Mapping[str, View] | None = None) -> "Policy":
        """Read a policy from text, from a name of `POLICIES`, or from a list of views.

        `5 crop`, `5crop`, `5 x crop`, `5 * crop` and `5*crop` are the same.

        Args:
            text: Text such as `flip + 5 crop`, a policy, a view, a transform of kornia, torchvision
                or albumentations, or a list of these: `["flip", (5, "crop"), transform]`.
            views: Views of your own by name, in addition to `VIEWS`.

        Returns:
            The policy.

        Raises:
            InputError: The text cannot be read, or names an unknown view.

        >>> policy = Policy.parse("flip + 5 crop + 5 brightness")
        >>> policy.repeats, policy.passes
        ({'flip': 1, 'crop': 5, 'brightness': 5}, 12)
        """
        if isinstance(text, Policy):
            return text
        if not isinstance(text, str):
            several = text if isinstance(text, list | tuple) else [text]
            return cls(tuple(term for one in several for term in _terms(one, views)))
        for name, view in (views or {}).items():
            if view.name != name:
                raise InputError(
                    f"views: expected each view under its own name, got {view.name!r} under "
                    f"{name!r}."
                )
            if name in POLICIES or view != _KNOWN.get(name, view):
                raise InputError(f"views: expected a new name, but atta has another {name!r}.")
        text = text.strip()
        if text in POLICIES:
            return POLICIES[text]
        if not text:
            raise InputError(
                "A policy: expected at least one view, such as 'flip + 5 crop', got none."
            )
        known = {**_KNOWN, **(views or {})}
        return cls(tuple(_read_term(term, known) for term in text.split("+")))

    @classmethod
    def union(cls, *policies: "str | Policy") -> "Policy":
        """Return the smallest policy that covers all of these: each view with its most repeats.

        Record it once and decide later: the union of the paper's eight policies takes 17 passes,
        recording them one by one takes 94.

        Args:
            policies: Policies, or their text.

        Returns:
            The policy, with the views in the order of their first occurrence.

        >>> str(Policy.union("flip + 2 crop", "3 crop + contrast"))
        'flip + 3 crop + contrast'
        """
        most: dict[str, tuple[View, int]] = {}
        for view, repeats in (term for policy in policies for term in cls.parse(policy).terms):
            known, before = most.get(view.name, (view, 0))
            if known != view:
                raise InputError(
                    f"A union of policies: expected one view named {view.name!r}, got two "
                    "different ones. Rename one of them."
                )
            most[view.name] = (view, max(before, repeats))
        return cls(tuple(most.values()))

    def render(
        self,
        images: Tensor,
        indices: Tensor | Sequence[int] | None = None,
        *,
        seed: int = 0,
        draws: str = "random",
        sheet: Sheet | None = None,
    ) -> Iterator[tuple[str, int, Tensor]]:
        """Show the images in every view in turn; the image itself is not among them.

        Args:
            images: Floats in [0, 1] of shape (n, c, h, w).
            indices: Position of each image in its dataset, which decides its random numbers.
            seed: Seed of random draws.
            draws: "random", or "stratified": evenly spread, the same for every image.
            sheet: Where the images and views of the photograph are, if the images are sheets.

        Yields:
            Name of the view, repeat, and the images.

        >>> [view for view, _, _ in Policy.parse("flip").render(torch.rand(1, 3, 8, 8), [0])]
        ['flip']
        """
        _check_shown(images, draws)
        n, spread = images.shape[0], draws == "stratified"
        if indices is None and not (spread and all(view.stratified for view, _ in self.terms)):
            raise InputError("indices: expected each image's position, for random draws, got None.")
        places = torch.arange(n) if indices is None else torch.as_tensor(indices).cpu()
        if places.shape != (n,) or places.is_floating_point():
            raise InputError(
                f"indices: expected {n} whole numbers, one per image, got {tuple(places.shape)} of "
                f"{places.dtype}."
            )
        sheets, images = images, images if sheet is None else sheet.crop(images)
        for view, repeats in self.terms:
            name, count = view.name, view.count(images)
            if view.photograph and sheet is not None:
                for repeat, shown in enumerate(sheet.views(sheets, name, repeats)):
                    yield name, repeat, shown
                continue
            for repeat in range(repeats):
                if spread and view.stratified:
                    u = stratified_numbers(name, count, repeats)[repeat].expand(n, -1)
                else:
                    u = random_numbers(name, count, places, repeat=repeat, seed=seed)
                if images.is_cuda:  # a copy from pinned memory does not wait for the GPU
                    u = u.contiguous().pin_memory()
                yield name, repeat, view(images, u.to(images.device, non_blocking=True))

    def _repr_html_(self) -> str:
        note = f"{self.passes} passes per image, including the image itself"
        rows = list(self.repeats.items())
        return html_table(("view", "repeats"), rows, title="Policy", note=note)

    def __str__(self) -> str:
        return photographs.named(tuple((view.name, repeats) for view, repeats in self.terms))


def _check_shown(images: Tensor, draws: str) -> None:
    if images.ndim != 4 or not images.is_floating_point():
        raise InputError(
            "images: expected floats in [0, 1] of shape (n, c, h, w), got "
            f"{tuple(images.shape)} of {images.dtype}."
        )
    if draws not in ("random", "stratified"):
        raise InputError(f"draws: expected 'random' or 'stratified', got {draws!r}.")


def _terms(one: object, views: Mapping[str, View] | None) -> tuple[tuple[View, int], ...]:
    """Read one entry of a list: a term, a view, or either with its repeats before or after it."""
    if isinstance(one, tuple | list) and len(one) == 2:
        count, other = one if type(one[0]) is int else one[::-1]
        if type(count) is int:
            ((view, _),) = _terms(other, views)
            return ((view, count),)
    if isinstance(one, str | Policy):
        return Policy.parse(one, views=views).terms
    return ((_as_view(one), 1),)


def _read_term(term: str, known: Mapping[str, View]) -> tuple[View, int]:
    """Read one term of a policy, such as `5 crop`."""
    match = re.fullmatch(rf"\s*(?:(-?\d{{1,12}})\s*(?:[*×]|x(?=\s))?)?\s*({_NAME})\s*", term)
    if not match:
        raise InputError(
            "A term of a policy: expected a view or a count and a view, such as '5 crop', got "
            f"{quoted(term)}."
        )
    repeats, name = match.groups()
    if name in POLICIES:
        raise InputError(
            f"A term of a policy: expected a view, got the policy {name!r}. Use it alone, or write "
            f"its views out: '{POLICIES[name]}'."
        )
    if name not in known:
        lists = f"\nViews: {', '.join(known)}.\nPolicies: {', '.join(POLICIES)}."
        raise InputError(
            f"A view or a policy: expected a known name, got {quoted(name)}."
            f"{suggest(name.lower(), [*known, *POLICIES]) or lists}"
        )
    return known[name], int(repeats or 1)


POLICIES: dict[str, Policy] = {}  # defined before it is filled: `parse` looks names up here
POLICIES |= {
    name: Policy.parse(text)
    for name, text in {
        # The paper's (Table 1).
        "aug1": "flip + 5 crop",
        "aug2": "flip + 5 brightness",
        "aug3": "5 crop + 5 brightness",
        "aug4": "flip + 5 crop + 5 brightness",
        "aug5": "flip + 5 crop + 5 contrast",
        "aug6": "flip + 5 brightness + 5 contrast",
        "aug7": "5 crop + 5 brightness + 5 contrast",
        "aug8": "flip + 5 crop + 5 brightness + 5 contrast",
        # Photographs: mirrored images are as likely, upside-down ones are not.
        "flip-2": "flip",
        "nudge-2": "nudge",
        "nudge-4": "3 nudge",
        "nudge-9": "8 nudge",
        # Photographs, for networks trained with random resized crops (most ImageNet networks).
        "crop-2": "crop",
        "crop-4": "3 crop",
        "flip-crop-4": "flip + 2 crop",
        "crop-9": "8 crop",
        "flip-shift-2": "flip-shift",
        "shift-mix-4": "flip + shift + flip-shift",
        "diagonal-4": "flip + diagonal-shift + flip-diagonal-shift",
        "shift-mix-5": "2 shift + 2 flip-shift",
        "shift-mix-9": "4 shift + 4 flip-shift",
        "shift-mix-17": "8 shift + 8 flip-shift",
        # Digits, letters, signs: a mirror image would be something else.
        "shift-2": "shift",
        "shift-4": "3 shift",
        "shift-5": "4 shift",
        # Aerial and microscope images: any orientation. Quarter turns need square images.
        "vflip-2": "vflip",
        "dihedral-4": "flip + vflip + rot180",
        "dihedral-8": "flip + vflip + rot90 + rot180 + rot270 + transpose + antitranspose",
        "dihedral-photometric-4": "vflip + rot180 + gamma",
        "dihedral-photometric-9": "flip + vflip + rot180 + 2 gamma + autocontrast + sharpen + jpeg",
        # Photographs that are files or Pillow images, with `preprocess`.
        "larger-2": "larger",
        "corner-3": "2 flip-corner",
        "corner-larger-4": "2 flip-corner + larger",
        "scales-4": "whole + tight + larger",
        # Images where the position of each pixel matters, but not the light; also grey images.
        "photometric-4": "gamma + autocontrast + sharpen",
        # Colour images only: these views leave a grey image unchanged.
        "colour-4": "saturation + hue + grey",
        # Unknown photographs: many kinds of view, from which the fit chooses.
        "varied-9": "flip + shift + flip-shift + zoom-in + rotate + gamma + sharpen + jpeg",
    }.items()
}
"""Policies by name: the paper's eight, and others whose names end in their passes per image.

`POLICIES["flip-2"]` shows the image itself and its mirror image. docs/guide.md says when to use
which one.
"""

PAPER_POLICIES = tuple(POLICIES)[:8]
"""The names of the paper's eight policies (Table 1)."""
