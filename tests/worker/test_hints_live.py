"""The hints, against what the libraries of the sandbox image really raise."""

from __future__ import annotations

import pytest

from sandbox.docker import DockerSandbox
from sandbox.types import SandboxSpec
from worker.feedback import hint

pytestmark = pytest.mark.engine

SETUP = """
import pandas as pd, numpy as np
df = pd.DataFrame({"Fare": [1, 2], "Age": [3, 4], "Name": ["a", "b"]})
open("latin.csv", "wb").write(b"a,b\\n1,\\xe9\\n")
open("ragged.csv", "w").write("a,b\\n1,2\\n1,2,3,4\\n")
"""

PYTHON = [
    ("df['fare']", "columns are Fare, Age, Name; closest: Fare"),
    ("df[['fares', 'Nam']]", "closest: Fare, Name"),
    ("df.groupby('Nme')", "closest: Name"),
    ("df.sort_values(by='age')", "closest: Age"),
    ("df.loc['r1']", "no such row label"),
    ("df.fare", "closest: Fare"),
    ("df.mean()", "numeric_only"),
    ("df['Name'].astype(float)", "errors='coerce'"),
    ("pd.to_numeric(df['Name'])", "errors='coerce'"),
    ("pd.read_csv('latin.csv')", "not utf-8; try encoding='latin-1'"),
    ("pd.read_csv('ragged.csv')", "set sep="),
    ("pd.read_csv('Latin.csv')", "closest: latin.csv"),
    ("df['z'] = [1, 2, 3]", "lengths differ"),
    ("np.array([1, 2]) + np.array([1, 2, 3])", "lengths differ"),
    ("import seaborn", "use matplotlib"),
    ("import nopackage.sub", "nothing can be installed"),
    ("dff.head()", "closest: df"),
    ("plt.plot([1])", "run import matplotlib.pyplot as plt first"),
    ("input('name? ')", "nobody can type"),
    ("import urllib.request as u; u.urlopen('http://example.org')", "no network"),
    ("open('/etc/x', 'w')", "only the workspace"),
    ("open('/root/x')", "ordinary user"),
    ("!ls", "use the shell tool"),
    ("pip install seaborn", "use the shell tool"),
    ("np.ones((10**6, 10**6))", "larger than the memory"),
    ("y = df.copy()", "nothing was printed"),
    ("while True: pass", "look for a loop"),
    ("import os; os._exit(3)", "exit code 3"),
    ("import ctypes; ctypes.string_at(0)", "killed or crashed"),
    ("held = [bytearray(50_000_000) for _ in range(50)]", "memory limit of 512 MiB was reached"),
]

SHELL = [
    ("nmap localhost", "nmap is not installed"),
    ("pip install seaborn", "nothing can be installed"),
    ("curl -s -S http://example.org", "no network"),
    ("echo x > /etc/foo", "only the workspace"),
    ("cat /etc/shadow", "ordinary user"),
    ("ls $(seq 1 300000)", "too many arguments"),
    ("print('x'", None),
    ("grep nothing latin.csv", "nothing was found"),
    ("sleep 20", "larger timeout_s"),
]


@pytest.fixture(scope="module")
def container(why_no_engine, job):
    if why_no_engine:
        pytest.skip(why_no_engine)
    sandbox = DockerSandbox.start(SandboxSpec(job=job))
    yield sandbox
    sandbox.close()


@pytest.fixture
def ready(container):
    if container.python("df").outcome != "ok":
        assert container.python(SETUP).outcome == "ok"
    return container


@pytest.mark.parametrize(("code", "expected"), PYTHON)
def test_what_python_raises_has_its_hint(ready, code, expected):
    execution = ready.python(code, timeout_s=1 if "while True" in code else 25)
    assert expected in (hint(execution, code) or ""), execution.error


@pytest.mark.parametrize(("command", "expected"), SHELL)
def test_what_commands_complain_of_has_its_hint(ready, command, expected):
    execution = ready.shell(command, timeout_s=1 if "sleep" in command else 25)
    said = hint(execution, command)
    assert said is None if expected is None else expected in (said or ""), execution.output


def test_a_name_lost_with_the_interpreter_is_said_to_be_lost(ready):
    lost = ready.python("import os; os._exit(1)").lost_names
    assert "df" in lost
    assert "df was lost" in hint(ready.python("df"), "df", lost_names=lost)
    assert "run import pandas as pd again" in hint(ready.python("pd"), "pd", lost_names=lost)
