"""What a person sees of a job while it runs: thought, code, output, figures, budget, answer.

Results are shown in the words that the model gets. The answer is set as Markdown on a terminal
only, without clickable links, and printed as it is elsewhere, so that a pipe gets what was said.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.padding import Padding
from rich.style import Style
from rich.syntax import ANSI_DARK, ANSISyntaxTheme, Syntax
from rich.text import Text

from sandbox.transcript import clean
from sandbox.types import Outcome
from worker.budget import Spent, spent
from worker.history import History
from worker.hooks import Observer
from worker.messages import (
    Artifact,
    CallStarted,
    Event,
    FinishReason,
    Job,
    MessageAdded,
    NoticeAdded,
    Remarked,
    Reply,
    ReplyAdded,
    ResultAdded,
    ResultStatus,
    Role,
    SandboxReplaced,
    Status,
    SummaryAdded,
    ToolCall,
    ToolResult,
    WindowLearnt,
)
from worker.sizes import said_bytes
from worker.terminal import Activity, figures, safe, time_text, write_block, write_shortened
from worker.tools import shown_arguments

_INDENT = "  "
_LANGUAGES = {"code": "python", "command": "bash", "expression": "python"}
_SHORT_CHARS = 200
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
# The terminal's own colours, and no underlined modules.
_THEME = ANSISyntaxTheme({k: v + Style(underline=False) for k, v in ANSI_DARK.items()})

_MARKS = {
    ResultStatus.OK: ("✓", "green"),
    ResultStatus.ERROR: ("✗", "red"),
    ResultStatus.REFUSED: ("✗", "yellow"),
    ResultStatus.SKIPPED: ("–", "yellow"),
    ResultStatus.CANCELLED: ("–", "yellow"),
    ResultStatus.UNKNOWN: ("?", "yellow"),
}


class View(Observer, ABC):
    """Shows a job on a terminal. One that goes away ends the view, never the work."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._activity = Activity(console)
        self._waits_for = ""

    @property
    def is_gone(self) -> bool:
        """The terminal or the reader has gone away."""
        return self._console.quiet

    @contextmanager
    def _seen_or_not(self) -> Iterator[None]:
        """Within, a terminal that goes away is no error: from then on nothing is written to it."""
        try:
            yield
        except OSError:
            self._console.quiet = True

    def on_asking(self, history: History) -> None:
        with self._seen_or_not():
            self._show_asking(history)

    def on_event(self, event: Event, history: History) -> None:
        with self._seen_or_not():
            self._show(event, history)

    def on_standing(self, what: str, *, is_waiting: bool) -> None:
        """Nothing has happened since; say what goes on, or what the job waits for."""
        with self._seen_or_not():
            self._activity.show(what)
            kind = _NUMBERS.sub("", what) if is_waiting else ""  # they may change every second
            if kind not in {"", self._waits_for} and not self._console.is_terminal:
                write_block(self._console, Text(f"· {safe(what)}"))
            self._waits_for = kind

    def on_change(self, what: str) -> None:
        """Another worker has the job; say which."""
        with self._seen_or_not():
            self._show_change(what)

    def on_delay(self, what: str) -> None:
        """The model could not be asked, and will be again; say why."""
        with self._seen_or_not():
            self._show_delay(what)

    def hide(self) -> None:
        """Take away what is shown of the present moment."""
        with self._seen_or_not():
            self._activity.hide()

    def close(self, job: Job) -> None:
        """Show how the job ended."""
        with self._seen_or_not():
            self._show_end(job)

    @abstractmethod
    def _show_asking(self, history: History) -> None:
        """Show that the model is asked now."""

    @abstractmethod
    def _show(self, event: Event, history: History) -> None:
        """Show what has just been stored."""

    @abstractmethod
    def _show_end(self, job: Job) -> None:
        """Show how the job ended."""

    def _show_change(self, what: str) -> None:
        """Show that another worker has the job."""

    def _show_delay(self, what: str) -> None:
        """Show that the model will be asked again."""
        self._activity.show(what)


class Glance(View):
    """Shows on one line of a terminal what the job is doing; leaves nothing behind."""

    @property
    def is_gone(self) -> bool:
        """Never: what matters is printed at the end, elsewhere."""
        return False

    def _show_asking(self, history: History) -> None:
        self._activity.show(f"step {history.job.steps + 1}: the model thinks")

    def _show(self, event: Event, history: History) -> None:
        if isinstance(event, MessageAdded):
            self._activity.show("a sandbox starts")
        elif isinstance(event, CallStarted):
            name = safe(history.call(event.call_id).name)
            self._activity.show(f"step {history.job.steps}: {name} runs")

    def _show_end(self, job: Job) -> None:
        del job
        self._activity.hide()


class Trace(View):
    """Prints the work of a job as it happens.

    Args:
        console: Where to.
        whole: Says where all of what is too long can be had.
    """

    def __init__(self, console: Console, whole: str = "") -> None:
        super().__init__(console)
        self._hint = f"; {whole}" if whole else ""
        self._held: Reply | None = None
        self._step = 0
        self._left = ""
        self._shown: set[str] = set()

    # ---- what happens

    def _show_asking(self, history: History) -> None:
        del history
        self._activity.show("the model thinks")

    def _show(self, event: Event, history: History) -> None:
        self._activity.hide()
        match event:
            case MessageAdded() if event.message.role is Role.USER:
                self._opening(history.job, event.message.text)
                self._activity.show("a sandbox starts")
            case ReplyAdded():
                self._reply(event, history)
            case CallStarted():
                self._call(history.call(event.call_id), history)
                self._activity.show(f"{safe(history.call(event.call_id).name)} runs")
            case ResultAdded():
                self._call(history.call(event.result.call_id), history)
                self._result(event.result)
            case NoticeAdded():
                self._release()
                self._note("↺ told the model: ", event.text, "yellow")
            case Remarked():
                self._note("· ", event.text, "dim")
            case SummaryAdded() if event.text:
                self._note(f"· notes on the first {event.steps} steps: ", event.text, "dim")
            case WindowLearnt():
                self._note("! ", event.why, "yellow")
            case SandboxReplaced():
                self._note("! new sandbox: ", event.why, "yellow")

    # ---- the parts of a trace

    def _opening(self, job: Job, goal: str) -> None:
        self._line(Text.assemble(("caisson", "bold cyan"), ("  job ", "dim"), safe(job.id)))
        if job.model:
            self._line(Text.assemble(("model ", "dim"), safe(job.model)))
        self._line()
        text = Text(safe(goal).strip(), style="dim")
        if text.plain.startswith(own := safe(job.goal).strip()):
            text.stylize("not dim bold", 0, len(own))  # what follows, the model alone needs
        self._block(text, _INDENT)

    def _reply(self, event: ReplyAdded, history: History) -> None:
        self._release()
        self._left = left_text(spent(history, event.at or time.time()))
        self._held = event.reply
        self._step = history.job.steps
        if event.reply.calls:
            self._release()  # without calls it is most likely the answer, which is shown at the end

    def _release(self, *, is_answer: bool = False) -> None:
        """Print the reply that is held back; of an answer only how it was found."""
        held, self._held = self._held, None
        if held is None:
            return
        title, style = ("answer", "bold green") if is_answer else (str(self._step), "bold")
        self._rule(title, self._left, style)
        if paid := paid_text(held):
            self._block(Text(safe(paid), style="dim"))
        for remark in held.remarks:
            self._note("· ", remark, "yellow")
        if held.reasoning:
            self._long(Text(safe(held.reasoning).strip(), style="dim italic"))
        if held.text and not is_answer:
            self._block(Text(safe(held.text)))

    def _call(self, call: ToolCall, history: History) -> None:
        if call.id in self._shown:
            return
        self._shown.add(call.id)
        title = Text.assemble(("▸ ", "cyan"), (safe(call.name), "cyan"))
        title.append(f"  call {history.number(call.id)}", style="dim")
        arguments = shown_arguments(call)
        code = Text(safe(arguments)) if isinstance(arguments, str) else _code(arguments)
        if isinstance(arguments, dict):
            title.append_text(_short_arguments(arguments))
        self._line()
        self._block(title, _INDENT)
        if call.repaired:
            self._note("· repaired: ", call.repaired, "yellow")
        if code is not None:
            self._long(code, "    ")

    def _result(self, result: ToolResult) -> None:
        mark, style = _MARKS[result.status]
        head = Text.assemble((f"{mark} ", style), (_headline(result), style))
        head.append(_figures(result), style="dim")
        self._block(head, _INDENT)
        first, _, rest = result.text.partition("\n")
        body = rest if first.startswith("status:") else result.text
        if body.strip():
            self._long(_observation(body), f"{_INDENT}│ ", "dim")

    def _file(self, file: Artifact) -> None:
        line = Text.assemble(
            ("+ ", "green"), safe(file.name), (f"  {said_bytes(file.size)}", "dim")
        )
        self._block(line, _INDENT)

    def _note(self, mark: str, text: str, style: str) -> None:
        self._long(Text(mark + safe(text).strip(), style=style))

    def _show_change(self, what: str) -> None:
        self._activity.hide()
        self._release()
        self._note("! ", what, "yellow")

    def _show_delay(self, what: str) -> None:
        self._activity.hide()
        self._note("· ", what, "dim")
        self._activity.show("the model will be asked again")

    # ---- the end

    def _show_end(self, job: Job) -> None:
        """Print how the job ended, its answer, and where its files are."""
        self._activity.hide()
        is_answer = self._held is not None and self._held.text == (job.answer or "").strip()
        self._release(is_answer=is_answer)
        if job.answer:
            self._answer(job.answer, is_titled=is_answer)
        self._line()
        self._block(ending_text(job), "")
        if job.error is not None:
            self._block(Text(safe(job.error.message)))
        for artifact in job.artifacts:
            self._file(artifact)
        if job.artifacts:
            folder = folder_of(job.artifacts)
            self._line(Text.assemble(("files in ", "dim"), safe(str(folder))))

    def _answer(self, answer: str, *, is_titled: bool) -> None:
        if not is_titled:
            self._rule("answer", "", "bold green")
        write_answer(self._console, answer)

    # ---- lines

    def _rule(self, left: str, right: str, style: str = "bold") -> None:
        width = self._console.width
        gap = max(3, width - len(left) - len(right) - 6)
        self._line()
        self._line(
            Text.assemble(("── ", "dim"), (left, style), (f" {'─' * gap} ", "dim"), (right, "dim"))
        )

    def _block(self, text: Text, gutter: str = _INDENT, gutter_style: str = "") -> None:
        write_block(self._console, text, gutter, gutter_style)

    def _long(self, text: Text, gutter: str = _INDENT, gutter_style: str = "") -> None:
        write_shortened(self._console, text, gutter, gutter_style, hint=self._hint)

    def _line(self, text: Text | None = None) -> None:
        self._console.print(text or "", soft_wrap=True)


def write_answer(console: Console, answer: str) -> None:
    """An answer as a document on a terminal, and as it was given elsewhere."""
    if console.is_terminal:
        text = Markdown(safe(answer), code_theme="ansi_dark", hyperlinks=False)
        console.print(Padding(text, (0, 0, 0, len(_INDENT))))
    else:
        write_block(console, Text(safe(answer)))


def paid_text(reply: Reply) -> str:
    """Who gave a reply and what it took; nothing for one that was not paid for."""
    usage = reply.usage
    if not usage.tokens:
        return ""
    parts = [reply.model] if reply.model else []
    parts.append(f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out")
    if usage.cost:
        parts.append(f"cost {usage.cost:.4f}")
    if reply.duration_s:
        parts.append(time_text(reply.duration_s))
    return " · ".join(parts)


def left_text(limits: Iterable[Spent]) -> str:
    """What is left of a budget, in a few words."""
    return " · ".join(_left(limit) for limit in limits if limit.limit != "max_working_s") + " left"


def _left(limit: Spent) -> str:
    if limit.unit == "s":
        is_long = limit.left > 10 * 60  # then the seconds are noise
        return f"{limit.left // 60:.0f} min" if is_long else time_text(limit.left)
    if not limit.unit:
        return f"cost {limit.left:.2f}"
    return f"{limit.left:,.0f} {limit.unit}"


def _code(arguments: dict[str, str]) -> Text | None:
    for name, language in _LANGUAGES.items():
        if name in arguments:
            syntax = Syntax("", language, theme=_THEME, background_color="default")
            text = syntax.highlight(safe(arguments[name]).strip("\n"))
            text.rstrip()
            return text
    return None


def _short_arguments(arguments: dict[str, str]) -> Text:
    text = Text()
    for name, value in arguments.items():
        if name not in _LANGUAGES:
            shown = clean(value, _SHORT_CHARS).replace("\n", "↵")
            text.append(f"  {safe(name)}=", style="dim").append(shown)
    return text


def _headline(result: ToolResult) -> str:
    if result.execution is not None and result.execution.outcome is not Outcome.OK:
        return result.execution.outcome.value.replace("_", " ")
    return result.status.value


def _figures(result: ToolResult) -> str:
    if result.execution is None:
        return f"  {time_text(result.duration_s)}" if result.duration_s else ""
    return figures(result.execution)


def _observation(body: str) -> Text:
    """Colour the lines of a result that matter most."""
    text = Text(safe(body).strip("\n"))
    text.highlight_regex(r"(?m)^hint: .*", "yellow")
    text.highlight_regex(r"(?m)^new or changed files: .*", "green")
    text.highlight_regex(r"(?m)^(output|value):$", "dim")
    return text


def ending_text(job: Job) -> Text:
    """How a job ended, and what it took."""
    is_good = job.finish_reason is FinishReason.ANSWERED
    mark = ("✓ ", "bold green") if is_good else ("✗ ", "bold red")
    is_dead = job.status is Status.DEAD
    reason = job.status if is_dead or job.finish_reason is None else job.finish_reason
    parts = [f"{job.steps} step{'' if job.steps == 1 else 's'}"]
    if job.usage.tokens:
        parts.append(f"{job.usage.tokens:,} tokens")
    if job.usage.cost:
        parts.append(f"cost {job.usage.cost:.4f}")
    return Text.assemble(mark, (reason.value, mark[1]), ("  " + " · ".join(parts), "dim"))


def folder_of(artifacts: Sequence[Artifact]) -> Path:
    """The folder of a job that all its artefacts are in."""
    first = artifacts[0]
    return Path(first.path).parents[len(Path(first.name).parts) - 1]
