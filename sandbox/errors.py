"""Host-side failures: the code could not be run, or we cannot know what it did.

    SandboxError
    ├── SpecInvalid            the caller asked for something that cannot be
    │   └── FileRefused        … of a file: too large, not there, not a regular file
    └── SandboxUnavailable     infrastructure; the same call may work later or elsewhere
        ├── EngineUnavailable  no Docker engine answers
        ├── ImageMissing       the engine has no such image, and none could be pulled
        ├── ImageUnsuitable    the image has no Python >= 3.9
        ├── SandboxLost        the sandbox ended; its files and variables are gone
        ├── LinkLost           the link broke; the sandbox may live on and can be adopted
        ├── Detached           this host has let go of the sandbox, which lives on
        ├── ProtocolError      the guest said something that is not in the protocol
        ├── GuestTimeout       the guest did not answer in time
        └── StaleGeneration    a newer host owns the sandbox: stop at once

What the code itself did (an exception, out of memory, a time limit) is never one of these: it is
an `Execution`.
"""


class SandboxError(Exception):
    """Base of everything this package raises on purpose. `str()` is one line for a person."""


class SpecInvalid(SandboxError):
    """The caller asked for something that cannot be; asking again will not help."""


class FileRefused(SpecInvalid):
    """A file is missing, too large, or not a regular file inside the workspace."""


class SandboxUnavailable(SandboxError):
    """Infrastructure failed. Nothing is known to be wrong with the code or the request."""


class EngineUnavailable(SandboxUnavailable):
    """No Docker engine answers at the address in use."""


class ImageMissing(SandboxUnavailable):
    """The engine does not have the image."""


class ImageUnsuitable(SandboxUnavailable):
    """The image cannot run the guest: it has no Python 3.9 or newer."""


class SandboxLost(SandboxUnavailable):
    """The sandbox ended under us; what was in it is gone."""


class LinkLost(SandboxUnavailable):
    """The link broke, and the sandbox runs on or nobody can be asked: adopt it, or close it."""


class Detached(SandboxUnavailable):
    """This host has let go of the sandbox (`Sandbox.detach`); a call in it goes on without us."""


class ProtocolError(SandboxUnavailable):
    """The guest sent what the protocol does not allow. It is hostile or broken: discard it."""


class GuestTimeout(SandboxUnavailable):
    """The guest did not answer within the host's own deadline."""


class StaleGeneration(SandboxUnavailable):
    """The guest has seen a higher generation: this host has lost its claim and must stop."""
