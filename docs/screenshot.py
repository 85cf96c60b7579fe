"""The picture of the report that the README shows: `make picture`, which needs a Chromium.

python docs/screenshot.py REPORT.html PICTURE.png
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH, HEIGHT = 1180, 1500


def screenshot(page_file: Path, picture: Path) -> Path:
    """Open the page as a reader would, wait for its charts, and take the top of it."""
    browser_file = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if browser_file is None:
        sys.exit("expected a Chromium on the path, found none")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_file, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(page_file.resolve().as_uri())
        page.wait_for_selector("svg.marks")
        page.wait_for_timeout(1000)
        page.screenshot(path=str(picture))
        browser.close()
    return picture


if __name__ == "__main__":
    print(screenshot(Path(sys.argv[1]), Path(sys.argv[2])))
