"""Hints against what the real interpreter, the real shell and the real libraries say.

The mistakes are those that models make most. Each is made in one sandbox, with the libraries of its
image, and the hint must name what to do next.
"""

from __future__ import annotations

import pytest

from sandbox.docker import DockerSandbox
from sandbox.types import SandboxSpec
from worker.feedback import hint
from worker.hints import advise
from worker.prompts import mistakes

pytestmark = pytest.mark.engine

SETUP = r"""
import pandas as pd, numpy as np
df = pd.DataFrame({"Fare": [1.0, 2.0, 3.0], "Age": [3, 4, 5], "Name": ["a", "b", "c"],
                   " Weight ": [1, 2, 3], "When": ["2024-01-01", "13/02/2024", "x"]})
other = pd.DataFrame({"id": [1, 2], "Name": ["a", "b"]})
none = df[df.Age > 99]
miss = pd.DataFrame({"v": [None, None], "w": [1.0, float("nan")]})
open("latin.csv", "wb").write(b"a,b\n1,\xe9\n")
open("utf16.csv", "wb").write("a,b\n1,2\n".encode("utf-16"))
open("ragged.csv", "w").write("a,b\n1,2\n1,2,3,4\n")
open("semi.csv", "w").write("name;price\nx;1,5\n")
open("bom.csv", "wb").write(b"\xef\xbb\xbfid,v\n1,2\n")
open("sales.csv", "w").write("region, amount ,When\nn,1,2024-01-01\ns,x,2024-01-02\n")
open("data.json", "w").write("{'a': 1}")
open("lines.json", "w").write('{"a": 1}\n{"a": 2}\n')
open("empty.csv", "w").write("")
open("notes.xlsx", "w").write("a,b\n1,2\n")
open("pic.png", "wb").write(b"\x89PNG\xff")
df.to_excel("book.xlsx", index=False)
semi = pd.read_csv("semi.csv")
bom = pd.read_csv("bom.csv", encoding="latin-1")
sales = pd.read_csv("sales.csv")
money = pd.Series(["$1,200", "$900"])
ranges = pd.DataFrame({"No. (a)": ["298[110-510]", "7"], "b": ["3 (est.)", None]})
prices = pd.DataFrame({"p": ["$1,200", "$900"], "q": ["12%", "7%"]})
x = prices  # an older value of what lines assign to
"""
PLOT = "import matplotlib.pyplot as plt; fig, ax = plt.subplots({}); "
LINEAR = "from sklearn.linear_model import LinearRegression as L; "
CLASSES = "from sklearn.linear_model import LogisticRegression as L; "

COLUMNS = [
    ("df['fare']", "columns are Fare, Age, Name, ' Weight ', When; closest: Fare"),
    ("df[['fares', 'Nam']]", "closest: Fare, Name"),
    ("df['Weight']", "closest: ' Weight '; df.columns = df.columns.str.strip()"),
    ("df.fare", "closest: Fare"),
    ("df.Weight", "print df.columns.tolist(); columns whose names have spaces need df['…']"),
    ("df.groupby('Nme').mean()", "closest: Name"),
    ("df.groupby('Name')['fare'].mean()", "closest: Fare"),
    ("df.groupby('Name').agg({'fare': 'mean'})", "closest: Fare"),
    ("df.groupby('Name')['Fare', 'Age'].mean()", "need a list"),
    ("df.sort_values(by='age')", "closest: Age"),
    ("df.set_index('age')", "closest: Age"),
    ("df.drop(columns=['age'])", "closest: Age"),
    ("df.drop('Age')", "drop(columns=['Age'])"),
    ("df.pivot_table(index='name', values='Fare')", "closest: Name"),
    ("df.dropna(subset=['age'])", "closest: Age"),
    ("df.astype({'age': int})", "closest: Age"),
    ("df.plot(x='age', y='Fare')", "closest: Age"),
    ("df.apply(lambda row: row['age'], axis=1)", "closest: Age"),
    ("df.merge(other, on='Fare')", "df has Fare, the other table has not"),
    ("df.merge(other, left_on='Age', right_on='Name')", "different types (int64, object)"),
    ("df['Age', 'Fare']", "df[['Age', 'Fare']]"),
    ("df[0]", "a row is df.iloc[0]"),
    ("df.loc['r1']", "no such row label"),
    ("df.iloc[99]", "print df.shape"),
    ("df.iloc[0, 'Age']", ".iloc takes positions"),
    ("df.loc[0, 'Age', 1]", "takes two"),
    ("df.query('age > 3')", "age is no column"),
    ("semi['price']", "read it again with sep=';'"),
    ("bom['id']", "encoding='utf-8-sig'"),
    ("df.columns = ['a']", "5 columns and 1 names"),
    ("df.reset_index().reset_index().reset_index()", "there is a column level_0 already"),
    ("{'a': 1}['b']", "print the keys"),
    ("{'a': 1}.a", "use d['a']"),
    ("[1, 2]['a']", "a list or text and not a dict"),
    ("df('Age')", "square brackets"),
    ("df.shape()", "shape is no function"),
]
TEXT = [
    ("df.mean()", "numeric_only=True"),
    ("df.corr()", "numeric_only=True"),
    ("df.quantile(0.5)", "numeric_only=True"),
    ("df.groupby('Name').mean()", "numeric_only=True"),
    ("df['Name'].mean()", "pd.to_numeric(df['Name'], errors='coerce')"),
    ("sum(df['Name'].tolist())", "convert it first"),
    ("df[['Name']].sum(axis=1).mean() / 1", "holds text"),
    ("money.mean()", "str.replace(r'[$€£,% ]'"),
    ("money.astype(float)", "str.replace(r'[$€£,% ]'"),
    ("df['Name'].astype(float)", "errors='coerce'"),
    ("pd.to_numeric(df['Name'])", "errors='coerce'"),
    ("pd.to_numeric(df)", "give one column"),
    ("pd.to_numeric(df['Name'], errors='coerce').sum()", "values like 'a' could not be read"),
    ("pd.to_datetime(df['When'], errors='coerce').max()", "could not be read and are NaN now"),
    ("pd.to_numeric(ranges['b'], errors='coerce').max()", "values like '3 (est.)' begin with a"),
    ("df['Name'].astype(int)", "'a' is no whole number"),
    ("pd.Series(['298[110-510]', '7']).astype(int)", "begin with a number"),
    ("pd.Series(['12 km', '7']).astype(float)", "s.str.extract("),
    ("pd.to_numeric(pd.Series(['3 (est.)']))", "begin with a number"),
    ("pd.to_numeric(pd.Series(['2020-01-02']))", "not numbers"),
    ("int('1.5')", "1.5 is not whole"),
    ("df['Name'] + df['Age']", "cannot be joined with +"),
    ("df['Name'] - df['Age']", "convert it first"),
    ("np.log(df['Name'])", "text or mixed"),
    ("np.mean(['a', 'b'])", "text or mixed"),
    ("None + 1", "one of the values is None"),
    ("df['Name'].plot()", "value_counts().plot.bar()"),
    ("df['Age'].str.upper()", ".astype(str).str"),
    ("df.str.upper()", "works on one column"),
    ("df.unique()", "df['column'].unique()"),
    ("df['Name'].str.contains('(')", "regex=False"),
    ("np.loadtxt('semi.csv')", "pd.read_csv(path, sep=…)"),
    ("df['Age'] > '3'", "compared with a number"),
    ("sorted([1, 'a'])", "compared with a number"),
    ("df[df['Name'].map({'a': True})]", "na=False"),
]
MISSING = [
    ("miss['w'].astype(int)", ".astype('Int64')"),
    ("int(float('nan'))", ".astype('Int64')"),
    ("miss['v'].astype(int)", "the value is missing"),
    ("pd.Series([1.5]).astype('Int64')", ".round()"),
    ("miss['v'].mean()", "the result is NaN"),
    ("none['Age'].idxmax()", "nothing is left"),
    ("np.max(np.array([]))", "nothing is left"),
    ("max([])", "nothing is left"),
    ("pd.concat([])", "nothing is left"),
    ("none['Name'].mode()[0]", "maybe it is empty"),
    ("none", "no rows are left"),
    ("[1, 2][5]", "print len() first"),
    ("np.array([1, 2])[7]", "axis 0 has 2 entries"),
    ("1 / 0", "the divisor is 0"),
]
SHAPES = [
    ("df['z'] = [1, 2]", "lengths differ"),
    ("pd.DataFrame({'a': [1, 2], 'b': [1]})", "lengths differ"),
    ("pd.DataFrame({'a': 1, 'b': 2})", "into lists"),
    ("np.array([1, 2]) + np.array([1, 2, 3])", "the shapes (2,) and (3,)"),
    ("np.ones((2, 3)) @ np.ones((2, 3))", "columns of the first must be rows"),
    ("np.vstack([np.ones(2), np.ones(3)])", "np.column_stack"),
    ("np.array([[1, 2], [3]])", "different lengths"),
    ("np.arange(6).reshape(4, 2)", "6 values do not fill (4,2)"),
    ("np.zeros(2, 3)", "np.zeros((2, 3))"),
    ("np.array([1.5])[1.0]", "whole number"),
    ("np.arange(5)[[True, False]]", "of another length"),
    ("np.linalg.inv(np.ones((2, 2)))", "pinv"),
    ("df[df.Age > 3 and df.Fare > 1]", "use & | ~"),
    ("if df['Age'] > 3: pass", "a Series is not one True or False"),
    ("df[df.Age > 3 & df.Fare > 1]", "put brackets around each part"),
    ("pd.concat(df, other)", "concat takes a list"),
    ("df.pivot(index='Name', columns='Age', values='Far')", "closest: Fare"),
    ("pd.concat([df, df]).pivot(index='Name', columns='Age', values='Fare')", "aggfunc='mean'"),
    ("pd.concat([df, df]).reindex([0])", "the index has doubles"),
    ("pd.qcut([1, 1, 1, 1], 4)", "duplicates='drop'"),
    ("pd.cut(df.Age, bins=[3, 1])", "sort the bins"),
    ("df.sum(axis=2)", "axis 0 (rows) and 1"),
    ("df.sample(99)", "min(n, len(df))"),
]
DATES = [
    ("df['When'].dt.year", "df['When'] = pd.to_datetime(df['When'], errors='coerce')"),
    ("(df['When']).dt.year", "pd.to_datetime(column, errors='coerce')"),
    ("pd.to_datetime(df['When'])", "format='mixed'"),
    ("pd.to_datetime('x')", "NaT"),
    ("pd.Timestamp('2024-01-01') - 'x'", "make a date of it"),
    ("pd.Timestamp('2024-01-01') - pd.Timestamp('2024-01-01', tz='UTC')", "tz_localize(None)"),
    ("df.resample('ME').mean()", "dates as the index"),
    ("df.rolling('3d').mean()", "dates as the index"),
    ("import datetime\ndatetime.now()", "from datetime import datetime"),
]
REMOVED = [
    ("df.append({'Fare': 1}, ignore_index=True)", "pd.concat"),
    ("df.iteritems()", ".items()"),
    ("df.ix[0]", ".loc[names]"),
    ("df.as_matrix()", ".to_numpy()"),
    ("df.sort('Age')", ".sort_values"),
    ("pd.DataFrame.from_csv('x')", "pd.read_csv"),
    ("np.float(1)", "use float instead of np.float"),
    ("pd.np.mean([1])", "import numpy as np"),
    ("pd.datetime.now()", "from datetime import datetime"),
    ("np.product([1])", "closest: prod"),
    ("df.to_csv('x.csv', idx=False)", "takes no idx"),
    ("from sklearn.preprocessing import OneHotEncoder as O; O(sparse=False)", "sparse_output"),
    ("from sklearn.preprocessing import Imputer", "has no Imputer in this version"),
    ("from sklearn.cross_validation import KFold", "use sklearn.model_selection"),
    ("from sklearn.datasets import load_boston", "use the files"),
    ("import sklearn.linear", "use sklearn.linear_model"),
    ("import scipy.nothing", "scipy is installed"),
    ("import seaborn", "use matplotlib"),
    ("import nopackage.sub", "nothing can be installed"),
    ("df.to_markdown()", "print(df.to_string())"),
    ("df.to_parquet('x.parquet')", "use CSV"),
    ("pd.read_html('x.html')", "html5lib is not installed"),
    ("pd.read_sql('select 1', 'sqlite:///x.db')", "import sqlite3"),
]
FILES = [
    ("pd.read_csv('sale.csv')", "closest: sales.csv"),
    ("pd.read_csv('../input/sales.csv')", "closest: sales.csv"),
    ("pd.read_csv('/kaggle/input/Sales.csv')", "closest: sales.csv"),
    ("pd.read_csv('Latin.csv')", "closest: latin.csv"),
    ("pd.read_csv('latin.csv')", "not utf-8; try encoding='latin-1'"),
    ("pd.read_csv('utf16.csv')", "encoding='utf-16'"),
    ("pd.read_csv('ragged.csv')", "set sep="),
    ("pd.read_csv('book.xlsx')", "use pd.read_excel"),
    ("pd.read_excel('notes.xlsx')", "no spreadsheet"),
    ("pd.read_excel('book.xlsx', sheet_name='Data')", "no sheet 'Data'"),
    ("pd.read_csv('empty.csv')", "the file is empty"),
    ("pd.read_csv('sales.csv', usecols=['amount'])", "'amount' is not in the first line"),
    ("pd.read_csv('sales.csv', parse_dates=['when'])", "'when' is not in the first line"),
    ("pd.read_csv('sales.csv', index_col='Region')", "'Region' is not in the first line"),
    ("pd.read_json('lines.json')", "lines=True"),
    ("pd.read_json('data.json')", "print the first 200 characters"),
    ("import json; json.load(open('data.json'))", "ast.literal_eval"),
    ("import json; json.loads('')", "no JSON, or empty"),
    ("import json; json.load('data.json')", "json.load(open(path))"),
    ("import json; json.loads({})", "takes text"),
    ("open('pic.png').read()", "the file is not text"),
    ("df.to_csv('out/x.csv')", "os.makedirs('out', exist_ok=True)"),
    ("open('out/x.txt', 'w')", "os.makedirs('out', exist_ok=True)"),
    ("open('/mnt/data/x.txt', 'w')", "write into the current folder, 'x.txt'"),
    ("df.to_excel('x.xls')", ".xlsx"),
    ("open('.')", "this is a folder"),
    ("open('sales.csv').write('x')", "'a' adds to it"),
    ("open('x.txt', 'w').read()", "mode 'r'"),
    ("open('sales.csv', 'rb').read().split(',')", "these are bytes"),
    ("with open('sales.csv') as f: pass\nf.read()", "closed behind the with block"),
    ("open('/etc/x', 'w')", "only the workspace"),
    ("open('/root/x')", "ordinary user"),
]
MODELS = [
    (LINEAR + "L().fit(df['Age'], df['Fare'])", "two brackets"),
    (LINEAR + "L().fit(df[['Name']], df['Fare'])", "pd.get_dummies"),
    (LINEAR + "L().fit(miss[['w']], [1, 2])", "isna().sum()"),
    (LINEAR + "L().fit([[1], [2]], [1, 2, 3])", "lengths differ"),
    (LINEAR + "L().predict([[1]])", "call fit(X, y)"),
    (LINEAR + "L().fit([[1], [2]], [1, 2]).predict([[1, 2]])", "fitted with 1 columns"),
    (LINEAR + "L().fit(df[['Age', 'Fare']], df.Fare).predict(df[['Fare', 'Age']])", "same order"),
    (CLASSES + "L().fit([[1], [2]], [1, 1])", "one class only"),
    (CLASSES + "L().fit([[1], [2]], [1.5, 2.5])", "use a regressor"),
    ("from sklearn.metrics import accuracy_score as a; a([1, 0], [0.2, 0.3])", "(p > 0.5)"),
    ("from sklearn.cluster import KMeans; KMeans(5).fit([[1], [2]])", "2 rows for 5 clusters"),
    (
        "from sklearn.model_selection import train_test_split as t; t(df, stratify=df['Name'])",
        "without stratify",
    ),
    ("from scipy import stats; stats.pearsonr([1, 2], [1, 2, 3])", "lengths differ"),
    ("from scipy import stats; stats.pearsonr([1], [1])", "too few values"),
    ("from scipy import stats; stats.pearsonr(df['Name'], df['Age'])", "text or mixed"),
]
PLOTS = [
    (PLOT.format("") + "ax.plot([1, 2], [1])", "x has the shape (2,) and y (1,)"),
    (PLOT.format("1, 2") + "ax.plot([1])", "axes[0].plot"),
    (PLOT.format("") + "ax.xlabel('x')", "ax.set_xlabel"),
    (PLOT.format("") + "plt.style.use('seaborn')", "seaborn-v0_8"),
    (PLOT.format("") + "ax.plot([1], color='blau')", "there is no 'blau'"),
    (PLOT.format("") + "fig.savefig('a.xyz')", "save it as .png"),
    (PLOT.format("") + "plt.savefig('plots/a.png')", "os.makedirs('plots', exist_ok=True)"),
    (PLOT.format("") + "ax.imshow(df)", "needs numbers only"),
    ("import matplotlib; matplotlib.use('TkAgg')", "there is no screen"),
    ("df.plot(kind='histo')", "hist"),
]
NAMES = [
    ("dff.head()", "closest: df"),
    ("quartz", "nothing of that name was assigned"),
    ("math.sqrt(2)", "run import math first"),
    ("glob.glob('*')", "run import glob first"),
    ("sns.heatmap(df)", "seaborn is not installed"),
    ("Counter([1])", "run from collections import Counter first"),
    ("Path('.')", "run from pathlib import Path first"),
    ("train_test_split(df)", "from sklearn.model_selection import train_test_split"),
    ("{'a': true}", "True, False and None"),
    ("x = NaN", "float('nan')"),
    ("import random; random(3)", "random.random(…)"),
    ("def f():\n    list = [1]\n    list((1, 2))\nf()", "rename it"),
]
SYNTAX = [
    ("```python\nprint(1)\n```", "leave out the ``` lines"),
    (">>> x = 1", "leave out the prompts"),
    ("!ls", "use the shell tool"),
    ("ls -la", "use the shell tool"),
    ("cat sales.csv", "use the shell tool"),
    ("head -5 sales.csv", "use the shell tool"),
    ("!pip install x", "nothing can be installed"),
    ("pip install seaborn", "nothing can be installed"),
    ("%matplotlib inline", "no notebook"),
    ("print(“hi”)", "straight ones"),
    ("\u00a0x = 1", "invisible character (U+00A0)"),
    ("x = 1 … 2", "'…' cannot stand in code"),
    ("print 'a'", "print(…)"),
    ("print((1, 2)", "a closing bracket for ( is missing"),
    ("x = 'abc", "a string has no end"),
    ("def f():\nreturn 1", "indent each block"),
    ("  x = 1\ny = 2", "indent each block"),
    ("for i in range(3)\n    print(i)", "a : is missing"),
    ("if x = 1: pass", "compare with =="),
    ("return 5", "no function to return from"),
    ("a && b", "this is not Python"),
    ("def r(): return r()\nr()", "without an end"),
]
SANDBOX = [
    ("input('name? ')", "nobody can type"),
    ("import urllib.request as u; u.urlopen('http://example.org')", "no network"),
    ("pd.read_csv('https://example.org/a.csv')", "no network"),
    ("import subprocess; subprocess.run(['pip', 'install', 'x'])", "nothing can be installed"),
    ("import subprocess; subprocess.run(['nmap'])", "nmap is not installed"),
    ("import subprocess; subprocess.run('false', check=True)", "with the shell tool"),
    ("import os; os.system('pip install x')", "nothing can be installed"),
    ("np.ones((10**6, 10**6))", "larger than the memory"),
]
ENDINGS = [
    ("while True: pass", "look for a loop"),
    ("import sys; sys.exit(0)", "leave out sys.exit()"),
    ("import os; os._exit(3)", "exit code 3"),
    ("import ctypes; ctypes.string_at(0)", "killed or crashed"),
    ("held = [bytearray(50_000_000) for _ in range(50)]", "memory limit of 512 MiB was reached"),
]
UNSEEN = [
    ("y = df.copy()", "assigned: y. To see a value put its name on the last line, or print(y)"),
    ("a, b = 1, 2", "assigned: a, b."),
    ("if True:\n    df['Age'].mean()", "inside if a value is not shown"),
    ("for c in df:\n    df[c].nunique()", "write print(df[c].nunique())"),
    ("df.sort_values('Fare', inplace=True)", "print(df.head())"),
    ("def main():\n    print(1)", "call it, main()"),
    ("pd.set_option('display.max_rows', 60)", "use print()"),
    ("df['z'] = 1", "df['z'] was set"),
    ("df.head", "call it, with () behind it"),
    ("map(str, [1])", "list(…) does"),
    ("df.groupby('Name')", "go on with .size()"),
    ("df[df.Age > 3]['Fare'] = 9", "df.loc[condition, 'column'] = value"),
    ("df['Age'].mean()", None),
    ("print('')", None),
    ("import os", None),
]
PYTHON = [
    *(*COLUMNS, *TEXT, *MISSING, *SHAPES, *DATES, *REMOVED, *FILES, *MODELS, *PLOTS, *NAMES),
    *(*SYNTAX, *UNSEEN, *SANDBOX),
]

SHELL = [
    ("nmap localhost", "nmap is not installed"),
    ("pip install seaborn", "nothing can be installed"),
    ("apt-get install x", "nothing can be installed"),
    ("sudo ls", "nothing can be installed"),
    ("python -c 'print(1)'", "it is called python3 here"),
    ("curl -s -S http://example.org", "no network"),
    ("echo x > /etc/foo", "only the workspace"),
    ("cat /etc/shadow", "ordinary user"),
    ("ls $(seq 1 300000)", "too many arguments"),
    ("print('x'", "this is Python"),
    ("df = pd.read_csv('x.csv')", "this is Python"),
    ("import pandas as pd", "use python_interpreter"),
    ("cat nothing.csv", "ls -R shows"),
    ("cd nowhere", "ls -R shows"),
    ("echo 'a", "a quote or block is not closed"),
    ("echo 'echo 1' > run.sh; ./run.sh", "bash script.sh"),
    ("python3 -c 'import seaborn'", "use matplotlib"),
    ("python3 -c 'import pandas as pd; pd.DataFrame().ix'", ".loc[names]"),
    ("python3 -c 'input()'", "nobody can type"),
    ("echo a > a.txt; grep nothing a.txt", "nothing was found"),
    ("sleep 20", "larger timeout_s"),
    ("true", None),
    ("false", None),
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
    if container.python("assert list(df.Age) == [3, 4, 5] and 'z' not in df").outcome != "ok":
        assert container.python(SETUP).outcome == "ok"
    return container


@pytest.mark.parametrize(("code", "expected"), PYTHON)
def test_what_python_raises_has_its_hint(ready, code, expected):
    execution = ready.python(code, timeout_s=25)
    said = hint(execution, code)
    if expected is None:
        assert said is None
    else:
        assert expected in (said or ""), execution.error
        assert "\n" not in said
        assert len(said) < 260


@pytest.mark.parametrize(("code", "expected"), ENDINGS)
def test_what_ends_an_interpreter_has_its_hint(container, code, expected):
    execution = container.python(code, timeout_s=1 if "while True" in code else 25)
    assert expected in (hint(execution, code) or "")


@pytest.mark.parametrize(("command", "expected"), SHELL)
def test_what_commands_complain_of_has_its_hint(container, command, expected):
    execution = container.shell(command, timeout_s=1 if "sleep" in command else 25)
    said = hint(execution, command)
    assert said is None if expected is None else expected in (said or ""), execution.output


MENDED = [
    ("x = ranges['No. (a)'].astype('Int64')", "x.tolist() == [298, 7]"),
    ("x = ranges['No. (a)'].astype(int).max()", "x == 298"),
    ("x = ranges['b'].dropna().astype(float).sum()", "x == 3"),
    ("x = pd.to_numeric(ranges['No. (a)']).sum()", "x == 305"),
    ("x = ranges[['No. (a)', 'b']].astype(float)", "x.sum().tolist() == [305, 3]"),
    ("x = prices['p'].astype(int)", "x.tolist() == [1200, 900]"),
    ("x = pd.to_numeric(prices['p'])", "x.sum() == 2100"),
    ("x = prices[['p', 'q']].astype('float64')", "x.sum().tolist() == [2100, 19]"),
    ("x = bom['ID'].sum() if 0 else bom['V'].sum()", "x == 2"),
    ("x = df['fare'].sum()", "x == 6"),
]


@pytest.mark.parametrize(("line", "holds"), MENDED)
def test_the_line_that_a_hint_gives_is_right(ready, line, holds):
    failed = ready.python(line)
    assert failed.outcome == "error"
    said = hint(failed, line)
    _, found, better = said.partition("write the line as: ")
    assert found, said
    done = ready.python(f"{better}\nbool({holds})")
    assert done.value == "True", (better, done.error, done.value)


def test_spaces_around_the_names_of_columns_are_taken_away_before_the_line_that_fails(ready):
    read = "sales = pd.read_csv('sales.csv')"
    code = f"{read}\nfor _ in 'a':\n    x = sales['amount'].tolist()\nx"
    advice = advise(ready.python(code), code)
    assert advice.said.endswith("; sales.columns = sales.columns.str.strip() takes the spaces away")
    assert ready.python(advice.mended(code)).value == "['1', 'x']"


def test_values_that_were_coerced_away_are_told_and_the_call_is_mended(ready):
    ready.python("ranges.to_csv('ranges.csv', index=False)")
    read, last = "d = pd.read_csv('ranges.csv')", "x.max()"
    code = f"{read}\nx = pd.to_numeric(d['No. (a)'], errors='coerce')\n{last}"
    done = ready.python(code)
    assert "made NaN of 1 of 2 values, such as '298[110-510]'" in done.output
    mended = advise(done, code).mended(code)
    assert ready.python(mended).value == "np.float64(298.0)"
    assert not ready.python(mended).output


@pytest.mark.parametrize(
    "code",
    [
        "pd.to_numeric(pd.Series(['1', None]), errors='coerce').sum()",
        "pd.to_numeric('1', errors='coerce')",
        "pd.to_numeric(['1', '2'], 'coerce').sum()",
        "pd.to_datetime({'year': [2020], 'month': [1], 'day': [2]}, errors='coerce')[0].day",
        "import pickle; pickle.loads(pickle.dumps(pd.to_numeric)) is pd.to_numeric",
        "import inspect; 'errors' in inspect.signature(pd.to_datetime).parameters",
        "pd.DataFrame({'a': ['1']}).apply(pd.to_numeric, errors='coerce').sum().sum()",
    ],
)
def test_converters_that_lose_nothing_say_nothing_and_are_as_they_were(ready, code):
    done = ready.python(code)
    assert done.outcome == "ok", done.error
    assert done.output == ""
    assert done.value not in {None, "False"}


def test_a_name_lost_with_the_interpreter_is_said_to_be_lost(ready):
    lost = ready.python("import os; os._exit(1)").lost_names
    assert "df" in lost
    assert "df was lost" in hint(ready.python("df"), "df", lost_names=lost)
    assert "run import pandas as pd again" in hint(ready.python("pd"), "pd", lost_names=lost)


def test_every_row_of_the_table_has_a_word_of_advice_of_its_own():
    advice = [row["hint"] for row in mistakes()]
    assert all(text and "\n" not in text and len(text) < 200 for text in advice)
