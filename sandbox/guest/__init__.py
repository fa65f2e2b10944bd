"""The part that runs inside a sandbox, as its first process.

It travels with the worker (see `sandbox.bundle`), so it uses the standard library only and runs
on Python 3.9 and newer. Reading order: `greeting`, `main`, `supervisor`, `kernel`.
"""

VERSION = 2  # of the protocol; raised with every change that an older peer would not take
