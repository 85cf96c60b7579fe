"""The class is kept: hard rows by the million, through everything that answers."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import atta
from atta.functional import atta as answer
from benchmarks.attack import toys
from benchmarks.attack.tally import Attack, Effort, Tally, refusal

FAMILIES = ("random", "close calls", "tied", "nearly tied", "one-hot", "extreme", "flat")
TYPES = (
    (2, torch.float64),
    (5, torch.float16),
    (10, torch.float32),
    (10, torch.bfloat16),
    (100, torch.float32),
)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
KINDS, PIECE = 4, 100_000
AGREE = 1e-5  # answers of one dtype
AGREE_WIDER = 5e-5  # float32 with float64: near a tie the share moves 1/NEAR = 50 times as fast as what float32 has rounded
SCALES = (1e-30, 1e-3, 1.0, 30.0, 5000.0, 1e10, 1e30, 1e38)


def hard_rows(
    family: str, n: int, k: int, kinds: int, draw: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Logits (n k) and view logits (n kinds k) of one family, in float32, all of them hard in their own way."""
    logits, views = torch.randn(n, k, generator=draw), torch.randn(n, kinds, k, generator=draw)
    match family:
        case "close calls":  # the second class a hair behind, and every view for it
            order = logits.topk(2, dim=1)
            hair = 10 ** (-1 - 6 * torch.rand(n, 1, generator=draw))
            logits = logits.scatter(1, order.indices[:, 1:], order.values[:, :1] - hair)
            views.scatter_add_(
                2, order.indices[:, None, 1:].expand(n, kinds, 1), views.new_full((n, kinds, 1), 3)
            )
        case "tied":  # small whole numbers: two classes in front of many a row
            logits, views = logits.round(), views.round()
        case "nearly tied":
            logits, views = 1e-7 * logits + torch.randn(n, 1, generator=draw), 1e-6 * views
        case "one-hot":
            logits = 50 * nn.functional.one_hot(logits.argmax(1), k).float()
            views = 50 * nn.functional.one_hot(views.argmax(2), k).float()
        case "extreme":
            logits, views = 1e4 * logits, 1e4 * views
        case "flat":
            logits = torch.zeros_like(logits)
    return logits, views


def pieces(total: int, k: int) -> Iterator[int]:
    """Numbers of rows that add up to the total, each few enough for the memory."""
    most = max(1, PIECE * 10 // max(k, 10))
    while total > 0:
        yield min(most, total)
        total -= most


def changes(probs: Tensor, scores: Tensor) -> int:
    """In how many rows the class is not that of the logits, the first of equal ones, or the answer is none at all."""
    wrong = probs.argmax(-1) != scores.argmax(-1)
    wrong |= ~torch.isfinite(probs).all(-1) | ((probs.sum(-1) - 1).abs() > 1e-3)
    return int(wrong.sum())


def through_the_formula(tally: Tally, effort: Effort) -> None:
    """`atta.functional.atta` itself, in every dtype, both spaces, the closed form and the paper's grid."""
    draw, moved = effort.generator("formula"), 0
    forms = list(itertools.product((None, 0.01), ("logits", "probabilities")))
    for family, (k, dtype) in itertools.product(FAMILIES, TYPES):
        share = 400_000 if k <= 10 else 40_000  # ten million rows in all
        for i, n in enumerate(pieces(effort.times(share), k)):
            step, space = forms[i % 4] if i % 2 else (None, "logits")
            logits, views = (z.to(dtype) for z in hard_rows(family, n, k, KINDS, draw))
            scale = 10.0 ** float(torch.randint(-1, 4, (), generator=draw))
            weights = (scale * torch.randn(KINDS, k if i % 2 else 1, generator=draw)).to(dtype)
            limit = 1.0 if i % 3 else float(torch.rand((), generator=draw))
            probs = answer(logits, views, weights, limit, step=step, space=space)
            bad = changes(probs, logits)
            moved += int((probs != logits.to(probs.dtype).softmax(-1)).any(-1).sum())
            tally.count_many(
                n, bad, f"{family}, {k} classes, {dtype}, step {step}, {space}: the class changed"
            )
    tally.note = f"{moved / tally.tried:.0%} of the answers were moved by their views"


def through_every_method(tally: Tally, effort: Effort) -> None:
    """Each method that promises to keep the class, fitted on a few hundred images, at several scales of the logits."""
    draw = effort.generator("methods")
    promising = [name for name in atta.METHODS if atta.find_method(name).keeps_class]
    repeats = toys.repeats()
    for name, (k, scale) in itertools.product(
        promising, ((2, 0.05), (10, 0.05), (10, 1.0), (2, 10.0))
    ):
        calibrator = atta.find_method(name).fit(*toys.predictions(300, k, scale=2.5 * scale))
        for family, dtype in itertools.product(FAMILIES, DTYPES):
            n = effort.times(2_000)
            most = torch.finfo(dtype).max  # of float16, 65504
            logits, views = (
                (scale * z.double()).clamp(-most, most).to(dtype)
                for z in hard_rows(family, n, k, sum(repeats.values()), draw)
            )
            parts = views.split(list(repeats.values()), dim=1)
            rows = atta.Predictions(logits, dict(zip(repeats, parts, strict=True)))
            what = f"{name}, {k} classes, {family}, logits times {scale}, {dtype}"
            tally.count_many(n, changes(calibrator(rows), logits), f"{what}: the class changed")
    tally.note = f"{len(promising)} methods"


def through_a_classifier(tally: Tally, effort: Effort) -> None:
    """`CalibratedClassifier` on images, whole and as a graph, against what the network itself says."""
    import tempfile

    from atta.classifier.export import open_graph

    seed = 0
    for method in ("v-atta", "c-atta", "selective-v-atta"):
        classifier = toys.classifier(method)
        with torch.no_grad():  # two classes alike: ties and near-ties of the network itself
            last = [layer for layer in classifier.model.modules() if isinstance(layer, nn.Linear)][
                -1
            ]
            last.weight[1] = last.weight[0] + 1e-7 * last.weight[1]
            last.bias[1] = last.bias[0]
        with tempfile.TemporaryDirectory() as folder:
            graphs = {}
            if method == "v-atta":
                path = classifier.export(Path(folder) / "graph.onnx").path
                graphs["onnx"] = open_graph(path).run
                path = classifier.export(Path(folder) / "graph.pt2").path
                graphs["pt2"] = torch.export.load(path).module()
            for n in pieces(effort.times(8_000), 1000):
                seed += 1
                pixels = toys.images(n, seed=seed).float() / 255
                found = classifier.details(pixels)
                tally.count_many(
                    n,
                    changes(found.probs, found.base),
                    f"a classifier by {method}: the class changed",
                )
                for ending, graph in graphs.items():
                    probs, base, *_ = graph(pixels)
                    tally.count_many(
                        n,
                        changes(probs, base),
                        f"{ending} of a classifier: the class changed",
                    )


class Formula(nn.Module):
    """The formula as a module, which exporters take."""

    def __init__(self, weights: Tensor, limit: float) -> None:
        super().__init__()
        self.limit = limit
        self.register_buffer("weights", weights)

    def forward(self, logits: Tensor, views: Tensor) -> Tensor:
        """Answer."""
        return answer(logits, views, self.weights, self.limit)


def exported(
    module: nn.Module, k: int, folder: Path
) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """The module by torch.export and by ONNX Runtime."""
    import onnxruntime

    n = torch.export.Dim("n", min=1)
    example = (torch.randn(2, k), torch.randn(2, KINDS, k))
    program = torch.export.export(module, example, dynamic_shapes=({0: n}, {0: n}))
    found = {"torch.export": program.module()}
    torch.onnx.export(program, dynamo=True, input_names=["logits", "views"], verbose=False).save(
        folder / "formula.onnx"
    )
    session = onnxruntime.InferenceSession(
        str(folder / "formula.onnx"), providers=["CPUExecutionProvider"]
    )

    def run(logits: Tensor, views: Tensor) -> Tensor:
        names = [given.name for given in session.get_inputs()]
        given = dict(zip(names, (logits.numpy(), views.numpy()), strict=True))
        return torch.from_numpy(session.run(None, given)[0])

    return {**found, "ONNX Runtime": run}


def quietly(
    action: Callable[[], dict[str, Callable[[Tensor, Tensor], Tensor]]],
) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Export without what exporters say on the way."""
    import logging
    import warnings

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return action()


def through_graphs(tally: Tally, effort: Effort) -> None:
    """The formula as torch.export and ONNX Runtime run it."""
    import tempfile

    draw, k = effort.generator("graphs"), 10
    with tempfile.TemporaryDirectory() as folder:
        for wide in (1, k):
            module = Formula(torch.randn(KINDS, wide, generator=draw), 1.0)
            for name, run in quietly(
                lambda module=module: exported(module, k, Path(folder))
            ).items():
                for family in FAMILIES:
                    for n in pieces(effort.times(60_000), k):
                        logits, views = hard_rows(family, n, k, KINDS, draw)
                        tally.count_many(
                            n,
                            changes(run(logits, views), logits),
                            f"{name}, {family}: the class changed",
                        )


def the_same_everywhere(tally: Tally, effort: Effort) -> None:
    """Eager, exported and in other batches: the same answer within 1e-5, on near-ties too; in float64 within 5e-5."""
    import tempfile

    draw, k, worst = effort.generator("same"), 10, {"float32": 0.0, "float64": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        weights = 0.5 * torch.randn(KINDS, 1, generator=draw)
        module = Formula(weights, 0.9)
        others = quietly(lambda: exported(module, k, Path(folder)))
    others["float64"] = lambda z, v: answer(z.double(), v.double(), weights.double(), 0.9)
    others["batches of 7"] = lambda z, v: torch.cat(
        [module(a, b) for a, b in zip(z.split(7), v.split(7), strict=True)]
    )
    for family in ("close calls", "tied", "nearly tied", "flat", "random"):
        for n in pieces(effort.times(30_000), k):
            logits, views = hard_rows(family, n, k, KINDS, draw)
            logits[: n // 3, 1], views[: n // 3, :, 1] = (
                logits[: n // 3, 0],
                views[: n // 3, :, 0],
            )  # level in both
            views[n // 6 : n // 3, :, 1] += 3e-7
            eager = module(logits, views).double()
            for name, run in others.items():
                gap = (run(logits, views).double() - eager).abs().amax(-1)
                dtype = name if name in worst else "float32"
                worst[dtype] = max(worst[dtype], float(gap.max()))
                near = AGREE_WIDER if name == "float64" else AGREE
                tally.count_many(
                    n,
                    int((gap > near).sum()),
                    f"{name}, {family}: up to {float(gap.max()):.2g} from eager",
                )
    tally.note = f"largest difference {worst['float32']:.1e}, {worst['float64']:.1e} to float64"


def fits_at_any_scale(tally: Tally, effort: Effort) -> None:
    """Every method on logits of any finite size: an answer on the simplex; C-ATTA never worse than temperature."""
    for name, scale, dtype in itertools.product(
        atta.METHODS, SCALES, (torch.float32, torch.float64)
    ):
        if dtype == torch.float64 and 1e-3 <= scale <= 30:
            continue
        rows, labels = toys.predictions(120)
        factor = scale / float(rows.logits.abs().max())
        rows = atta.Predictions(*(_times(rows, factor, dtype)))
        what = f"{name} on logits up to {scale:g} in {dtype}"
        try:
            probs = atta.find_method(name).fit(rows, labels)(rows)
        except Exception as error:
            tally.count(not refusal(error), f"{what}: {refusal(error)}")
            continue
        tally.count(bool(torch.isfinite(probs).all()), f"{what}: the answers are not finite")
    for what, rows, labels in saturated():
        nll = {name: _nll(name, rows, labels) for name in ("temperature", "c-atta", "v-atta")}
        tally.count(
            nll["c-atta"] <= nll["temperature"] + 1e-3,
            f"{what}: the NLL of its own images is {nll}",
        )


def saturated() -> Iterator[tuple[str, atta.Predictions, Tensor]]:
    """Networks that are always sure: one-hot logits, a decision tree's probabilities, logits that were multiplied."""
    draw, n, k = torch.Generator().manual_seed(0), 400, 5
    labels = torch.randint(k, (n,), generator=draw)

    def said(right: float) -> Tensor:
        other = torch.randint(k, (n,), generator=draw)
        return torch.where(torch.rand(n, generator=draw) < right, labels, other)

    for what, of in (
        ("one-hot logits times 30", lambda: 30 * nn.functional.one_hot(said(0.8), k).float()),
        (
            "a decision tree",
            lambda: nn.functional.one_hot(said(0.8), k).double().clamp(1e-38).log().float(),
        ),
        (
            "logits times 1000",
            lambda: (
                1000 * (2 * nn.functional.one_hot(said(0.9), k) + torch.randn(n, k, generator=draw))
            ),
        ),
    ):
        yield (
            what,
            atta.Predictions(
                of(), {kind: of()[:, None].repeat(1, r, 1) for kind, r in toys.repeats().items()}
            ),
            labels,
        )


def _nll(method: str, rows: atta.Predictions, labels: Tensor) -> float:
    return atta.evaluate(atta.find_method(method).fit(rows, labels)(rows), labels, metrics=["nll"])[
        "nll"
    ]


def _times(
    rows: atta.Predictions, factor: float, dtype: torch.dtype
) -> tuple[Tensor, dict[str, Tensor]]:
    most = torch.finfo(torch.float32).max

    def times(z: Tensor) -> Tensor:
        return (z.double() * factor).clamp(-most, most).to(dtype)

    return times(rows.logits), {kind: times(view) for kind, view in rows.views.items()}


ATTACKS = (
    Attack(
        "class: formula",
        "rows through `atta.functional`, in five dtypes and sizes",
        through_the_formula,
    ),
    Attack(
        "class: methods",
        "rows through every method that promises to keep the class: logits times 0.05, 1 and 10, in four dtypes",
        through_every_method,
    ),
    Attack(
        "class: classifier",
        "images through classifiers and their .pt2 and .onnx",
        through_a_classifier,
        400,
    ),
    Attack(
        "class: graphs",
        "rows through the formula as torch.export and ONNX Runtime run it",
        through_graphs,
    ),
    Attack(
        "continuity",
        "rows, near-ties among them: graphs and other batches answer within 1e-5, float64 within 5e-5",
        the_same_everywhere,
    ),
    Attack(
        "fits at any scale",
        "every method fitted on logits from 1e-30 to 1e38, and on networks that are always sure",
        fits_at_any_scale,
    ),
)
