"""Models: a contract (`base`), what fulfils it, and what wraps it."""
