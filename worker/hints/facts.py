"""Hints about names: columns, keys, files, variables, attributes, modules.

They use the facts that the guest delivers with an error, so that real names can be said.
"""

from __future__ import annotations

import ast
import difflib
import re

from worker.hints.case import Advice, Case, Rule, closest, listing, mended, said_names
from worker.prompts import hint_text

_ALIASES = {
    "pd": "import pandas as pd",
    "np": "import numpy as np",
    "plt": "import matplotlib.pyplot as plt",
    "mpl": "import matplotlib as mpl",
    "stats": "from scipy import stats",
    "dt": "import datetime as dt",
}
_FOREIGN = {
    "sns": "seaborn",
    "px": "plotly",
    "sm": "statsmodels",
    "tf": "tensorflow",
    "pl": "polars",
}
_MODULE_NAMES = (
    "re os sys json math csv time datetime random statistics itertools collections pathlib "
    "subprocess glob io shutil string copy functools operator zipfile sqlite3 warnings textwrap "
    "ast pickle pandas numpy scipy sklearn matplotlib"
)
_MODULES = frozenset(_MODULE_NAMES.split())
_MEMBERS = {
    "pathlib": "Path",
    "collections": "Counter defaultdict OrderedDict deque namedtuple",
    "datetime": "timedelta timezone",
    "io": "StringIO BytesIO",
    "math": "sqrt ceil floor log log10 exp pi",
    "functools": "reduce partial lru_cache",
    "itertools": "combinations permutations product chain groupby",
    "pandas": "DataFrame Series read_csv read_excel to_datetime to_numeric",
    "scipy.stats": "ttest_ind ttest_rel pearsonr spearmanr f_oneway chi2_contingency linregress "
    "mannwhitneyu shapiro zscore",
    "scipy.optimize": "curve_fit minimize linprog",
    "sklearn.model_selection": "train_test_split cross_val_score GridSearchCV KFold "
    "StratifiedKFold",
    "sklearn.linear_model": "LinearRegression LogisticRegression Ridge Lasso ElasticNet",
    "sklearn.ensemble": "RandomForestClassifier RandomForestRegressor GradientBoostingClassifier "
    "GradientBoostingRegressor IsolationForest",
    "sklearn.cluster": "KMeans DBSCAN AgglomerativeClustering",
    "sklearn.decomposition": "PCA",
    "sklearn.preprocessing": "StandardScaler MinMaxScaler LabelEncoder OneHotEncoder "
    "PolynomialFeatures",
    "sklearn.impute": "SimpleImputer",
    "sklearn.pipeline": "Pipeline make_pipeline",
    "sklearn.compose": "ColumnTransformer",
    "sklearn.metrics": "accuracy_score mean_squared_error mean_absolute_error r2_score f1_score "
    "confusion_matrix classification_report roc_auc_score silhouette_score",
    "sklearn.tree": "DecisionTreeClassifier DecisionTreeRegressor plot_tree",
    "sklearn.neighbors": "KNeighborsClassifier KNeighborsRegressor NearestNeighbors",
    "sklearn.svm": "SVC SVR",
    "sklearn.feature_extraction.text": "TfidfVectorizer CountVectorizer",
    "matplotlib.pyplot": "subplots savefig",
}
_HOMES = {name: home for home, names in _MEMBERS.items() for name in names.split()}
_KNOWN_MODULES = (*_MEMBERS, "scipy.signal", "scipy.interpolate", "scipy.cluster.hierarchy")
_MOVED = {
    "sklearn.cross_validation": "sklearn.model_selection",
    "sklearn.grid_search": "sklearn.model_selection",
    "sklearn.externals": "joblib",
    "pandas.tools": "pandas.plotting",
}
_INSTEAD = {
    "seaborn": "matplotlib",
    "plotly": "matplotlib",
    "altair": "matplotlib",
    "bokeh": "matplotlib",
    "polars": "pandas",
    "dask": "pandas with chunksize",
    "duckdb": "pandas or sqlite3",
    "sqlalchemy": "sqlite3",
    "pandasql": "sqlite3, or df.query",
    "statsmodels": "scipy.stats or numpy",
    "pingouin": "scipy.stats",
    "requests": "the files that are there: there is no network either",
    "xgboost": "sklearn.ensemble",
    "lightgbm": "sklearn.ensemble",
    "catboost": "sklearn.ensemble",
    "torch": "sklearn or numpy",
    "tensorflow": "sklearn or numpy",
    "keras": "sklearn or numpy",
    "nltk": "re and collections.Counter",
    "spacy": "re and collections.Counter",
    "cv2": "PIL or matplotlib",
    "bs4": "lxml or html.parser",
    "yaml": "json, or read it line by line",
    "tabulate": "print(df.to_string())",
    "tqdm": "a plain loop",
    "xlrd": "openpyxl and .xlsx files",
    "xlsxwriter": "openpyxl",
    "pyarrow": "CSV files",
    "IPython": "print",
    "google": "the files in the current folder",
    "kaggle": "the files in the current folder",
}
_WRITES = re.compile(
    r"""open\(.*['"][rwxa]?b?[wxa+]b?\+?['"]|savefig|\.to_(?:csv|excel|json|pickle|html)|"""
    r"np\.save|\.save\(|\.write_(?:text|bytes)|imsave|\.dump\("
)
_RUNS = re.compile(r"\bsubprocess\b|\bPopen\(|\bcheck_(?:output|call)\(|^\s*run\(")
_SEPARATORS = {";": ";", "\t": "\\t", "|": "|", ",": ","}
_BOMS = ("\ufeff", "ï»¿")


# ---- modules


def _module(case: Case) -> str | None:
    if case.type != "ModuleNotFoundError":
        return None
    found = re.search(r"No module named '([^']+)'", case.message)
    return _missing(next(iter(case.fact("module")), found[1] if found else "the module"))


def _missing(module: str) -> str:
    top = module.partition(".")[0]
    if top in _MODULES and top != module:
        moved = next((new for old, new in _MOVED.items() if module.startswith(old)), None)
        near = difflib.get_close_matches(module, _KNOWN_MODULES, n=1)
        if instead := moved or next(iter(near), None):
            return hint_text("submodule_instead", top=top, module=module, instead=instead)
        return hint_text("submodule", top=top, module=module)
    if instead := _INSTEAD.get(top):
        return hint_text("module_instead", module=module, instead=instead)
    return hint_text("module", module=module)


# ---- columns and keys


def _key(case: Case) -> Advice | str | None:
    if case.type != "KeyError":
        return None
    if re.search(r"\)\[-?\d+\]", case.source) and re.fullmatch(r"-?\d+", case.message):
        return hint_text("key_of_result", label=case.message)
    if not (columns := case.fact("columns")):
        return hint_text("key")
    wanted = re.findall(r"'([^']*)'", case.message) or [case.message]
    frame = next(iter(case.fact("frame")), "df")
    rules = (_read_wrong, _mislabelled, _of_another)
    said = (rule(case, frame, wanted, columns) for rule in rules)
    return next((text for text in said if text), None) or _listed(case, wanted, columns)


def _listed(case: Case, wanted: list[str], columns: tuple[str, ...]) -> Advice | str:
    if re.search(r"\.(?:loc|at)\[", case.source) and not closest(wanted, columns):
        return hint_text("row")
    text, close = listing("column", wanted, columns), closest(wanted, columns)
    spaced = [name for name in close if name.strip() in wanted and name != name.strip()]
    if not spaced:
        return mended(text, case.source, _respelt(case, wanted, close))
    strip = hint_text("column_strip", frame=next(iter(case.fact("frame")), "df"))
    text += hint_text("column_spaces", line=strip)
    return mended(text, case.source, f"{strip}\n{case.source}")


def _respelt(case: Case, wanted: list[str], close: tuple[str, ...]) -> str:
    """The failing line with the one name that can be meant: it differs in case or signs alone."""
    line = case.source
    if len(wanted) != 1 or len(close) != 1 or _letters(wanted[0]) != _letters(close[0]):
        return line
    for quote in "'\"":
        line = line.replace(f"{quote}{wanted[0]}{quote}", repr(close[0]))
    return line


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))


def _read_wrong(_: Case, frame: str, wanted: list[str], columns: tuple[str, ...]) -> str | None:
    """The table was read with another separator, or with the mark at its beginning."""
    if len(columns) == 1:
        separator = next((s for s in _SEPARATORS if s in columns[0]), None)
        if separator and any(want in columns[0] for want in wanted):
            return hint_text("separator", frame=frame, separator=_SEPARATORS[separator])
    if columns[0].startswith(_BOMS) and any(columns[0].endswith(want) for want in wanted):
        return hint_text("byte_order_mark", column=repr(columns[0]))
    return None


def _mislabelled(case: Case, frame: str, _: list[str], columns: tuple[str, ...]) -> str | None:
    """What stands in the brackets is no column by its kind: a number, or several names."""
    if case.message.startswith("("):
        try:
            names = [str(name) for name in ast.literal_eval(case.message)]
        except (ValueError, SyntaxError):
            return None
        return hint_text("key_list", frame=frame, names=names) if set(names) <= {*columns} else None
    if re.fullmatch(r"-?\d+", case.message) and f"{frame}[{case.message}]" in case.source:
        return hint_text("key_row", frame=frame, row=case.message, names=said_names(columns))
    return None


def _of_another(case: Case, frame: str, wanted: list[str], columns: tuple[str, ...]) -> str | None:
    """The column is there: it is asked of the rows, or of another table."""
    there = [want for want in wanted if want in columns]
    if not there:
        return None
    if ".drop(" in case.source and "columns" not in case.source:
        return hint_text("drop", names=there)
    if re.search(r"\bmerge\(|\.join\(", case.source):
        return hint_text("key_of_other", frame=frame, name=there[0])
    return None


# ---- files


def _file(case: Case) -> str | None:
    if case.type != "FileNotFoundError":
        return None
    wanted = re.findall(r"'([^']*)'", case.message)
    folder, _, name = (wanted or [""])[0].rpartition("/")
    if wanted and not folder and _RUNS.search(case.source):
        return missing_command(name)
    if folder and _WRITES.search(case.source):
        key = "folder_outside" if folder.startswith("/") else "folder"
        return hint_text(key, folder=folder, name=name)
    if not (files := case.fact("files")):
        return hint_text("file_none") if "files" in case.facts else None
    return listing("file", [want.rsplit("/", 1)[-1] for want in wanted], files)


def missing_command(name: str) -> str:
    """The hint for a command that is not there."""
    if name in {"python", "py"}:
        return hint_text("command_python3")
    if name in {"import", "print", "def", "from"}:
        return hint_text("command_python", command=name)
    if name in {"pip", "pip3", "conda", "apt", "apt-get", "apk", "sudo"}:
        return hint_text("command_install")
    return hint_text("command", command=name)


# ---- variables


def _name(case: Case) -> str | None:
    found = re.search(r"name '([^']+)' is not defined", case.message)
    if case.type not in {"NameError", "UnboundLocalError"} or not found:
        return None
    name = found[1]
    names = ", ".join(dict.fromkeys(case.lost_names[-40:]))
    if name in _FOREIGN:
        return _missing(_FOREIGN[name])
    if statement := _import(name, case.source):
        key = "import_lost" if name in case.lost_names else "name_import"
        return hint_text(key, statement=statement, names=names)
    if name in case.lost_names:
        return hint_text("name_lost", name=name, names=names)
    if close := closest([name], case.fact("names")):
        return hint_text("name_closest", name=name, closest=said_names(close))
    return hint_text("name", name=name)


def _import(name: str, source: str) -> str | None:
    """The statement that makes a well-known name, if it is one."""
    if name == "datetime" and re.search(
        r"datetime(?:\.(?:now|today|strp|from|comb)\w*)?\(", source
    ):
        return "from datetime import datetime"
    if name in _HOMES:
        return f"from {_HOMES[name]} import {name}"
    return _ALIASES.get(name, f"import {name}" if name in _MODULES else None)


def _attribute(case: Case) -> str | None:
    if case.type != "AttributeError":
        return None
    if "'NoneType' object" in case.message:
        return hint_text("attribute_none")
    found = re.search(r"(.*) object has no attribute '([^']+)'", case.message)
    wanted = found[2] if found else next(iter(case.fact("name")), "")
    names = [name for name in case.fact("names") if len(name) > 2 or len(wanted) < 4]  # noqa: PLR2004
    close = difflib.get_close_matches(wanted, names, n=2, cutoff=0.7)
    close = close or [name for name in names if name.lower() == wanted.lower()]
    if close:
        return hint_text("attribute", closest=said_names(close))
    if found and found[1] == "'DataFrame'":
        return hint_text("attribute_column", name=wanted)
    return hint_text("attribute_dict", name=wanted) if found and found[1] == "'dict'" else None


FACTS: tuple[Rule, ...] = (_module, _key, _file, _name, _attribute)
