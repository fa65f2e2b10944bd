"""Make the model that a choice names, or say what must be set for it."""

from __future__ import annotations

import os
from pathlib import Path

from worker.endpoints import ModelChoice, address_fault
from worker.errors import InputInvalid
from worker.models.base import Model
from worker.models.slots import Slots
from worker.urls import without_password

OPENAI = "https://api.openai.com/v1"
_TRIES, _LONGEST_ASKED_S = 3, 20.0  # what an endpoint is granted when another could be asked


def endpoint_model(choice: ModelChoice, slots: Path, *, has_fallback: bool = False) -> Model:
    """The model behind its endpoint; `slots` is where this host's requests are counted.

    Raises `InputInvalid`, which names the setting, when it cannot be asked.
    """
    check(choice)
    from worker.models.openai_chat import OpenAIChat, Retries  # noqa: PLC0415 - slow to load

    held = None
    if choice.max_concurrent is not None:
        held = Slots(slots, choice.base_url or OPENAI, choice.max_concurrent)
    retries = Retries(tries=_TRIES, longest_asked_s=_LONGEST_ASKED_S) if has_fallback else Retries()
    try:
        return OpenAIChat(choice, retries=retries, slots=held)
    except (OSError, ValueError) as error:  # of SSL_CERT_FILE, HTTPS_PROXY or the address
        why = getattr(error, "strerror", None) or error
        if isinstance(error, OSError) and (file := os.environ.get("SSL_CERT_FILE")):
            raise InputInvalid(
                f"SSL_CERT_FILE = {file!r} has no certificates that can be read: {why}"
            ) from error
        raise InputInvalid(
            f"no connection can be made to {choice.name!r} (see SSL_CERT_FILE, HTTPS_PROXY and "
            f"{choice.url_name}): {why}"
        ) from error


def check(choice: ModelChoice) -> None:
    """Raise `InputInvalid`, which names the setting, for a choice that cannot be asked."""
    if not choice.name:
        raise InputInvalid("no model: set CAISSON_MODEL or --model, or use --replay FILE")
    if choice.lacks_key:
        raise InputInvalid(
            f"{choice.key_name} is not set, which models.{choice.name}.api_key_env names"
        )
    if choice.base_url is None and choice.api_key is None:
        raise InputInvalid(
            f"no endpoint: set {choice.key_name}, or {choice.url_name} for one's own"
        )
    if choice.base_url and (fault := address_fault(choice.base_url)):
        shown = without_password(choice.base_url.partition("?")[0])
        raise InputInvalid(f"{choice.url_name} = {shown!r} {fault}")
    key = choice.api_key.get_secret_value() if choice.api_key else ""
    if not (key.isascii() and key.isprintable()) or " " in key:  # it is never shown
        raise InputInvalid(f"{choice.key_name} has characters that no key has, or a line end")
