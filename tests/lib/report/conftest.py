import pytest

from tests.lib.report.runs import load


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return load(tmp_path_factory.mktemp("run"))
