"""On Ray, with two actors: the files of one process, also if workers and the driver are killed."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import atta
from atta._base.errors import InputError, MissingExtra
from atta._base.files import locked
from atta.classifier.predict import predict
from atta.data.folder import folder_of_images
from atta.data.image_set import ImageSet, arrange
from atta.data.source import as_source, batches_of
from atta.lab.fits import Fits
from atta.lab.run import run
from atta.record import writer as shards_module
from atta.run import cluster
from scenarios import command, linear, pixels, same, small_experiment

try:
    import ray
except ImportError:
    ray = None
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's are about itself
needs_ray = pytest.mark.skipif(ray is None, reason="Ray is not installed: pip install 'atta[ray]'")
SETTINGS = {"policy": "flip + 2 crop", "batch_size": 8, "progress": False, "checks": False}
LABELS = torch.arange(60) % 3
HERE = Path(__file__).parent
FOLDERS = [
    str(HERE),
    str(HERE.parent),
    str(Path(atta.__file__).parent.parent),
]  # where other processes find what tests have


@pytest.fixture
def brief(monkeypatch):
    """Shards of two batches."""
    monkeypatch.setattr(shards_module, "PASSES", 2 * 4 * 8)


@pytest.fixture(scope="module")
def two_workers():
    """Two workers and what reads for them, for all tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(FOLDERS))
        patch.delenv("RAY_ADDRESS", raising=False)
        with cluster.connected(cluster.Engine(2)):
            yield {"engine": "ray", "actors": 2}


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in folder.glob("*")
        if path.is_file() and path.name[0] != "."
    }


def deadly(marks: Path, after: int):
    """A network and images that each kill their process once, and leave a mark when they do."""

    def die(name: str) -> None:
        if not (marks / name).exists():
            (marks / name).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    class Deadly(
        nn.Module
    ):  # It names nothing that tests share: workers would wait for all that those import.
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.calls = inner, 0

        def forward(self, images):
            self.calls += 1
            (marks / f"process-{os.getpid()}").touch()
            if self.calls > after:
                die("network")
            return self.inner(images)

    class DeadlyImages(TensorDataset):
        def __getitem__(self, at):
            if at == 33:
                die("images")
            image, label = super().__getitem__(at)
            return image, int(label)

    return Deadly(linear()), DeadlyImages(pixels(60), LABELS)


@needs_ray
def test_the_files_are_those_of_one_process_also_where_workers_are_killed(
    two_workers, brief, tmp_path
):
    network, images = deadly(tmp_path, after=5)
    told: list[int] = []
    on_ray = atta.collect(
        network,
        images,
        **(SETTINGS | {"progress": told.append}),
        **two_workers,
        output=tmp_path / "ray",
    )
    assert (tmp_path / "network").is_file()
    assert (tmp_path / "images").is_file()
    one = atta.collect(network, images, **SETTINGS, output=tmp_path / "one")
    assert same(one, on_ray)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "ray")
    assert sum(told) == 60 * 4
    assert len(told) == 8, "progress comes batch by batch"


@needs_ray
def test_records_in_memory_have_the_same_bits_and_rows_their_own_draws(two_workers, tmp_path):
    images = ImageSet("some", pixels(60), LABELS, ("a", "b", "c"))
    part = arrange(images, shuffle=3)
    assert same(
        atta.collect(linear(), part, **SETTINGS),
        atta.collect(linear(), part, **SETTINGS, **two_workers),
    )


DRIVER = """
import os, signal, sys
from pathlib import Path
import torch
import atta
from atta.record import writer as shards
from test_cluster import SETTINGS, deadly

torch.set_num_threads(1)
shards.PASSES, shards.SECONDS = 2 * 4 * 8, float(sys.argv[2])
done = 0


def die(passes):
    global done
    done += passes
    if done >= 5 * 8 * 4:  # in the middle of the third shard
        os.kill(os.getpid(), signal.SIGKILL)


folder = Path(sys.argv[1])
network, images = deadly(folder, after=5)
how = {**SETTINGS, "progress": die, "engine": "ray", "actors": 2}
atta.collect(network, images, **how, output=folder / "ray")
"""


def running(process: str) -> bool:
    """Whether a process of this machine has not ended; one that nobody waits for has."""
    status = Path("/proc", process, "stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@needs_ray
def test_a_driver_that_is_killed_after_a_worker_goes_on_from_its_shards(
    two_workers, brief, tmp_path
):
    found = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = found | {"PYTHONPATH": os.pathsep.join(FOLDERS), "OMP_NUM_THREADS": "1"}
    driver = [sys.executable, "-c", DRIVER, str(tmp_path), "0"]
    killed = subprocess.run(
        driver, env=environment, check=False, capture_output=True, text=True, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    kept = {name for name in files_of(tmp_path / "ray") if name.startswith("0")}
    assert kept == {
        f"{start:010}-{stop:010}.safetensors" for start, stop in [(0, 16), (16, 32), (32, 40)]
    }
    processes = [path.name.removeprefix("process-") for path in tmp_path.glob("process-*")]
    assert len(processes) >= 2
    while any(map(running, processes)):
        time.sleep(0.1)  # workers end without their driver
    network, images = deadly(tmp_path, after=5)
    atta.collect(network, images, **SETTINGS, **two_workers, output=tmp_path / "ray")
    atta.collect(network, images, **SETTINGS, output=tmp_path / "one")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "ray")


LOSING = """
import sys
import ray
import torch
from ray.cluster_utils import Cluster
import atta
from atta.record import writer as shards
from atta.run import cluster
from scenarios import linear, pixels
from test_cluster import LABELS, SETTINGS

torch.set_num_threads(1)
cluster.PATIENCE, shards.PASSES = 1.0, 2 * 4 * 8
machines = Cluster(initialize_head=True, head_node_args={"num_cpus": int(sys.argv[2])})
others = [machines.add_node(num_cpus=2)]
ray.init(address=machines.address, log_to_driver=False)


def lose(passes):
    if others:
        machines.remove_node(others.pop(), allow_graceful=False)


how = {**SETTINGS, "progress": lose, "engine": "ray"}
try:
    atta.collect(linear(), pixels(60), LABELS, **how, output=sys.argv[1])
    print("ended: the record is whole")
except atta.InputError as error:
    print("ended:", error)
"""


@needs_ray
@pytest.mark.parametrize(
    ("cpus", "sentence"), [(2, "the record is whole"), (1, "the Ray cluster has lost machines")]
)
def test_a_run_that_loses_a_machine_goes_on_or_ends_with_a_sentence(
    cpus, sentence, brief, tmp_path
):
    found = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = found | {"PYTHONPATH": os.pathsep.join(FOLDERS)}
    driver = [sys.executable, "-c", LOSING, str(tmp_path / "ray"), str(cpus)]
    ended = subprocess.run(
        driver, env=environment, check=False, capture_output=True, text=True, timeout=300
    )
    # Not by its exit code: Ray, which misses a machine at the end, may change it.
    assert f"ended: {sentence}" in ended.stdout, ended.stderr
    atta.collect(linear(), pixels(60), LABELS, **SETTINGS, output=tmp_path / "one")
    if cpus == 1:  # what was finished is kept, and the same call resumes
        assert list((tmp_path / "ray").glob("0*.safetensors"))
        atta.collect(linear(), pixels(60), LABELS, **SETTINGS, output=tmp_path / "ray")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "ray")


@needs_ray
def test_what_an_actor_or_a_reader_refuses_is_said_here_and_what_is_done_is_kept(
    two_workers, brief, tmp_path
):
    class Strange(nn.Module):
        def forward(self, images):
            return images.flatten(1)[:, :3] / (images.flatten(1).mean(dim=1, keepdim=True) < 1)

    images = pixels(60)
    images[57] = 255
    with pytest.raises(InputError, match="expected finite logits, got inf for images 57"):
        atta.collect(Strange(), images, LABELS, **SETTINGS, **two_workers, output=tmp_path / "ray")
    assert "0000000032-0000000048.safetensors" in files_of(tmp_path / "ray")
    with locked(tmp_path / "ray" / "run.json"), pytest.raises(InputError, match="another"):
        atta.collect(Strange(), images, LABELS, **SETTINGS, **two_workers, output=tmp_path / "ray")


@needs_ray
def test_fits_and_tests_on_a_cluster_have_the_same_bits(two_workers, record, tmp_path):
    experiment = small_experiment()
    there = run(experiment, {"a": record}, fits=Fits({"a": record}, tmp_path, engine="ray"))
    assert there.rows == run(experiment, {"a": record}).rows
    assert list(tmp_path.glob("*/*.safetensors"))


@needs_ray
def test_a_table_of_predictions_is_that_of_one_process(two_workers, tmp_path):
    image_module = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    images, files = pixels(20), []
    for i, image in enumerate(images):
        files.append(tmp_path / f"{i:02}.png")
        image_module.fromarray(image.permute(1, 2, 0).numpy()).save(files[-1])
    files[7].write_bytes(b"no image")
    classifier = atta.calibrate(linear(), images, LABELS[:20], policy="flip", progress=False)
    one = predict(classifier, files, tmp_path / "one.csv", batch_size=8)
    on_ray = predict(classifier, files, tmp_path / "ray.csv", batch_size=8, **two_workers)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "ray.csv").read_bytes()
    assert [*on_ray.unreadable] == [*one.unreadable] == [str(files[7])]


@needs_ray
def test_views_of_photographs_have_the_bits_of_one_process(two_workers, brief, tmp_path):
    image_module = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    (folder := tmp_path / "photos").mkdir()
    generator = torch.Generator().manual_seed(0)
    for i in range(20):
        photo = torch.randint(256, (30 + i, 50 - i, 3), dtype=torch.uint8, generator=generator)
        image_module.fromarray(photo.numpy()).save(folder / f"{i:02}.jpg")
    network = nn.Sequential(nn.AdaptiveAvgPool2d(8), linear())
    whole = {"policy": "corner-larger-4", "preprocess": atta.Preprocess(resize=20, crop=16)}
    how = SETTINGS | whole
    on_ray = atta.collect(network, folder, **how, **two_workers, output=tmp_path / "ray")
    one = atta.collect(network, folder, **how, output=tmp_path / "one")
    assert on_ray.predictions.counts == {"flip-corner": 2, "larger": 1}
    assert same(one, on_ray)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "ray")
    classifier = atta.calibrate(network, folder, LABELS[:20], **whole, progress=False)
    files = sorted(folder.iterdir())
    for name, engine in (("one", {}), ("ray", two_workers)):
        predict(classifier, files, tmp_path / f"{name}.csv", batch_size=8, **engine)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "ray.csv").read_bytes()


@needs_ray
def test_what_cannot_be_read_by_places_or_has_no_room_is_refused(two_workers):
    loader = DataLoader(TensorDataset(pixels(60), LABELS), batch_size=8)
    with pytest.raises(InputError, match="can be read only once"):
        atta.collect(linear(), loader, **SETTINGS, **two_workers)
    with pytest.raises(InputError, match="expected a Ray cluster with room for 99 actors"):
        atta.collect(linear(), pixels(60), **SETTINGS, **two_workers | {"actors": 99})


def test_an_engine_is_ray_or_none_and_actors_are_its_own(monkeypatch, tmp_path):
    with pytest.raises(InputError, match="engine must be one of ray or None, got 'dask'"):
        atta.collect(linear(), pixels(8), **SETTINGS, engine="dask")
    with pytest.raises(InputError, match="actors: expected engine ray as well, got none"):
        atta.collect(linear(), pixels(8), **SETTINGS, actors=2)
    refused = command(
        "collect", "small", "digits", "-o", str(tmp_path / "record"), "--engine", "dask", ok=False
    )
    assert "--engine: expected 'ray'" in str(refused.exception) + refused.output
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'atta\[ray\]'"):
        atta.collect(linear(), pixels(8), **SETTINGS, engine="ray")


@pytest.mark.parametrize("fault", [None, 7])
def test_a_reader_is_sent_the_names_of_its_own_images(tmp_path, fault):
    image_module = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for i, image in enumerate(pixels(20)):
        name = tmp_path / f"{'a' if i < 9 else 'b'}" / f"{i:02}.png"
        name.parent.mkdir(exist_ok=True)
        image_module.fromarray(image.permute(1, 2, 0).numpy()).convert("L").save(name)
    if fault is not None:
        (tmp_path / "a" / f"{fault:02}.png").write_bytes(b"no image")
    whole = as_source(arrange(folder_of_images(tmp_path), shuffle=3))
    for source in (whole, whole.subset(torch.tensor([1, 4, 5, 9, 17, 18]))):
        batches = list(batches_of(4, 0, source.count))
        reading, shares = cluster.parts_of(source, batches, InputError)
        assert reading.args[0] is None
        for positions, share in zip(batches, shares, strict=True):
            sent = pickle.dumps(share)
            assert sent.count(b".png") == len(positions)
            batch, places = reading(pickle.loads(sent))
            (expected,) = source.read([positions], skip=InputError)
            assert list(batch.positions) == list(expected.positions)
            assert torch.equal(batch.pixels, expected.pixels)
            assert batch.pixels.shape[1] == 1
            assert batch.faults == expected.faults
            assert torch.equal(places, source.places(positions))


def test_images_without_names_are_sent_once_whole():
    reading, shares = cluster.parts_of(as_source(pixels(20)), [range(4)])
    assert [*shares] == [(range(4), None)]
    assert torch.equal(reading((range(4), None))[0].pixels, pixels(20)[:4])


@needs_ray
def test_actors_live_as_long_as_a_run_of_many_policies(two_workers, tmp_path):
    network, _ = deadly(tmp_path, after=10**6)
    how = {"policy": "auto", "progress": False, "batch_size": 8, "channels_last": False}
    there = atta.calibrate(network, pixels(60), LABELS, **how, **two_workers)
    assert len([*tmp_path.glob("process-*")]) <= 3, "two actors, and this process"
    here = atta.calibrate(network, pixels(60), LABELS, **how)
    assert there.policy == here.policy
    assert there.summary.after == here.summary.after


@needs_ray
def test_readers_that_are_killed_more_often_than_ray_tries_are_read_again(
    two_workers, monkeypatch, tmp_path
):
    monkeypatch.setattr(cluster, "PATIENCE", 0.1)

    class Often(TensorDataset):
        def __getitem__(self, at):
            died = len([*tmp_path.glob("died-*")])
            if at == 33 and died < 5:
                (tmp_path / f"died-{died}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            image, label = super().__getitem__(at)
            return image, int(label)

    images = Often(pixels(60), LABELS)
    there = atta.collect(linear(), images, **SETTINGS, **two_workers)
    assert len([*tmp_path.glob("died-*")]) == 5
    assert same(there, atta.collect(linear(), pixels(60), LABELS, **SETTINGS))
