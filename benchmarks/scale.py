"""What recording photographs takes: JPEG files in, a folder of shards out, of a ResNet-50 at 224 x 224 pixels and 1000 classes.

    python -m benchmarks.scale                        on the CPU, few photographs
    python -m benchmarks.scale --device cuda          thousands, in bfloat16

Beside it stand what nobody can do without: the bare network on tensors that are ready, and reading and decoding the files in as
many processes; and reading alone, beside a `DataLoader` that takes the same steps of Pillow. docs/scale.md works out from the rates what larger sets cost.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import atta
from atta.data.loading import cores
from atta.data.source import as_source, batches_of
from atta.networks.resnet import resnet50
from benchmarks.collect import BARE
from benchmarks.measured import OURS, Asked, Measured, Steps, alone, interleaved

POLICY = "flip + 2 crop"
PASSES = 4
WHOLE = atta.Preprocess(resize=256, crop=224)
DECODING = "reading and decoding"
LOADER = "torch DataLoader"
DISTINCT = 1024  # making a photograph takes longer than reading it
QUIET = {"progress": False, "checks": False}


@contextmanager
def photographs(count: int) -> Iterator[Path]:
    """A folder of so many JPEGs of 500 x 375 pixels, about the size of ImageNet's; from DISTINCT on, the first ones again."""
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(DISTINCT, count):
            Path(folder, f"{i:05}.jpg").symlink_to(f"{i % DISTINCT:05}.jpg")
        for i in range(min(count, DISTINCT)):
            coarse = torch.rand(1, 3, 24, 32, generator=generator)
            pixels = torch.nn.functional.interpolate(coarse, (375, 500), mode="bicubic")[0].clamp(
                0, 1
            )
            pixels = (pixels + 0.03 * torch.randn(3, 375, 500, generator=generator)).clamp(0, 1)
            photo = Image.fromarray((255 * pixels).byte().permute(1, 2, 0).numpy())
            photo.save(Path(folder) / f"{i:05}.jpg", quality=90)
        yield Path(folder)


def measure(device: torch.device, count: int, size: int, repeats: int) -> list[Measured]:
    """Record all files, decode them alone, and run the network alone, in turns."""
    gpu = device.type == "cuda"
    layout = torch.channels_last if gpu else torch.contiguous_format
    model = resnet50(1000, small_images=False).eval().to(device, memory_format=layout)
    ready = torch.rand(size, 3, 224, 224).to(device).contiguous(memory_format=layout)
    processes = cores()

    def bare() -> None:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=gpu):
            for _ in range(PASSES * -(-count // size)):
                answer = model(ready)
            answer.cpu()

    with photographs(count) as folder, tempfile.TemporaryDirectory() as records:
        turns = iter(range(repeats))
        how = {
            "batch_size": size,
            "autocast": gpu,
            "channels_last": gpu,
            "workers": processes,
            **QUIET,
        }

        def record() -> None:
            atta.collect(
                model,
                folder,
                policy=POLICY,
                preprocess=WHOLE,
                output=Path(records, str(next(turns))),
                **how,
            )

        def decode() -> None:
            source = as_source(folder, preprocess=WHOLE)
            for _ in source.read(batches_of(size, 0, count), processes):
                pass

        ways: dict[str, Callable[[], object]] = {OURS: record, BARE: bare, DECODING: decode}
        times = interleaved(ways, repeats)
    about = {"images": count, "passes": PASSES, "batch": size, "processes": processes}
    what = f"ResNet-50 at 224 pixels{', bf16' if gpu else ''}"
    return [
        Measured(what, OURS, {"seconds": times[OURS], **about}),
        *(Measured(what, who, {"seconds": times[who]}, "limit") for who in (BARE, DECODING)),
    ]


class Plain(Dataset[Tensor]):
    """The photographs as anyone would read them: Pillow's resize and crop, and a tensor of it."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> Tensor:
        image = Image.open(self.files[row]).convert("RGB")
        image = image.resize((341, 256), Image.Resampling.BILINEAR).crop((58, 16, 282, 240))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def reading(count: int, size: int, repeats: int) -> list[Measured]:
    """Read all files in batches: by this package, and by a `DataLoader` on as many processes."""
    with photographs(count) as folder:
        files, batches = sorted(folder.iterdir()), list(batches_of(size, 0, count))

        def ours() -> Tensor:
            for batch in as_source(folder, preprocess=WHOLE).read(batches, cores()):
                last = batch.pixels
            return last

        def theirs() -> Tensor:
            for batch in DataLoader(Plain(files), batch_size=size, num_workers=cores()):
                last: Tensor = batch
            return last

        assert torch.equal(ours(), theirs()), "not the same pixels"
        times = interleaved({OURS: ours, LOADER: theirs}, repeats)
    about = {"images": count, "passes": 1, "batch": size, "processes": cores()}
    what = f"reading photographs on {cores()} cores"
    return [
        Measured(what, OURS, {"seconds": times[OURS], **about}),
        Measured(what, LOADER, {"seconds": times[LOADER]}, "peer"),
    ]


def steps(asked: Asked) -> Steps:
    """One network; as many photographs as take some seconds."""
    device = torch.device(asked.device)
    count, size = (
        (asked.few(16384, 64), asked.few(512, 32))
        if device.type == "cuda"
        else (asked.few(32, 4), asked.few(16, 2))
    )
    files = asked.few(4096 if cores() > 4 else 512, 8)
    return {
        "reading": partial(reading, files, asked.few(64, 2), asked.few(7, 1)),
        "photographs": partial(measure, device, count, size, asked.few(3, 1)),
    }


if __name__ == "__main__":
    alone(steps, __doc__)
