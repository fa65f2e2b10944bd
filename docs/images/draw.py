"""Draw `run.png`: the recovery example, really run, as a terminal shows it.

Run it with `.venv/bin/python docs/images/draw.py`; it needs Chromium, Pillow and the font
JetBrains Mono. Steps that there is no room for are marked with dots; nothing is written by hand.
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from worker.runner import JobRequest, run_job
from worker.settings import load_settings
from worker.terminal import Activity
from worker.trace import Trace

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = Path("examples/recovery")
SHOWN = ("", "4", "5", "answer")  # sections of the trace; "" is what comes before the first
TABLE = ("95 % interval", "Gentoo")  # its first and last line: the plot stands beside it
COLUMNS = 92
WIDTH = 860
THEME = TerminalTheme(
    (15, 23, 32),
    (214, 222, 230),
    [
        *((58, 71, 84), (255, 123, 114), (126, 211, 133), (232, 190, 104)),
        *((110, 168, 254), (196, 156, 255), (94, 204, 214), (214, 222, 230)),
    ],
    [
        *((112, 128, 144), (255, 150, 142), (150, 225, 156), (245, 208, 130)),
        *((140, 188, 255), (214, 182, 255), (126, 220, 228), (255, 255, 255)),
    ],
)
PAGE = """<!doctype html><meta charset="utf-8"><style>
body { margin: 0; background: transparent }
.window { margin: 10px; background: #0f1720; border-radius: 10px; overflow: hidden }
.bar { height: 34px; background: #1c2833; color: #a9b8c6; font: 13px/34px "JetBrains Mono";
  padding-left: 20px }
.bar b { color: #5eccd6; font-weight: normal }
pre { margin: 0; padding: 14px 20px 18px; color: #d6dee6; font: 14px/19px "JetBrains Mono";
  font-variant-ligatures: none }
img { float: right; width: 348px; border-radius: 6px; margin: -12px 0 -36px }
.below { clear: right }
</style><div class="window"><div class="bar"><b>$</b> ./scripts/demo recovery</div><pre>%s</pre>
</div>"""


def run(folder: Path) -> tuple[str, bytes]:
    """Run the example in `folder`; returns the trace as HTML and the plot."""
    shutil.copytree(ROOT / EXAMPLE, folder / EXAMPLE)
    console = Console(
        file=io.StringIO(),
        record=True,
        force_terminal=True,
        color_system="truecolor",
        width=COLUMNS,
        highlight=False,
        markup=False,
        emoji=False,
    )
    trace = Trace(console)
    trace._activity = Activity(Console(file=io.StringIO()))  # noqa: SLF001 - a picture stands still
    goal = (EXAMPLE / "goal.txt").read_text(encoding="utf-8")
    request = JobRequest(
        goal=goal, files=(EXAMPLE / "penguins.csv",), replay=EXAMPLE / "recording.jsonl"
    )
    job = run_job(request, load_settings().settings, observer=trace)
    trace.close(job)
    html = console.export_html(theme=THEME, inline_styles=True, code_format="{code}")
    return html, Path(job.artifacts[0].path).read_bytes()


def excerpt(html: str, plot: bytes) -> str:
    """Keep the sections that are shown, mark where others were, and put the plot beside a table."""
    kept: list[str] = []
    is_shown, was_cut = True, False
    for line in html.splitlines():
        plain = re.sub(r"<[^>]+>", "", line)
        found = re.match(r"── (\w+) ─", plain)
        if found:
            is_shown = found[1] in SHOWN
            if is_shown and was_cut:
                kept += ['<span style="color:#708090">  ⋮</span>', ""]
            was_cut = not is_shown
        if is_shown:
            kept.append(line)
    before, rule, answer = "\n".join(kept).rpartition(">answer<")
    data = base64.b64encode(plot).decode()
    lines = answer.splitlines()
    first, last = (next(n for n, line in enumerate(lines) if text in line) for text in TABLE)
    lines[first - 1] += f'<img src="data:image/png;base64,{data}">'
    lines[last] += '<div class="below"></div>'
    return before + rule + "\n".join(lines)


def shoot(page: str, target: Path) -> None:
    """Take a picture of a page, twice as fine as a screen, and cut off what is empty."""
    with tempfile.TemporaryDirectory() as folder:
        source, shot = Path(folder, "page.html"), Path(folder, "shot.png")
        source.write_text(page, encoding="utf-8")
        browser = [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--force-device-scale-factor=2", "--default-background-color=00000000"),
            *(f"--window-size={WIDTH},2000", f"--screenshot={shot}", source.as_uri()),
        ]
        subprocess.run(browser, check=True, capture_output=True)
        picture = Image.open(shot)
        picture = picture.crop(picture.getbbox())
        picture.quantize(128, Image.Quantize.FASTOCTREE).save(target, optimize=True)


def main() -> None:
    """Run, cut, draw."""
    folder = Path(tempfile.gettempdir(), "caisson")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with contextlib.chdir(folder):
        text = excerpt(*run(folder))
    shoot(PAGE % text, ROOT / "docs/images/run.png")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
