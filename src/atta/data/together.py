"""All views of a batch in one go: what a deployed classifier shows its network, in few operations whatever the policy.

The numbers of a deployed view are the same for every image, and so is all that follows from them alone: it is worked out once,
lies in buffers, and moves with the classifier. A GPU is then asked for a handful of kernels, where the views one by one, each
repeat from its numbers on, are hundreds: a small batch is over before so many have been started.

moves     flips, shifts, turns, native crops    pixel (i, j) is the one at place down_i + across_j: one gather for all of them
windows   crops                                 two rows and two columns to mix, for each of its own
any       other view of the package             its repeats together, as if they were more images
alien     view from elsewhere                   repeat after repeat, as it is not known to bear more

The pixels are those of the views one by one, bit for bit.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from atta._base.types import Images
from atta.data import transforms
from atta.data.draws import stratified_numbers
from atta.data.views import Policy, View

MOVES = {
    "flip",
    "vflip",
    "rot90",
    "rot180",
    "rot270",
    "transpose",
    "antitranspose",
    "native-crop",
    "nudge",
}
MOVES |= {"shift", "flip-shift", "diagonal-shift", "flip-diagonal-shift"}
"""The views that show the same pixels in other places."""


class Together(nn.Module):
    """The views of a policy with their stratified numbers, for images of one shape (c, h, w)."""

    def __init__(self, policy: Policy, shape: Sequence[int]) -> None:
        super().__init__()
        self.repeats = policy.repeats
        blocks, self.places = list[_Moves | _Windows | _Any](), dict[str, tuple[int, int]]()
        for view, repeats in policy.terms:
            made, last = _block(view, repeats, shape), blocks[-1] if blocks else None
            if isinstance(last, _Moves) and isinstance(made, _Moves) and last.alike(made):
                self.places[view.name] = len(blocks) - 1, last.down.shape[0]
                last.join(made)
            else:
                self.places[view.name] = len(blocks), 0
                blocks.append(made)
        self.blocks = nn.ModuleList(blocks)

    def passes(self, kinds: Iterable[str]) -> list[tuple[str, int]]:
        """Every repeat of these kinds of view, in their order."""
        return [(kind, repeat) for kind in kinds for repeat in range(self.repeats[kind])]

    def show(
        self, images: Images, passes: Sequence[tuple[str, int]]
    ) -> list[tuple[str, int, Tensor]]:
        """Show the images in some repeats of some kinds: the kind, the repeat, and the images shown in it."""
        runs: list[tuple[int, int, int]] = []  # of passes side by side in a block
        for kind, repeat in passes:
            block, first = self.places[kind]
            last, start, stop = runs.pop() if runs else (block, first + repeat, first + repeat)
            if (last, stop) == (block, first + repeat):
                runs.append((block, start, stop + 1))
            else:
                runs += [(last, start, stop), (block, first + repeat, first + repeat + 1)]
        shown = [
            view for block, start, stop in runs for view in self.blocks[block](images, start, stop)
        ]
        return [(kind, repeat, view) for (kind, repeat), view in zip(passes, shown, strict=True)]


class _Moves(nn.Module):
    """Views that show pixels in other places: pixel (i, j) is the one at down_i + across_j, counted along the rows.

    A view without numbers that is `alone` is quicker by its own function.
    """

    down: Int[Tensor, "r h2"]
    across: Int[Tensor, "r w2"]

    def __init__(self, places: Float[Tensor, "r 1 h2 w2"], alone: View | None) -> None:
        super().__init__()
        self.alone = alone
        corner = places[:, 0, :1, 0]
        self.register_buffer("down", places[:, 0, :, 0].long(), persistent=False)
        self.register_buffer("across", (places[:, 0, 0] - corner).long(), persistent=False)

    def alike(self, other: "_Moves") -> bool:
        """Whether both leave images of the same size."""
        return (
            self.down.shape[1:] == other.down.shape[1:]
            and self.across.shape[1:] == other.across.shape[1:]
        )

    def join(self, other: "_Moves") -> None:
        """Show the views of another one after these."""
        self.down, self.across = (
            torch.cat([self.down, other.down]),
            torch.cat([self.across, other.across]),
        )
        self.alone = None

    def forward(self, images: Images, start: int, stop: int) -> Float[Tensor, "r n c h2 w2"]:
        """Look up every pixel of every view."""
        if self.alone is not None:
            return self.alone.show(images)[None]
        r, (n, c, _, _) = stop - start, images.shape
        places = self.down[start:stop, :, None] + self.across[start:stop, None]
        index = places.flatten(1)[:, None, None].expand(r, n, c, -1)
        return (
            images.flatten(2)
            .expand(r, n, c, -1)
            .gather(3, index)
            .reshape(r, n, c, *places.shape[1:])
        )


class _Windows(nn.Module):
    """Crops: `transforms.crop`, the places to look at known beforehand."""

    rows: Int[Tensor, "2 r h"]
    columns: Int[Tensor, "2 r w"]
    nearness: Float[Tensor, "h+w"]

    def __init__(self, u: Float[Tensor, "r 2"], shape: Sequence[int]) -> None:
        super().__init__()
        (rows, down), (columns, across) = (
            transforms.neighbours(*transforms.window(u[:, i], side), side)
            for i, side in enumerate(shape[1:])
        )
        for name, value in (
            ("rows", rows),
            ("columns", columns),
            ("nearness", torch.cat([down, across])),
        ):
            self.register_buffer(name, value, persistent=False)

    def forward(self, images: Images, start: int, stop: int) -> Float[Tensor, "r n c h w"]:
        """Mix two rows, then two columns."""
        n, c, h, w = images.shape
        size = (2, stop - start, n, c, h, w)
        down, across = torch.split(self.nearness.to(images.dtype), [h, w])
        rows, columns = (
            self.rows[:, start:stop, None, None, :, None],
            self.columns[:, start:stop, None, None, None],
        )
        above, below = images.expand(size).gather(4, rows.expand(size)).unbind()
        left, right = (
            torch.lerp(above, below, down[:, None])
            .expand(size)
            .gather(5, columns.expand(size))
            .unbind()
        )
        return torch.lerp(left, right, across).clamp_(0, 1)


class _Any(nn.Module):
    """Repeats of any view, by its own function."""

    u: Float[Tensor, "r d"] | None

    def __init__(self, view: View, u: Float[Tensor, "r d"] | None) -> None:
        super().__init__()
        self.view = view
        self.register_buffer("u", u, persistent=False)

    def forward(self, images: Images, start: int, stop: int) -> Sequence[Tensor] | Tensor:
        """Call the function: once, where it is known to treat each image by itself."""
        n, r = images.shape[0], stop - start
        if self.u is None:
            return [self.view.show(images)]
        if r == 1 or not self.view.own:
            return [self.view.show(images, u.expand(n, -1)) for u in self.u[start:stop]]
        u = self.u[start:stop, None].expand(r, n, -1).flatten(0, 1)
        shown = self.view.show(images.repeat(r, 1, 1, 1), u)
        return shown.reshape(r, n, *shown.shape[1:])


def _block(view: View, repeats: int, shape: Sequence[int]) -> "_Moves | _Windows | _Any":
    """The views of one kind, as they are made quickest."""
    c, h, w = shape
    count = view.numbers if isinstance(view.numbers, int) else view.numbers(c, h, w)
    u = stratified_numbers(view.name, count, repeats) if view.random else None
    if view.own and view.transform is transforms.crop and u is not None:
        return _Windows(u, shape)
    if view.own and view.name in MOVES:
        # An image whose pixels are their own places tells where each of them goes.
        places = (
            torch.arange(h * w, dtype=torch.float64).reshape(1, 1, h, w).expand(repeats, -1, -1, -1)
        )
        return (
            _Moves(view.transform(places), view)
            if u is None
            else _Moves(view.transform(places, u), None)
        )
    return _Any(view, u)
