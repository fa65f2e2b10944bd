"""Everything that this package raises on purpose.

CaissonError
├── UsageError             the person who started us must change something (exit code 2)
│   ├── SettingsInvalid    a setting is unknown or has an impossible value
│   ├── InputInvalid       a goal, file, mount or tool name that cannot be used
│   ├── SchemaMismatch     the database was made by an older or newer version
│   └── RecordingInvalid   a line of a recording cannot be read
├── ToolError              data for the model: becomes the result of the call, never more
│   └── ArgumentsInvalid   the call cannot be understood; it was not run
├── Infrastructure         our side failed; the runner retries or gives up, the model never
│   │                      sees it as output (so is `sandbox.errors.SandboxUnavailable`)
│   ├── ModelUnavailable   no usable reply from the endpoint
│   │   ├── ModelTimeout       … within the deadline of the reply
│   │   ├── ModelRefused       … because of the key, the model's name or the request
│   │   │   └── ToolsUnsupported   … because it takes no tools, or no results of them
│   │   ├── QuotaSpent         … because the account has nothing left
│   │   └── ContextTooLong     … because the request is larger than the model's window
│   ├── RequestInvalid     we built a request that no endpoint would accept: a fault of ours
│   ├── StoreUnavailable   the database cannot be reached, is full, or failed
│   ├── BlobMissing        a stored file is not on this host
│   ├── BrokerUnavailable  the message broker cannot be reached
│   ├── JobUnknown         the store has no such job
│   ├── JobExists          the store has a job of that id already
│   ├── JobTaken           another worker holds the job, or it is over
│   └── LeaseLost          a newer generation owns the job: stop at once, write nothing
└── Signal                 control flow of the loop, not failure
    ├── Handover           let go of the job as it is: another worker goes on with it
    ├── Stop               end the job now, with this reason
    │   └── Cancelled      … because somebody asked for it
    ├── Pause              leave the job as it is; somebody else must act first
    └── SkipCall           do not run this call; answer it with this text
"""

from __future__ import annotations


class CaissonError(Exception):
    """Base of everything raised on purpose. `str()` is one line for a person."""


class UsageError(CaissonError):
    """The person who started us must change something; trying again will not help."""


class SettingsInvalid(UsageError):
    """A setting is unknown or has an impossible value; says which, from where, and the remedy."""


class InputInvalid(UsageError):
    """A goal, file, mount or tool name that cannot be used."""


class SchemaMismatch(UsageError):
    """The database was made by an older or newer version; names the command that helps."""


class RecordingInvalid(UsageError):
    """A line of a recording cannot be read; names the file and the line."""


class ToolError(CaissonError):
    """Data for the model: the text becomes the result of the call."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ArgumentsInvalid(ToolError):
    """The call cannot be understood (unknown tool, unreadable or wrong arguments): not run."""


class Infrastructure(CaissonError):
    """Our side failed. Nothing is known to be wrong with what the model did."""


class ModelUnavailable(Infrastructure):
    """The endpoint gave no usable reply."""


class ModelTimeout(ModelUnavailable):
    """The endpoint gave no complete reply within the deadline."""


class ModelRefused(ModelUnavailable):
    """The endpoint refuses: the key, the model's name or the request; names the setting.

    `told` is what it said, where that may show how else to ask.
    """

    def __init__(self, message: str, *, told: str = "") -> None:
        super().__init__(message)
        self.told = told


class ToolsUnsupported(ModelRefused):
    """The model takes no tools, or no results of them; it can be asked in text."""


class QuotaSpent(ModelUnavailable):
    """The account has nothing left; waiting does not help."""


class ContextTooLong(ModelUnavailable):
    """The request is larger than the model's window; `window` is its size where it was told."""

    def __init__(self, message: str, *, window: int | None = None) -> None:
        super().__init__(message)
        self.window = window


class RequestInvalid(Infrastructure):
    """We built a request that no endpoint would accept. A fault of this package, found early."""


class StoreUnavailable(Infrastructure):
    """The database cannot be reached, is full, or failed. Nothing was half written."""


class BlobMissing(Infrastructure):
    """A stored file is not on this host: another's data folder, removed by hand, or damaged."""


class BrokerUnavailable(Infrastructure):
    """The message broker cannot be reached. Jobs are safe: they are in the database."""


class JobUnknown(Infrastructure):
    """The store has no such job."""


class JobExists(Infrastructure):
    """The store has a job of that id already."""


class JobTaken(Infrastructure):
    """The job cannot be claimed: another worker holds it, or it is over."""


class LeaseLost(Infrastructure):
    """A newer generation owns the job: whoever gets this stops at once and writes nothing."""


class Signal(CaissonError):
    """Control flow of the loop, raised by hooks and parts. Not a failure."""


class Handover(Signal):
    """Let go of the job as it is, its sandbox running: another worker goes on with it."""


class Stop(Signal):
    """End the job now: a finish reason, the name of the error, and the answer there is."""

    def __init__(
        self, message: str, *, reason: str = "failed", kind: str = "Failed", answer: str = ""
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.kind = kind
        self.answer = answer


class Cancelled(Stop):
    """Somebody asked for the end of the job."""

    def __init__(self, message: str = "cancelled on request") -> None:
        super().__init__(message, reason="cancelled", kind="Cancelled")


class Pause(Signal):
    """Leave the job as it is: somebody else must act before it can go on."""


class SkipCall(Signal):
    """Do not run this call. The text is its result."""
