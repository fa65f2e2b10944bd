"""Where jobs are kept: a contract (`base`) and what fulfils it."""
