"""Which views an image is shown in: a view, a policy, and those with a name.

A `View` is a name and a function of pixels and given numbers (`transforms`, `draws`). A `Policy` says how often each view is
taken, and reads as it is written: `Policy.parse("flip + 5 crop + 5 brightness")`.
"""

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from atta._base.errors import InputError, suggest
from atta._base.html import html_table
from atta._base.settings import shown
from atta._base.types import Images
from atta.data import transforms
from atta.data.draws import draw_numbers

REHEARSAL = "rehearse-"
"""Prefix of the names of rehearsals: degraded images recorded for fits, never blended."""

# ------------------------------------------------------------------------------------------------------------ views


@dataclass(frozen=True)
class View:
    """A named way to show an image again.

    `numbers` says how many uniform numbers the transform needs for an image: a count, or a function of the channels,
    height and width. A view that needs none is `transform(images)`; any other is `transform(images, u)`, `u` of shape
    (n, numbers) and float32. Both take pixels in [0, 1] and return as many images, clipped to [0, 1], of the same
    channels and dtype; height and width may change. A view that is not to be `stratified` is drawn at random by each image's
    index, whatever the draws of the others.
    """

    name: str
    transform: Callable[..., Tensor]
    numbers: int | Callable[[int, int, int], int] = 0
    stratified: bool = True

    def __post_init__(self) -> None:
        if not re.fullmatch(_NAME, self.name):
            raise InputError(
                f"The name of a view: expected a letter, then letters, digits, '-' or '_', got {self.name!r}."
            )
        if isinstance(self.numbers, int) and self.numbers < 0:
            raise InputError(
                f"View {self.name!r}: expected 0 or more numbers an image, got {self.numbers}."
            )

    @classmethod
    def of(cls, name: str, transform: Callable[[Images], Tensor]) -> "View":
        """A view without randomness, from any function of a batch of images."""
        return cls(name, transform, numbers=0)

    @property
    def random(self) -> bool:
        """Whether the view depends on numbers; one that does not is worth one repeat."""
        return self.numbers != 0

    @property
    def own(self) -> bool:
        """Whether it is one of the package's, which are known to stay in [0, 1]."""
        return VIEWS.get(self.name) == self

    def show(self, images: Images, *u: Tensor) -> Tensor:
        """Show the images, unchecked; what a transform of unknown origin leaves outside of [0, 1] is clipped."""
        return self._clipped(self.transform(images, *u))

    def _clipped(self, shown: Tensor) -> Tensor:
        return shown if self.own else shown.clamp(0, 1)

    def count(self, images: Images) -> int:
        """How many numbers the view needs for each of these images."""
        if isinstance(self.numbers, int):
            return self.numbers
        _, c, h, w = images.shape
        return self.numbers(c, h, w)

    def __call__(
        self, images: Images, u: Float[Tensor, "n d"] | None = None
    ) -> Float[Tensor, "n c h2 w2"]:
        """Show the images, and check what a transform of unknown origin takes and returns."""
        n, c, *_ = images.shape
        if self.random and (u is None or u.shape[1] != self.count(images)):
            got = "none" if u is None else u.shape[1]
            raise InputError(
                f"View {self.name!r}: expected {self.count(images)} numbers an image, got {got}."
            )
        shown = self.transform(images, u) if self.random else self.transform(images)
        if not isinstance(shown, Tensor):
            got = type(shown).__name__
        elif shown.ndim != 4 or shown.shape[:2] != images.shape[:2] or shown.dtype != images.dtype:
            got = f"{tuple(shown.shape)} of {shown.dtype}"
        else:
            return self._clipped(shown)
        raise InputError(
            f"View {self.name!r}: expected images of shape ({n}, {c}, h, w) of {images.dtype}, got {got}."
        )


MOST = 1000
"""The most repeats of a view: an image may be looked at a thousand times, but a million is a slip of a finger."""

_NAME = r"[A-Za-z][\w-]*"


def _native_crop(images: Images, u: Float[Tensor, "n 2"]) -> Float[Tensor, "n c h2 w2"]:
    return transforms.crop(images, u, resize=False)


def _noise_numbers(c: int, h: int, w: int) -> int:
    return c + c * h * w


VIEWS: dict[str, View] = {
    view.name: view
    for view in (
        View("flip", transforms.flip),
        View("crop", transforms.crop, numbers=2),
        View("brightness", transforms.brightness, numbers=1),
        View("contrast", transforms.contrast, numbers=1),
        View("noise", transforms.gaussian_noise, numbers=_noise_numbers),
        View("blur", transforms.gaussian_blur, numbers=1),
        View("native-crop", _native_crop, numbers=2),
        View("shift", transforms.shift, numbers=2),
        View("flip-shift", transforms.flip_shift, numbers=2),
        View("nudge", transforms.nudge, numbers=2),
        View("diagonal-shift", transforms.diagonal_shift, numbers=2),
        View("flip-diagonal-shift", transforms.flip_diagonal_shift, numbers=2),
        View("vflip", transforms.vflip),
        View("rot90", transforms.rot90),
        View("rot180", transforms.rot180),
        View("rot270", transforms.rot270),
        View("transpose", transforms.transpose),
        View("antitranspose", transforms.antitranspose),
        View("zoom-in", transforms.zoom_in, numbers=1),
        View("zoom-out", transforms.zoom_out, numbers=1),
        View("rotate", transforms.rotate, numbers=2),
        View("gamma", transforms.gamma, numbers=1),
        View("autocontrast", transforms.autocontrast),
        View("saturation", transforms.saturation, numbers=2),
        View("hue", transforms.hue, numbers=2),
        View("grey", transforms.grey),
        View("sharpen", transforms.sharpen, numbers=1),
        View("jpeg", transforms.jpeg, numbers=1),
    )
}
"""The views that come with the package. The paper's are the first four; those of colours leave a grey image alone."""


# ---------------------------------------------------------------------------------------- views from other libraries


@dataclass(frozen=True)
class _Seeded:
    """A transform that draws from torch's global generator, made a pure function of given numbers.

    Each image is transformed by itself under a seed of its own, and the generator is put back afterwards.
    """

    transform: Callable[[Tensor], Tensor]
    batched: bool

    def __call__(self, images: Images, u: Float[Tensor, "n 2"]) -> Float[Tensor, "n c h2 w2"]:
        # The CPU generator looks at 32 bits of its seed: 24 come from the first number, 8 from the second.
        high, low = (u.cpu().double() * torch.tensor([2**24, 2**8])).long().unbind(1)
        generators = [torch.default_generator]
        if images.is_cuda:
            generators.append(torch.cuda.default_generators[images.device.index])
        states = [generator.get_state() for generator in generators]
        shown = []
        try:
            for image, seed in zip(images, (high * 2**8 + low).tolist(), strict=True):
                for generator in generators:
                    generator.manual_seed(seed)
                shown.append(
                    self.transform(image[None])[0] if self.batched else self.transform(image)
                )
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
        if len(sizes := {tuple(image.shape) for image in shown}) > 1:
            raise InputError(
                f"A view: expected one shape for all images of a batch, got {sorted(sizes)}."
            )
        return torch.stack(shown)


def from_kornia(name: str, augmentation: Callable[[Tensor], Tensor]) -> View:
    """A view from a kornia augmentation or sequence of them, which is given a batch of one image at a time."""
    return View(name, _Seeded(augmentation, batched=True), numbers=2)


def from_torchvision(name: str, transform: Callable[[Tensor], Tensor]) -> View:
    """A view from a torchvision v2 transform or composition, which is given one image (c, h, w) at a time."""
    return View(name, _Seeded(transform, batched=False), numbers=2)


def from_albumentations(name: str, transform: Callable[..., Mapping[str, Any]]) -> View:
    """A view from an albumentations transform or composition, which is given one image (h, w, c) of float32 at a time."""

    def one(image: Tensor) -> Tensor:
        seed = int(torch.randint(2**31, (1,)))  # from torch's generator, which `_Seeded` has seeded
        transform.set_random_seed(seed)  # type: ignore[attr-defined]
        shown = transform(image=image.movedim(0, -1).float().cpu().numpy())["image"]
        return torch.as_tensor(shown).movedim(-1, 0).to(image)

    return View(name, _Seeded(one, batched=False), numbers=2)


_LIBRARIES: dict[str, Callable[[str, Any], View]] = {
    "kornia": from_kornia,
    "torchvision": from_torchvision,
    "albumentations": from_albumentations,
}


def as_view(thing: object) -> View:
    """A view as it is, or one from a transform of kornia, torchvision or albumentations, under the name of its class."""
    if isinstance(thing, View):
        return thing
    library = type(thing).__module__.partition(".")[0]
    if library in _LIBRARIES:
        return _LIBRARIES[library](type(thing).__name__, thing)
    raise InputError(
        f"A view: expected a name of atta.VIEWS, an atta.View, or a transform of {', '.join(_LIBRARIES)}, got {thing!r}; "
        "a function of a batch of images becomes one by atta.View.of('name', function)."
    )


# --------------------------------------------------------------------------------------------------------- policies


@dataclass(frozen=True)
class Policy:
    """Which views are taken, in which order, and how often each; `Policy(())` leaves it at the image itself."""

    terms: tuple[tuple[View, int], ...]

    def __post_init__(self) -> None:
        for view, repeats in self.terms:
            if not 1 <= repeats <= MOST:
                expected = "1 or more" if repeats < 1 else f"{MOST} or fewer"
                raise InputError(f"Repeats of {view.name!r}: expected {expected}, got {repeats}.")
            if repeats > 1 and not view.random:
                raise InputError(
                    f"Repeats of {view.name!r}: expected 1, for it has no randomness and every repeat would be the "
                    f"same, got {repeats}."
                )
        if repeated := [kind for kind in self.kinds if self.kinds.count(kind) > 1]:
            raise InputError(
                f"A policy: expected each view once, with its repeats in front, got {repeated[0]!r} "
                f"{len(repeated)} times in {shown(str(self))}."
            )

    @classmethod
    def parse(cls, text: Any, *, views: Mapping[str, View] | None = None) -> "Policy":
        """Read `flip + 5 crop`, or the name of one of POLICIES, or take a policy as it is; `views` adds one's own.

        A view, a transform of kornia, torchvision or albumentations, and a list of these and of terms are policies, too:
        ["flip", (5, "crop"), transform].

        `5 crop`, `5crop`, `5 x crop`, `5 * crop` and `5*crop` are the same.

        >>> policy = Policy.parse("flip + 5 crop + 5 brightness")
        >>> policy.repeats, policy.passes
        ({'flip': 1, 'crop': 5, 'brightness': 5}, 12)
        """
        if isinstance(text, Policy):
            return text
        if isinstance(text, list | tuple):
            return cls(tuple(term for one in text for term in _terms(one, views)))
        if not isinstance(text, str):
            return cls(((as_view(text), 1),))
        known = VIEWS | dict(views or {})
        for name, view in known.items():
            if view.name != name:
                raise InputError(
                    f"views: expected each view under its own name, got {view.name!r} under {name!r}."
                )
            if name in POLICIES or view != VIEWS.get(name, view):
                raise InputError(f"views: expected a name that is not taken, got another {name!r}.")
        text = text.strip()
        if text in POLICIES:
            return POLICIES[text]
        if not text:
            raise InputError(
                "A policy: expected at least one view, such as 'flip + 5 crop', got none."
            )
        return cls(tuple(_read_term(term, known) for term in text.split("+")))

    @classmethod
    def union(cls, *policies: "str | Policy") -> "Policy":
        """The smallest policy that serves all of these: each view with the most repeats it has in any of them.

        Record it once and decide later: the union of the paper's eight is the eighth, 17 passes rather than 94.

        >>> str(Policy.union("flip + 2 crop", "3 crop + contrast"))
        'flip + 3 crop + contrast'
        """
        most: dict[str, tuple[View, int]] = {}
        for view, repeats in (term for policy in policies for term in cls.parse(policy).terms):
            known, before = most.get(view.name, (view, 0))
            if known != view:
                raise InputError(
                    f"A union of policies: expected one view named {view.name!r}, got two different ones."
                )
            most[view.name] = (view, max(before, repeats))
        return cls(tuple(most.values()))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the views, in order."""
        return tuple(view.name for view, _ in self.terms)

    @property
    def repeats(self) -> dict[str, int]:
        """How often each view is taken."""
        return {view.name: repeats for view, repeats in self.terms}

    @property
    def passes(self) -> int:
        """Forward passes an image costs: every repeat of every view, and the image itself."""
        return 1 + sum(self.repeats.values())

    def render(
        self,
        images: Tensor,
        indices: Tensor | Sequence[int] | None = None,
        *,
        seed: int = 0,
        draws: str = "random",
    ) -> Iterator[tuple[str, int, Tensor]]:
        """Show the images in every view in turn: (name of the view, repeat, images).

        `indices` are the images' places in their dataset, from which the numbers come; stratified draws are the same
        for every image and need none. The image itself is not among the views.
        """
        if images.ndim != 4 or not images.is_floating_point():
            raise InputError(
                f"images: expected floats in [0, 1] of shape (n, c, h, w), got {tuple(images.shape)} of {images.dtype}."
            )
        if indices is None and (
            draws == "random" or not all(view.stratified for view, _ in self.terms)
        ):
            raise InputError(
                "indices: expected each image's place in its dataset, for random draws, got None."
            )
        n = images.shape[0]
        places = torch.arange(n) if indices is None else torch.as_tensor(indices).cpu()
        if places.shape != (n,) or places.is_floating_point():
            raise InputError(
                f"indices: expected {n} whole numbers, one an image, got {tuple(places.shape)} of {places.dtype}."
            )
        for view, repeats in self.terms:
            for repeat in range(repeats):
                how = {
                    "repeats": repeats,
                    "seed": seed,
                    "draws": draws if view.stratified else "random",
                }
                u = draw_numbers(view.name, view.count(images), places, repeat=repeat, **how)  # type: ignore[arg-type]
                if (
                    images.is_cuda
                ):  # From pinned memory, a copy need not wait for what the GPU is doing.
                    u = u.contiguous().pin_memory()
                yield view.name, repeat, view(images, u.to(images.device, non_blocking=True))

    def _repr_html_(self) -> str:
        passes = f"{self.passes} passes an image, itself included"
        return html_table(
            ("view", "repeats"), list(self.repeats.items()), title="Policy", note=passes
        )

    def __str__(self) -> str:
        return " + ".join(
            view.name if repeats == 1 else f"{repeats} {view.name}" for view, repeats in self.terms
        )


def _terms(one: Any, views: Mapping[str, View] | None) -> tuple[tuple[View, int], ...]:
    """Read one entry of a list: a term, a view, or either with its repeats before or after it."""
    if isinstance(one, tuple | list) and len(one) == 2:
        counts = [part for part in one if type(part) is int]
        if len(counts) == 1:
            ((view, _),) = _terms(one[1] if one[0] is counts[0] else one[0], views)
            return ((view, counts[0]),)
    return (
        Policy.parse(one, views=views).terms
        if isinstance(one, str | Policy)
        else ((as_view(one), 1),)
    )


def _read_term(term: str, known: Mapping[str, View]) -> tuple[View, int]:
    """Read one term of a policy, such as `5 crop`."""
    match = re.fullmatch(rf"\s*(?:(-?\d{{1,12}})\s*(?:[*×]|x(?=\s))?)?\s*({_NAME})\s*", term)
    if not match:
        raise InputError(
            f"A term of a policy: expected a view or a count and a view, such as '5 crop', got {shown(term)}."
        )
    repeats, name = match.groups()
    if name in POLICIES:
        raise InputError(
            f"A term of a policy: expected a view, got the policy {name!r}, which goes by itself or written out: "
            f"'{POLICIES[name]}'."
        )
    if name not in known:
        raise InputError(
            f"A view or a policy: expected a name that is known, got {shown(name)}.{_hint(name, known)}"
        )
    return known[name], int(repeats or 1)


def _hint(name: str, known: Mapping[str, View]) -> str:
    """The name that comes close to one that is not known; all there are, should none."""
    if near := suggest(name.lower(), [*known, *POLICIES]):
        return near
    lists = {"Views": known, "Policies": POLICIES}
    lines = (
        textwrap.wrap(
            f"{title}: {', '.join(names)}.", 100, subsequent_indent="  ", break_on_hyphens=False
        )
        for title, names in lists.items()
    )
    return "".join(f"\n{line}" for part in lines for line in part)


POLICIES: dict[str, Policy] = {}  # `parse` looks here, so it is there before it is filled
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
        # Photographs, which have an up and a down but no left and right.
        "flip-2": "flip",
        "nudge-2": "nudge",
        "nudge-4": "3 nudge",
        "nudge-9": "8 nudge",
        # The same, of networks that were trained with random resized crops, as nearly all of ImageNet's are.
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
        # Digits, letters, signs: whatever a mirror would turn into something else.
        "shift-2": "shift",
        "shift-4": "3 shift",
        "shift-5": "4 shift",
        # Images from above or through a microscope, which have neither; quarter turns want a square, or any size.
        "vflip-2": "vflip",
        "dihedral-4": "flip + vflip + rot180",
        "dihedral-8": "flip + vflip + rot90 + rot180 + rot270 + transpose + antitranspose",
        "dihedral-photometric-4": "vflip + rot180 + gamma",
        "dihedral-photometric-9": "flip + vflip + rot180 + 2 gamma + autocontrast + sharpen + jpeg",
        # Where the place of each pixel matters, but not the light; grey images too.
        "photometric-4": "gamma + autocontrast + sharpen",
        # The same, of colour images alone: a grey one would be seen four times over.
        "colour-4": "saturation + hue + grey",
        # Photographs of which little is known: many kinds, so that the fit may choose among them.
        "varied-9": "flip + shift + flip-shift + zoom-in + rotate + gamma + sharpen + jpeg",
    }.items()
}
"""Policies by name: the paper's eight, and others whose names end in their passes, the image itself included."""

PAPER_POLICIES = ("aug1", "aug2", "aug3", "aug4", "aug5", "aug6", "aug7", "aug8")
"""The names of the paper's eight policies (Table 1)."""
