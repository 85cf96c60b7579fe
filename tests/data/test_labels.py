"""The same images with the same labels, however the labels are told."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import atta
from atta._base.errors import InputError
from atta.data.labels import imagenet, imagenet_names, labelling_of, read_labels
from atta.data.source import as_source
from atta.record.predictions import as_labels
from scenarios import command, vit

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
NAMES = ("ant", "bee", "cat", "dog")


class Knowing(nn.Module):
    """Says the class that is written into the first pixel."""

    def forward(self, images):
        return (
            9 * torch.eye(4)[(images[:, 0, 0, 0] * 255).round().long() % 4]
            + images.mean(dim=(1, 2, 3))[:, None]
        )


def write(folder, name_of, left_out=()):
    made = np.random.default_rng(0)
    for i in range(40):
        pixels = made.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        pixels[0, 0, 0] = pixels[0, 0, 0] // 4 * 4 + i % 4
        if i % 4 not in left_out:
            path = folder / name_of(i % 4) / f"{i:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return folder


def right(record):
    return int((record.predictions.logits.argmax(dim=1) == record.labels).sum())


def recorded(folder, labels=None, **how):
    return atta.collect(Knowing(), folder, labels, policy="flip", progress=False, **how)


@pytest.mark.parametrize(
    "name_of",
    [lambda k: NAMES[k], lambda k: NAMES[k].upper(), str],
    ids=["names", "capitals", "numbers"],
)
def test_a_class_that_is_missing_moves_no_other(tmp_path, name_of):
    record = recorded(write(tmp_path, name_of, left_out=(1,)), class_names=NAMES)
    assert right(record) == len(record) == 30


def test_numbers_are_numbers_without_any_names(tmp_path):
    assert right(recorded(write(tmp_path, str, left_out=(0, 2)))) == 20
    many = write(tmp_path / "many", lambda k: str((2, 9, 10, 11)[k]))
    assert sorted(set(as_source(many).labels.tolist())) == [2, 9, 10, 11]


def test_a_missing_class_of_a_network_without_names_is_refused(tmp_path):
    with pytest.raises(
        InputError,
        match=r"have 3 classes \(ant, cat, dog\), and the network has 4.*class_names=.*--classes",
    ):
        recorded(write(tmp_path, NAMES.__getitem__, left_out=(1,)))


def test_a_folder_of_no_class_is_refused_with_the_one_that_was_meant(tmp_path):
    with pytest.raises(
        InputError, match=r"got 'catt': no class has that name\. Did you mean 'cat'"
    ):
        recorded(write(tmp_path, ("ant", "bee", "catt", "dog").__getitem__), class_names=NAMES)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("label_of", [lambda k: NAMES[k], lambda k: k], ids=["names", "numbers"])
def test_labels_come_from_a_table(tmp_path, ending, label_of):
    folder = write(tmp_path / "flat", lambda k: "")
    rows = [(f"{i:02}.png", label_of(i % 4)) for i in reversed(range(40))]
    path = tmp_path / f"labels.{ending}"
    if ending == "csv":
        path.write_text(
            "file,label\n" + "".join(f"{file},{label}\n" for file, label in rows),
            encoding="utf-8-sig",
        )
    else:
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(
            pa.table({"file": [r[0] for r in rows], "label": [r[1] for r in rows]}), path
        )
    assert right(recorded(folder, str(path), class_names=NAMES)) == 40


@pytest.mark.parametrize(
    "header",
    ["image,category", "filename,target", " Path , Class ", "img,labels", "image_path,label"],
)
def test_obvious_names_of_columns_are_known(tmp_path, header):
    (tmp_path / "labels.csv").write_text(f"{header}\na.png,ant\nb.png,bee\n")
    assert read_labels(tmp_path / "labels.csv") == {"a.png": "ant", "b.png": "bee"}
    (tmp_path / "labels.csv").write_text("target,category,label,file\n9,bird,ant,a.png\n")
    assert read_labels(tmp_path / "labels.csv") == {"a.png": "ant"}


def test_columns_of_pandas_are_lists(tmp_path):
    pandas = pytest.importorskip("pandas")
    folder = write(tmp_path / "flat", lambda k: "")
    rows = [(str(folder / f"{i:02}.png"), NAMES[i % 4], i % 4) for i in range(40)]
    table = pandas.DataFrame(rows, columns=["file", "name", "number"])
    table = table.sample(frac=1, random_state=0)  # the index is not the position any more
    for labels in (table["name"], table["name"].astype("category"), table["number"]):
        assert right(recorded(table["file"], labels, class_names=NAMES)) == 40
    record = recorded(table["file"].to_numpy(), table["number"], class_names=NAMES)
    assert torch.equal(as_labels(table["number"], images=40, classes=4), record.labels)


def test_the_order_that_is_assumed_of_classes_without_names_is_said(tmp_path):
    folder = write(tmp_path / "named", NAMES.__getitem__)
    files = sorted(folder.rglob("*.png"))
    order = "alphabetical order: 0 is ant, 1 is bee, 2 is cat, 3 is dog.*class_names="
    with pytest.warns(atta.Advice, match=order):
        recorded(folder)
    with pytest.warns(atta.Advice, match=order):
        recorded(files, [file.parent.name for file in files])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        recorded(folder, class_names=NAMES)
    assert not [one for one in said if "alphabetical" in str(one.message)]


@pytest.mark.parametrize("installed", [True, False])
def test_imagenet_s_classes_have_human_names_where_timm_is_installed(
    tmp_path, monkeypatch, installed
):
    info = tmp_path / "timm" / "data" / "_info"
    info.mkdir(parents=True)
    rows = [
        f"{wnid}\tname {i // 2}, n{i}" if i else f"{wnid}\tcrane" for wnid, i in imagenet().items()
    ]
    (info / "imagenet_synset_to_lemma.txt").write_text(
        "\n".join(rows).replace("name 0, n1", "crane")
    )
    spec = SimpleNamespace(origin=str(tmp_path / "timm" / "__init__.py"))
    monkeypatch.setattr("atta.data.labels.find_spec", lambda name: spec if installed else None)
    imagenet_names.cache_clear()
    wnids = [*imagenet()]
    given = [wnids[1], wnids[3], wnids[1]]
    found = labelling_of(given, as_source(torch.zeros(3, 3, 8, 8)), ()).settled(1000)
    assert found.labels.tolist() == [1, 3, 1]
    expected = (f"crane ({wnids[0]})", f"crane ({wnids[1]})", "name 1, n2", "name 1, n3")
    assert found.classes[:4] == (expected if installed else tuple(wnids[:4]))
    everything = labelling_of(wnids, as_source(torch.zeros(1000, 1, 1, 1)), ()).settled(1000)
    assert everything.labels.tolist() == [*range(1000)]
    assert everything.classes == found.classes
    imagenet_names.cache_clear()


def test_whole_paths_tell_files_of_one_name_apart(tmp_path):
    folder, path = tmp_path / "photos", tmp_path / "labels.csv"
    files = []
    for k, name in enumerate(("first", "second")):
        for i in range(4):
            pixels = np.full((8, 8, 3), 4 * i + (i + k) % 4, dtype=np.uint8)
            files.append((folder / name / f"{i}.png", (i + k) % 4))
            files[-1][0].parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(files[-1][0])
    lines = [f"{file},{label}\n" for file, label in files]
    path.write_text("file,label\n" + "".join(lines))
    assert right(recorded([file for file, _ in files], str(path))) == 8
    path.write_text("file,label\n" + "".join(lines[:4]))  # of the first folder alone
    with pytest.raises(InputError, match=r"no row for 4 of 8 images, first .*second.0\.png"):
        recorded([file for file, _ in files], str(path))
    moved = "".join(
        f"/elsewhere/{file.parent.name}/{file.name},{label}\n" for file, label in files[:4]
    )
    path.write_text(f"file,label\n{moved}")  # before they were moved: by their names
    assert right(recorded([file for file, _ in files[:4]], str(path))) == 4


def test_a_table_that_lacks_a_file_or_a_column_is_refused(tmp_path):
    folder, path = write(tmp_path / "flat", lambda k: ""), tmp_path / "labels.csv"
    path.write_text("file,label\n00.png,0\n")
    with pytest.raises(
        InputError, match=r"no row for 39 of 40 .*04\.png: .* first name is 00\.png"
    ):
        recorded(folder, path)
    path.write_text("id,species\n1,ant\n")
    with pytest.raises(
        InputError, match=r"expected the columns file and label .* found id, species: name them so"
    ):
        read_labels(path)


def test_the_network_s_own_names_are_used(tmp_path):
    network = vit()
    network.config.id2label = dict(enumerate(NAMES))
    network.classifier, size = nn.Linear(network.config.hidden_size, 4), network.config.image_size
    folder = write(tmp_path, NAMES.__getitem__, left_out=(0,))
    record = atta.collect(
        network.eval(),
        folder,
        policy="flip",
        preprocess=atta.Preprocess(resize=(size, size)),
        progress=False,
    )
    assert sorted(set(record.labels.tolist())) == [1, 2, 3]


def test_the_classes_of_a_dataset_are_picked_up(tmp_path):
    class Folder(torch.utils.data.Dataset):
        classes = ("dog", "ant")  # an order of its own

        def __len__(self):
            return 8

        def __getitem__(self, i):
            image = torch.zeros(3, 8, 8, dtype=torch.uint8)
            image[0, 0, 0] = (3, 0)[i % 2]
            return image, i % 2

    for images in (Folder(), torch.utils.data.DataLoader(Folder(), batch_size=3)):
        assert right(recorded(images, class_names=NAMES)) == 8


def test_rows_of_a_folder_are_mixed_and_it_is_remembered(tmp_path):
    folder = write(tmp_path, NAMES.__getitem__)
    record, plain = recorded(folder), recorded(folder, shuffle=False)
    assert record.origin["shuffle"] == "0"
    assert "shuffle" not in plain.origin
    assert plain.labels.tolist() == sorted(plain.labels.tolist()) != record.labels.tolist()
    assert right(record) == right(plain) == 40


def test_the_command_line_takes_classes_and_labels(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "knows.py").write_text(
        "from torch import nn\nnet = nn.Sequential(nn.Flatten(), nn.Linear(192, 4)).eval()\n"
    )
    folder, out = (
        write(tmp_path / "images", NAMES.__getitem__, left_out=(0,)),
        str(tmp_path / "r.safetensors"),
    )
    command(
        "collect",
        "knows:net",
        str(folder),
        "-o",
        out,
        "--policy",
        "flip",
        "--classes",
        ",".join(NAMES),
    )
    record = atta.Record.load(out)
    assert sorted(set(record.labels.tolist())) == [1, 2, 3]
    assert record.origin["shuffle"] == "0"


def test_folders_by_name_or_number_and_a_table_give_the_same_classifier_to_the_last_bit(tmp_path):
    """Names whose alphabet is not the order of the classes: the folders stand in another order each time."""
    names = ("wasp", "bee", "cat", "ant")
    by_name, by_number = (
        write(tmp_path / "names", names.__getitem__),
        write(tmp_path / "numbers", str),
    )
    flat, table = write(tmp_path / "flat", lambda k: ""), tmp_path / "labels.csv"
    table.write_text("file,label\n" + "".join(f"{i:02}.png,{names[i % 4]}\n" for i in range(40)))
    unsure = nn.Sequential(Knowing(), nn.Linear(4, 4)).requires_grad_(False)
    unsure[1].weight.copy_(torch.eye(4) / 4 + 0.05 * torch.arange(16).reshape(4, 4) % 0.3)
    made = [
        atta.calibrate(
            unsure, folder, labels, class_names=names, policy="flip + 2 crop", progress=False
        )
        for folder, labels in ((by_name, None), (by_number, None), (flat, table))
    ]
    for one in made[1:]:
        assert str(one.policy) == str(made[0].policy)
        assert str(one.summary) == str(made[0].summary)
        assert one.class_names == names
        for name, tensor in made[0].calibrator.state_dict().items():
            assert torch.equal(tensor, one.calibrator.state_dict()[name])


class Block(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.conv1, self.bn1 = (
            nn.Conv2d(before, after, 3, after // before, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.pad = (after - before) // 2

    def forward(self, x):
        short = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad)) if self.pad else x
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + short)


class ResNet20(nn.Module):
    """The public ResNet-20 for CIFAR-10, of the paper's first kind of shortcut."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1, self.linear = (
            nn.Conv2d(3, 16, 3, 1, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.Linear(64, 10),
        )
        for i, (before, after) in enumerate(((16, 16), (16, 32), (32, 64)), 1):
            self.add_module(
                f"layer{i}",
                nn.Sequential(Block(before, after), Block(after, after), Block(after, after)),
            )

    def forward(self, images):
        x = F.relu(self.bn1(self.conv1(images)))
        return self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def test_a_public_network_is_the_same_classifier_however_its_labels_are_told(data_root, tmp_path):
    weights, table = (
        data_root / "networks" / "resnet20-12fca82f.th",
        data_root / "cifar10" / "test-00000-of-00001.parquet",
    )
    if not (weights.is_file() and table.is_file()):
        pytest.skip("the public ResNet-20 and CIFAR-10 are not in ATTA_DATA")
    names = (
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    )
    network = ResNet20().eval()
    state = torch.load(weights, map_location="cpu", weights_only=True)["state_dict"]
    network.load_state_dict(
        {name.removeprefix("module."): tensor for name, tensor in state.items()}
    )
    rows = pytest.importorskip("pyarrow.parquet").read_table(table).slice(0, 160).to_pylist()
    folders = {
        "names": lambda k: names[k].upper(),
        "numbers": str,
        "flat": lambda k: ".",
        "no dog": lambda k: names[k],
    }
    for i, row in enumerate(rows):
        for kind, name_of in folders.items():
            path = tmp_path / kind / name_of(row["label"]) / f"{i:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            if (kind, row["label"]) != ("no dog", 5):
                path.write_bytes(row["img"]["bytes"])
    (tmp_path / "no dog" / "dog").rmdir()
    lines = (f"{i:03}.png,{names[row['label']]}" for i, row in enumerate(rows))
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *lines]))
    wanted = atta.Preprocess(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    how = {"preprocess": wanted, "policy": "flip", "class_names": names, "progress": False}
    told = [("names", None), ("numbers", None), ("flat", tmp_path / "labels.csv")]
    first, *others = (
        atta.calibrate(network, tmp_path / kind, labels, rehearse=False, **how)
        for kind, labels in told
    )
    assert first.summary.accuracy > 0.88
    for one in others:
        assert str(one.summary) == str(first.summary)
        for name, tensor in first.calibrator.state_dict().items():
            assert torch.equal(tensor, one.calibrator.state_dict()[name])
    record = atta.collect(network, tmp_path / "no dog", **how)
    assert sorted(set(record.labels.tolist())) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert right(record) > 0.88 * len(record)
