import threading
import urllib.request
from http.client import HTTPConnection

import pytest
from click.testing import CliRunner

from commands.serve import main
from lib.core.errors import UserError
from lib.report.serve import report_server


@pytest.fixture
def server(tmp_path):
    (tmp_path / "report.html").write_text("<title>hello</title>")
    (tmp_path / "private.txt").write_text("private")
    with report_server(tmp_path / "report.html", port=0) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["", "report.html", "private.txt", "../private.txt"])
def test_the_page_and_nothing_else_is_served_on_loopback(server, path):
    host, port = server.server_address
    assert host == "127.0.0.1"
    with urllib.request.urlopen(f"http://{host}:{port}/{path}") as answer:
        assert answer.headers["Last-Modified"]  # the page shows the day
        assert answer.read() == b"<title>hello</title>"


@pytest.mark.parametrize(
    ("host", "status"), [("localhost:9", 200), ("rebound.example", 403), ("", 403), ("[::", 403)]
)
def test_a_page_of_another_name_reads_nothing(server, host, status):
    connection = HTTPConnection(*server.server_address)
    connection.request("GET", "/", headers={"Host": host})
    answer = connection.getresponse()
    assert (answer.status, b"hello" in answer.read()) == (status, status == 200)
    connection.close()


def test_a_port_that_is_taken_is_one_clear_line(server, tmp_path):
    with pytest.raises(UserError, match=f"port {server.server_address[1]}"):
        report_server(tmp_path, port=server.server_address[1])


def test_a_missing_report_names_what_makes_it(tmp_path):
    result = CliRunner().invoke(main, ["--page", str(tmp_path / "report.html")])
    assert result.exit_code == 1 and "make repro" in result.output
