import pytest

# Its asserts are to say what they compared, as those of test files do.
pytest.register_assert_rewrite("tests.worker.store_contract")
