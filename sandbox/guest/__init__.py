"""The part that runs inside a sandbox, as its first process.

It travels with the worker (see `sandbox.bundle`), so it uses the standard library only and runs
on Python 3.9 and newer. Reading order: `main`, `supervisor`, `kernel`.
"""
