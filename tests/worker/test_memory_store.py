from __future__ import annotations

import pytest

from tests.worker.store_contract import StoreContract
from worker.store.memory import MemoryStore


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def opened(self):
        return MemoryStore
