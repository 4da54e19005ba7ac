"""The command: writes the pages, checks their links, and on request lets mkdocs make the site."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys

from tools.docs import site


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.docs", description="write the reference and the site")
    parser.add_argument("--site", action="store_true", help='let mkdocs make build/docs/site; pip install ".[docs]"')
    args = parser.parse_args()
    shutil.rmtree(site.OUT, ignore_errors=True)
    wrong = site.write()
    print(f"{site.OUT.relative_to(site.ROOT)}/pages: written")
    if wrong:
        print("links that lead nowhere:", *wrong, sep="\n  ", file=sys.stderr)
        return 1
    if args.site:
        command = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", str(site.OUT / "mkdocs.yml")]
        if subprocess.run(command, check=False).returncode:
            return 1
        print(f"{site.OUT.relative_to(site.ROOT)}/site: made; to search it: "
              f"python -m http.server -d {site.OUT.relative_to(site.ROOT)}/site")
    return 0


if __name__ == "__main__":
    sys.exit(main())
