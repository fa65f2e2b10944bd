"""Tell of values that pandas drops without a word.

`errors="coerce"` makes NaN of what it cannot read, and who does not count them never knows.
"""

from __future__ import annotations

import functools
import sys
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

CONVERTERS = ("to_numeric", "to_datetime", "to_timedelta")
_MOST_SHOWN = 60


def tell_losses(pandas: Any) -> None:
    """Have the converters of pandas warn of what they could not read."""
    for name in CONVERTERS:
        convert = getattr(pandas, name)
        told = _telling(pandas, convert)
        setattr(pandas, name, told)
        setattr(sys.modules[convert.__module__], name, told)  # where pickle looks for it


def _telling(pandas: Any, convert: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(convert)
    def told(arg: Any, *args: Any, **options: Any) -> Any:
        converted = convert(arg, *args, **options)
        if options.get("errors") == "coerce" or args[:1] == ("coerce",):
            text = _safely_said(pandas, convert.__name__, arg, converted)
            if text:
                warnings.warn(text, stacklevel=2)
        return converted

    return told


def _safely_said(pandas: Any, name: str, before: Any, after: Any) -> str:
    """What was lost. To count must not fail the call, whatever was converted."""
    try:
        given = pandas.Series(before).reset_index(drop=True)
        lost = pandas.Series(after).reset_index(drop=True).isna() & given.notna()
        count = int(lost.sum())
        if not count:
            return ""
        sample = repr(given[lost].iloc[0])[:_MOST_SHOWN]
    except Exception:
        return ""
    return f"{name}(errors='coerce') made NaN of {count} of {len(given)} values, such as {sample}"
