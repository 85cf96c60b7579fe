"""Train small segmentation networks from scratch, in minutes on one GPU.

    python -m benchmarks.train_segmentation camvid.zip unet --out FOLDER            one network
    ... camvid.zip unet,deeplab,former --out FOLDER                                 three processes at once
    ... --steps 5 --size 96x128 --batch 2                                            a trial on a CPU

The data set is a folder or a zip with train, val, test (photographs) and trainannot, valannot, testannot (label maps, PNG).
Each network writes NAME.safetensors (float16) and NAME.json (accuracy, mIoU, losses on val and test, and how it was trained).
It needs torch, NumPy, Pillow and safetensors only.
"""

import argparse
import io
import json
import math
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 11
IGNORED = 11
NAMES = [
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
]
MEAN, STD = (0.41, 0.42, 0.43), (0.30, 0.31, 0.30)


class Normalize(nn.Module):
    """Pixels in [0, 1] to zero mean and unit variance: the networks contain their normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise."""
        return (x - self.mean) / self.std


def resized(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """Bilinear."""
    return F.interpolate(x, size=list(size), mode="bilinear", align_corners=False)


def conv(a: int, b: int, stride: int = 1, dilation: int = 1, kernel: int = 3) -> nn.Sequential:
    """Convolution, batch normalisation, ReLU."""
    pad = dilation * (kernel // 2)
    layer = nn.Conv2d(a, b, kernel, stride, pad, dilation, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(b), nn.ReLU(inplace=True))


class UNet(nn.Module):
    """A U-Net with four halvings, for images of any size; answers a tensor at full size."""

    def __init__(self, classes: int = CLASSES, widths: tuple[int, ...] = (32, 64, 128, 224, 320)):
        super().__init__()
        self.normalize = Normalize()
        before = (3, *widths[:-1])
        self.down = nn.ModuleList(
            nn.Sequential(conv(a, b), conv(b, b)) for a, b in zip(before, widths, strict=True)
        )
        pairs = list(zip(widths[1:], widths[:-1], strict=True))[::-1]
        self.up = nn.ModuleList(nn.Sequential(conv(a + b, b), conv(b, b)) for a, b in pairs)
        self.drop = nn.Dropout2d(0.2)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes, h, w)."""
        x = self.normalize(x)
        kept = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        x = self.drop(kept.pop())
        for block in self.up:
            skip = kept.pop()
            x = block(torch.cat([resized(x, skip.shape[-2:]), skip], 1))
        return self.head(x)


class Residual(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut."""

    def __init__(self, a: int, b: int, stride: int = 1, dilation: int = 1):
        super().__init__()
        self.first = conv(a, b, stride, dilation)
        self.second = nn.Conv2d(b, b, 3, 1, dilation, dilation, bias=False)
        self.norm = nn.BatchNorm2d(b)
        same = stride == 1 and a == b
        self.short = nn.Identity() if same else nn.Conv2d(a, b, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both."""
        return F.relu(self.norm(self.second(self.first(x))) + self.short(x))


class DeepLab(nn.Module):
    """A residual network with dilated last stages, pooling at several rates and a skip connection.

    Answers {"out": logits}, as networks of torchvision do.
    """

    def __init__(self, classes: int = CLASSES):
        super().__init__()
        self.normalize = Normalize()
        self.stem = nn.Sequential(conv(3, 32, 2), conv(32, 48))
        self.quarter = nn.Sequential(Residual(48, 64, 2), Residual(64, 64))
        self.eighth = nn.Sequential(Residual(64, 128, 2), Residual(128, 128), Residual(128, 128))
        self.deep = nn.Sequential(Residual(128, 224, 1, 2), Residual(224, 224, 1, 4))
        self.rates = nn.ModuleList(conv(224, 96, 1, rate) for rate in (1, 6, 12))
        self.pooled = nn.Conv2d(224, 96, 1)
        self.mixed = nn.Sequential(conv(4 * 96, 128, kernel=1), nn.Dropout2d(0.2))
        self.skip = conv(64, 48, kernel=1)
        self.head = nn.Sequential(conv(128 + 48, 96), nn.Conv2d(96, classes, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Logits (n, classes, h, w), by the name "out"."""
        low = self.quarter(self.stem(self.normalize(x)))
        high = self.deep(self.eighth(low))
        whole = F.relu(self.pooled(high.mean((2, 3), keepdim=True))).expand(-1, -1, *high.shape[2:])
        high = self.mixed(torch.cat([*(rate(high) for rate in self.rates), whole], 1))
        high = self.head(torch.cat([resized(high, low.shape[-2:]), self.skip(low)], 1))
        return {"out": resized(high, x.shape[-2:])}


class Attention(nn.Module):
    """Self-attention whose keys are pooled, then a feed-forward layer with a 3 × 3 convolution."""

    def __init__(self, width: int, heads: int, ratio: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.pool = nn.Conv2d(width, width, ratio, ratio) if ratio > 1 else nn.Identity()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.local = nn.Conv2d(4 * width, 4 * width, 3, 1, 1, groups=4 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (n, c, h, w) to maps."""
        n, c, h, w = x.shape
        rows = x.flatten(2).transpose(1, 2)
        y = self.norm1(rows)
        q = self.q(y).view(n, -1, self.heads, c // self.heads).transpose(1, 2)
        pooled = self.pool(y.transpose(1, 2).reshape(n, c, h, w)).flatten(2).transpose(1, 2)
        kv = self.kv(pooled).view(n, -1, 2, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, kv[0], kv[1])
        rows = rows + self.out(y.transpose(1, 2).reshape(n, -1, c))
        y = self.fc1(self.norm2(rows)).transpose(1, 2).reshape(n, 4 * c, h, w)
        y = F.gelu(self.local(y)).flatten(2).transpose(1, 2)
        return (rows + self.fc2(y)).transpose(1, 2).reshape(n, c, h, w)


class Former(nn.Module):
    """A small SegFormer. Answers an object with `.logits` at a quarter of the size, as transformers does."""

    def __init__(self, classes: int = CLASSES, widths: tuple[int, ...] = (32, 64, 160, 256)):
        super().__init__()
        self.normalize = Normalize()
        self.embed = nn.ModuleList(
            nn.Conv2d(a, b, 7 if i == 0 else 3, 4 if i == 0 else 2, 3 if i == 0 else 1)
            for i, (a, b) in enumerate(zip((3, *widths), widths, strict=False))
        )
        settings = zip(widths, (1, 2, 5, 8), (8, 4, 2, 1), strict=True)
        self.blocks = nn.ModuleList(
            nn.Sequential(Attention(*each), Attention(*each)) for each in settings
        )
        self.norms = nn.ModuleList(nn.GroupNorm(1, width) for width in widths)
        self.project = nn.ModuleList(nn.Conv2d(width, 128, 1) for width in widths)
        self.head = nn.Sequential(
            conv(4 * 128, 192, kernel=1), nn.Dropout2d(0.1), nn.Conv2d(192, classes, 1)
        )

    def forward(self, x: Tensor) -> Any:
        """Logits (n, classes, h / 4, w / 4), as the attribute `logits`."""
        x = self.normalize(x)
        maps: list[Tensor] = []
        layers = zip(self.embed, self.blocks, self.norms, self.project, strict=True)
        for embed, blocks, norm, project in layers:
            x = norm(blocks(embed(x)))
            y = project(x)
            maps.append(resized(y, maps[0].shape[-2:]) if maps else y)
        return SimpleNamespace(logits=self.head(torch.cat(maps, 1)))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], float]] = {
    "unet": (UNet, 1e-3),
    "deeplab": (DeepLab, 1e-3),
    "former": (Former, 6e-4),
}
"""Each network and its learning rate."""


def load(name: str, folder: str | Path) -> nn.Module:
    """A trained network, in evaluation mode and float32."""
    from safetensors.torch import load_file

    network = NETWORKS[name][0]()
    weights = load_file(Path(folder) / f"{name}.safetensors")
    network.load_state_dict(
        {k: v.float() if v.is_floating_point() else v for k, v in weights.items()}
    )
    return network.eval()


def logits_of(answer: Any, size: tuple[int, ...]) -> Tensor:
    """The logits in what a network answers, at the size of the images."""
    if isinstance(answer, dict):
        answer = answer["out"]
    logits = getattr(answer, "logits", answer)
    return logits if logits.shape[-2:] == size else resized(logits, size)


def read(data: str | Path, split: str) -> tuple[list[str], Tensor, Tensor]:
    """Names, pixels (n, 3, h, w) and label maps (n, h, w) of a split, as bytes."""
    path = Path(data)
    if path.is_dir():
        found = {f.relative_to(path).as_posix(): f.read_bytes() for f in path.rglob("*.*")}
    else:
        with zipfile.ZipFile(path) as archive:
            found = {name: archive.read(name) for name in archive.namelist()}
    stems = {name.rsplit(".", 1)[0]: name for name in found}
    names = sorted(s.split("/")[1] for s in stems if s.startswith(f"{split}/"))

    def decoded(name: str, mode: str) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(found[stems[name]])).convert(mode))

    pixels = np.stack([decoded(f"{split}/{name}", "RGB") for name in names])
    labels = np.stack([decoded(f"{split}annot/{name}", "L") for name in names])
    return (
        names,
        torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(),
        torch.from_numpy(labels),
    )


def augmented(
    pixels: Tensor, labels: Tensor, size: tuple[int, int], rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Random flips, scales, crops, brightness and contrast, on the device of the images."""
    n, _, h, w = pixels.shape
    device = pixels.device

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(n, generator=rng, device=device) * (high - low) + low

    zoom = torch.exp(uniform(math.log(0.6), math.log(2.0)))  # > 1: a smaller part of the image
    across, down = size[1] / w / zoom, size[0] / h / zoom  # the part that is seen
    flip = torch.where(uniform(0, 1) < 0.5, -1.0, 1.0)
    theta = torch.zeros(n, 2, 3, device=device)
    theta[:, 0, 0], theta[:, 1, 1] = across * flip, down
    theta[:, 0, 2] = uniform(-1, 1) * (1 - across).abs()
    theta[:, 1, 2] = uniform(-1, 1) * (1 - down).abs()
    grid = F.affine_grid(theta, [n, 3, *size], align_corners=False)
    images = F.grid_sample(pixels.float() / 255, grid, "bilinear", "zeros", align_corners=False)
    shifted = labels[:, None].float() - IGNORED  # zeros outside mean: ignored
    masks = F.grid_sample(shifted, grid, "nearest", "zeros", align_corners=False)[:, 0] + IGNORED
    contrast, bright = uniform(0.7, 1.3).view(-1, 1, 1, 1), uniform(-0.15, 0.15).view(-1, 1, 1, 1)
    images = ((images - 0.4) * contrast + 0.4 + bright).clamp(0, 1)
    return images, masks.round().long()


@torch.no_grad()
def tested(network: nn.Module, pixels: Tensor, labels: Tensor, batch: int) -> dict[str, float]:
    """Pixel accuracy, mean IoU and the loss on whole images, in float32."""
    was = network.training
    network.eval()
    counts = torch.zeros(CLASSES, CLASSES, device=pixels.device, dtype=torch.float64)
    loss = torch.zeros((), device=pixels.device, dtype=torch.float64)
    for first in range(0, len(pixels), batch):
        part, truth = pixels[first : first + batch], labels[first : first + batch].long()
        logits = logits_of(network(part.float() / 255), part.shape[-2:]).float()
        loss += F.cross_entropy(logits, truth, ignore_index=IGNORED, reduction="sum")
        known = truth != IGNORED
        pairs = truth[known] * CLASSES + logits.argmax(1)[known]
        counts += torch.bincount(pairs, minlength=CLASSES**2).view(CLASSES, CLASSES)
    network.train(was)
    right, total = counts.diag(), counts.sum()
    union = counts.sum(0) + counts.sum(1) - right
    share = torch.where(union > 0, right / union.clamp(min=1), torch.nan)
    return {
        "accuracy": float(right.sum() / total),
        "miou": float(share.nanmean()),
        "nll": float(loss / total),
        **{f"iou {name}": float(x) for name, x in zip(NAMES, share, strict=True)},
    }


def shuffled(n: int, batch: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Positions of batches, epoch after epoch, without end."""
    while True:
        order = torch.randperm(n, generator=rng, device=rng.device)
        for first in range(0, n - batch + 1, batch):
            yield order[first : first + batch]


def learn(
    network: nn.Module, pixels: Tensor, labels: Tensor, rate: float, args: argparse.Namespace
) -> Iterator[tuple[int, float, float]]:
    """Train until the time or the steps are over; yields step, progress and loss."""
    device = pixels.device
    rng = torch.Generator(device).manual_seed(args.seed)
    decayed = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate)
    start = time.perf_counter()
    for step, chosen in enumerate(shuffled(len(pixels), args.batch, rng), 1):
        spent = (time.perf_counter() - start) / (60 * args.minutes)
        done = max(spent, step / args.steps if args.steps else 0.0)
        scale = min(step / 200, 1.0) * (0.01 + 0.99 * (1 + math.cos(math.pi * min(done, 1))) / 2)
        for group in optimizer.param_groups:
            group["lr"] = rate * scale
        images, masks = augmented(pixels[chosen], labels[chosen], args.size, rng)
        images = images.to(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = logits_of(network(images), masks.shape[-2:])
        loss = F.cross_entropy(logits.float(), masks, ignore_index=IGNORED)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        yield step, done, float(loss.detach()) if step % 20 == 0 or done >= 1 else math.nan
        if done >= 1:
            return


def train(name: str, args: argparse.Namespace) -> None:
    """Train one network, test it as it is saved (in float16), and write both files."""
    from safetensors.torch import save_file

    device = torch.device(args.device)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True
    make, rate = NETWORKS[name]
    network = make().to(device=device, memory_format=torch.channels_last).train()
    sets = {s: [x[: args.limit].to(device) for x in read(args.data, s)[1:]] for s in args.splits}
    log: list[dict[str, float]] = []
    start = time.perf_counter()
    told, recent, step = 0.0, math.nan, 0
    for step, done, loss in learn(network, *sets["train"], rate, args):
        recent = recent if math.isnan(loss) else loss
        if done - told >= 0.1 or done >= 1:
            told = done
            now = tested(network, *sets["val"], args.batch)
            seconds = time.perf_counter() - start
            log.append(
                {"step": step, "seconds": round(seconds, 1), "loss": round(recent, 4), **now}
            )
            print(f"{name} {step} {seconds:.0f}s loss {recent:.4f} {summary(now)}", flush=True)
    into = Path(args.out)
    into.mkdir(parents=True, exist_ok=True)
    weights = {k: v.half() if v.is_floating_point() else v for k, v in network.state_dict().items()}
    save_file({k: v.contiguous().cpu() for k, v in weights.items()}, into / f"{name}.safetensors")
    network = load(name, into).to(device)
    results = {s: tested(network, *sets[s], args.batch) for s in args.splits}
    about = {
        "network": name,
        "parameters": sum(p.numel() for p in network.parameters()),
        "classes": NAMES,
        "steps": step,
        "seconds": round(time.perf_counter() - start, 1),
        "batch": args.batch,
        "crop": list(args.size),
        "rate": rate,
        "seed": args.seed,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        **results,
        "log": log,
    }
    (into / f"{name}.json").write_text(json.dumps(about, indent=1) + "\n")
    print(name, {s: summary(r) for s, r in results.items()}, flush=True)


def summary(numbers: dict[str, float]) -> str:
    """Three numbers in a line."""
    return " ".join(f"{k} {numbers[k]:.4f}" for k in ("accuracy", "miou", "nll"))


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("data", help="a folder or a zip with train, trainannot, val, …")
    parser.add_argument("names", help=f"some of {', '.join(NETWORKS)}")
    parser.add_argument("--out", required=True)
    parser.add_argument("--minutes", type=float, default=6.0, help="the time to train for")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many, if earlier")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", default="360x480", help="height x width of the crops")
    parser.add_argument("--limit", type=int, default=None, help="images of each split")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(words)
    args.size = tuple(int(x) for x in args.size.split("x"))
    args.splits = ("train", "val", "test")
    return args


def main() -> int:
    """Train one network here, or each of several in a process of its own, at the same time."""
    args = parsed()
    names = args.names.split(",")
    if len(names) == 1:
        train(names[0], args)
        return 0
    at = sys.argv.index(args.names) + 2
    command = [sys.executable, "-m", "benchmarks.train_segmentation", *sys.argv[1:]]
    running = []
    for name in names:
        command[at] = name
        running.append(subprocess.Popen(list(command)))
    return max(abs(process.wait()) for process in running)


if __name__ == "__main__":
    sys.exit(main())
