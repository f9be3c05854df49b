"""Cases as data (window, random, watermark), and the runners that hold the package to them."""

import pytest

pytest.register_assert_rewrite("tests.cases.check")
