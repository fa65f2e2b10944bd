"""Print some lines of a text file with their numbers: NAME FIRST COUNT."""

import sys
from pathlib import Path

LONGEST = 2000
name, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
path, total = Path(name), 0
if path.exists() and not path.is_file():  # opening a pipe would wait for ever
    sys.exit(f"{name} is not a regular file")
try:
    with path.open("rb") as source:
        if b"\0" in source.read(8192):
            sys.exit(f"{name} is not text; read it with python_interpreter")
        source.seek(0)
        for total, raw in enumerate(source, 1):
            if first <= total < first + count:
                line = raw[: 4 * LONGEST].decode("utf-8", "replace").rstrip("\r\n")
                cut = line[:LONGEST] + (" …" if len(line) > LONGEST else "")
                sys.stdout.write(f"{total}\t{cut}\n")
except OSError as error:
    sys.exit(f"{name}: {error.strerror}")
last = min(total, first + count - 1)
shown = f"lines {first}-{last} of {total}" if last >= first else f"{total} lines"
sys.stdout.write(f"[{shown}]\n")
