import threading
import urllib.error
import urllib.request

import pytest
from click.testing import CliRunner

from lib.errors import UserError
from lib.report.serve import main, report_server


@pytest.fixture
def server(tmp_path):
    (tmp_path / "report.html").write_text("<title>hello</title>")
    with report_server(tmp_path, port=0) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def address(server, name):
    return f"http://127.0.0.1:{server.server_address[1]}/{name}"


def test_the_report_is_served_on_loopback_alone(server):
    assert server.server_address[0] == "127.0.0.1"
    with urllib.request.urlopen(address(server, "report.html")) as answer:
        assert answer.read() == b"<title>hello</title>"


@pytest.mark.parametrize("up", ["..", "%2e%2e", "x/../.."])
def test_nothing_above_the_folder_is_served(server, tmp_path, up):
    beside = tmp_path.with_name(f"{tmp_path.name}-private.txt")
    beside.write_text("private")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(address(server, f"{up}/{beside.name}"))


def test_a_port_that_is_taken_is_one_clear_line(server, tmp_path):
    taken = server.server_address[1]
    with pytest.raises(UserError, match=rf"port {taken}: .*make serve PORT=8001"):
        report_server(tmp_path, port=taken)


def test_a_missing_report_says_how_to_make_it(tmp_path):
    result = CliRunner().invoke(main, ["--page", str(tmp_path / "report.html")])
    assert result.exit_code == 1
    assert "run `make report`" in result.output
