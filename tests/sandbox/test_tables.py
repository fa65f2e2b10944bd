"""Tables and arrays are kept short by the options of their libraries, printed or shown."""

# In containers alone: a machine that runs the process driver may have no such libraries.

from __future__ import annotations

import pytest

WIDE = "import pandas as pd; df = pd.DataFrame({f'column_{i}': range(100) for i in range(12)})"

pytestmark = pytest.mark.engine


def test_a_table_that_is_printed_in_the_call_that_loads_its_library_shows_all_columns(container):
    output = container.python(f"{WIDE}\nprint(df.head(1))").output
    assert len(output.splitlines()) == 2
    assert all(f"column_{i}" in output for i in range(12))


def test_a_long_table_or_array_loses_its_middle(container):
    container.python(WIDE)
    assert len(container.python("df").value.splitlines()) < 20
    assert "..." in container.python("df.column_1.to_numpy().repeat(5)").value


def test_what_a_job_has_chosen_for_itself_stays(container):
    container.python(f"{WIDE}; pd.set_option('display.max_rows', None)")
    assert len(container.python("df").value.splitlines()) == 101


def test_libraries_have_their_own_loaders_and_a_file_of_their_name_is_the_jobs(container):
    told = "import pandas; print(type(pandas.__loader__).__name__, type(pandas.__spec__.loader))"
    assert "SourceFileLoader <class" in container.python(told).output
    code = "open('numpy.py', 'w').write('x = 1')\nimport importlib, sys\n"
    code += "sys.modules.pop('numpy', None)\nimport numpy; numpy.x"
    done = container.python(code)
    assert done.value == "1"
    assert "display options" in done.output
