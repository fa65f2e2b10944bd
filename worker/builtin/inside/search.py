"""Print the lines of text files that match: PATTERN GLOB MOST."""

import fnmatch
import os
import re
import sys
from pathlib import Path

LONGEST = 300
pattern, glob, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
try:
    find = re.compile(pattern.encode("utf-8", "replace")).search
except re.error as error:
    sys.exit(f"not a regular expression: {error}")
found = looked = 0
for folder, folders, names in os.walk("."):
    folders[:] = sorted(name for name in folders if not name.startswith("."))
    for path in (Path(folder, name) for name in sorted(names)):
        if not (fnmatch.fnmatch(str(path), glob) or fnmatch.fnmatch(path.name, glob)):
            continue
        if path.is_symlink() or not path.is_file():
            continue
        try:
            with path.open("rb") as source:
                if b"\0" in source.read(8192):
                    continue
                source.seek(0)
                looked += 1
                for number, raw in enumerate(source, 1):
                    if find(raw):
                        found += 1
                        if found <= most:
                            line = raw[: 4 * LONGEST].decode("utf-8", "replace").strip()
                            sys.stdout.write(f"{path}:{number}: {line[:LONGEST]}\n")
        except OSError:
            continue
more = f" (the first {most} are shown)" if found > most else ""
sys.stdout.write(f"[{found} lines in {looked} text files{more}]\n")
