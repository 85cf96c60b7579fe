"""The line that says how far long work is."""

from atta.progress import counted


def test_it_counts_on_the_error_stream_with_or_without_a_known_end(capsys):
    for total, text in ((5, "5/5"), (None, "5/?")):
        with counted("reading", total, shown=True, done=2) as tell:
            tell(5)
        out, err = capsys.readouterr()
        assert "reading" in err
        assert text in err
        assert "images/s" in err
        assert not out


def test_it_says_nothing_unless_it_is_asked_to(capsys):
    with counted("reading", 5, shown=False) as tell:
        tell(5)
    assert capsys.readouterr() == ("", "")


def test_a_title_is_shown_as_it_is(capsys):
    with counted("{x} [bold]y[/]", 5, shown=True) as tell:
        tell(5)
    assert "{x} [bold]y[/]" in capsys.readouterr().err
