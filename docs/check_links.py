"""Check every link and anchor of a built site, and that it fetches nothing (`make site`)."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse


class Page(HTMLParser):
    """The places, links and parts of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.places: set[str | None] = set()
        self.links: list[str] = []
        self.parts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag names and what it leads to."""
        found = dict(attrs)
        self.places.add(found.get("id"))
        target = found.get("src") or found.get("href")
        if target:
            (self.links if tag == "a" else self.parts).append(target)


def faults(site: Path) -> list[str]:
    """Say what is wrong, a line each."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        found += [f"{path}: fetches {part}" for part in page.parts if urlparse(part).netloc]
        for link in (*page.links, *page.parts):
            url = urlparse(link)
            there = (path.parent / unquote(url.path)).resolve() if url.path else path
            if url.scheme or url.netloc:
                continue
            if not there.exists():
                found.append(f"{path}: {link} leads nowhere")
            elif (
                url.fragment and there in pages and unquote(url.fragment) not in pages[there].places
            ):
                found.append(f"{path}: {link} has no such place")
    return found


if __name__ == "__main__":
    lines = faults(Path(sys.argv[1]))
    print("\n".join(lines) or f"every link of {sys.argv[1]} leads somewhere")
    sys.exit(bool(lines))
