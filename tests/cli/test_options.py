"""Groups of options: typer sees one a field, the command gets them together."""

from pathlib import Path

import typer
from typer.testing import CliRunner

from atta.cli.options import ANY, Rows, Source, grouped


def test_groups_of_options_are_options(tmp_path: Path) -> None:
    """What typer shows of a group is in docs/cli.md; here, that each value arrives."""
    found: list[Source] = []

    @grouped
    def look(name: str, source: Source = ANY, rows: Rows = None) -> None:
        found.append(source)
        assert (name, rows) == ("digits", "1:2")

    one = typer.Typer()
    one.command()(look)
    options = [
        "--split",
        "train",
        "--data",
        str(tmp_path),
        "--image-size",
        "8",
        "--columns",
        "a,b",
        "--shuffle",
        "3",
    ]
    for given, expected in ((options, Source("train", tmp_path, 8, "a,b", "3")), ([], Source())):
        result = CliRunner().invoke(one, ["digits", *given, "--rows", "1:2"])
        assert result.exit_code == 0, result.output
        assert found.pop() == expected
