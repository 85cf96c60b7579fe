"""Some of the images of a source, as a source: rows in ascending order, read as they are needed, and which can be read."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, final

import torch
from torch import Tensor

from atta._base.errors import InputError
from atta.data.source import Block, ItemSource, Range, Source, StreamSource


def part_of(source: Source, rows: Tensor) -> Source:
    """The images of these rows, which ascend; their places stay those of the whole."""
    numbers = rows.tolist()
    if numbers == list(range(source.count or 0)):
        return source
    labels = None if source.labels is None else source.labels[rows]
    if isinstance(source, ItemSource):  # which then reads ahead as the whole does
        places = source.places(0, source.count or 0)[rows]
        items = _PickedItems(source.items, numbers)
        found = ItemSource(
            items,
            source.channels,
            source.dataset,
            labels,
            places,
            where=lambda i: source.where(numbers[i]),
        )
        found.shape, found.classes, found.preprocess = (
            source.shape,
            source.classes,
            source.preprocess,
        )
        found.files = None if source.files is None else [source.files[number] for number in numbers]
        return found
    return PartSource(source, numbers, labels)


def readable(source: Source, workers: int = 0) -> tuple[Tensor, list[str]]:
    """The rows of a source that can be decoded, and what is wrong with the others: everything is read for it, once more."""
    if isinstance(source, StreamSource):
        raise InputError(
            "skip_bad: a loader or a stream reads its images itself, and once: expected a folder, files, a table or a dataset"
        )
    if not isinstance(source, ItemSource):  # pixels, which are there
        return torch.arange(source.count or 0), []
    with ThreadPoolExecutor(max(1, workers)) as pool:
        faults = list(pool.map(source.fault, range(source.count or 0)))
    rows = [row for row, fault in enumerate(faults) if fault is None]
    reasons = [fault for fault in faults if fault is not None]
    if not rows:
        raise InputError(
            f"expected at least one image in {source.name} that can be read, found none: {reasons[0]}"
        )
    return torch.tensor(rows), reasons


class _PickedItems(Sequence[Any]):
    """Some of the items of a dataset, each asked for when it is needed."""

    def __init__(self, items: Any, rows: list[int]) -> None:
        self.items, self.rows = items, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: Any) -> Any:
        return self.items[self.rows[position]]


@final
class PartSource(Source):
    """Rows of any source that is read in ranges."""

    def __init__(self, source: Source, rows: list[int], labels: Tensor | None) -> None:
        super().__init__(source.dataset, len(rows), labels)
        self.source, self.rows, self.shape = source, rows, source.shape
        self.classes, self.preprocess = source.classes, source.preprocess

    def read(self, ranges: Iterable[Range], workers: int = 0) -> Iterator[Block]:
        """Read row by row, and join the rows of each range."""
        wanted = [self.rows[start:stop] for start, stop in ranges]
        blocks = self.source.read(((row, row + 1) for rows in wanted for row in rows), workers)
        for rows in wanted:
            found = list(islice(blocks, len(rows)))
            own = [labels for _, labels in found if labels is not None]
            self.shape = self.source.shape
            yield torch.cat([pixels for pixels, _ in found]), torch.cat(own) if own else None

    def where(self, position: int) -> str:
        """Name an image by its place in the whole."""
        return self.source.where(self.rows[position])

    def places(self, start: int, stop: int) -> Tensor:
        """Where these images stood in the set that the whole comes from."""
        return torch.cat([self.source.places(row, row + 1) for row in self.rows[start:stop]])
