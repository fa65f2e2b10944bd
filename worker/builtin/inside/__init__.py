"""Programs that run inside the sandbox, for Python 3.9 and newer; never imported here."""
