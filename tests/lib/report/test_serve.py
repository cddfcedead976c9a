import socket
import threading
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
    pages = {"/studies/": lambda: "<title>studies</title>"}
    with report_server(tmp_path / "report.html", port=0, pages=pages) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "status", "content"),
    [
        ("/", 200, b"<title>hello</title>"),
        ("/report.html?x=1", 200, b"<title>hello</title>"),
        ("/studies/", 200, b"<title>studies</title>"),
        ("/private.txt", 404, None),
        ("/../private.txt", 404, None),
        ("/studies/none", 404, None),
    ],
)
def test_the_pages_and_nothing_else_are_served_on_loopback(server, path, status, content):
    assert server.server_address[0] == "127.0.0.1"
    connection = HTTPConnection(*server.server_address)
    connection.request("GET", path)
    answer = connection.getresponse()
    read = answer.read()
    assert answer.status == status
    assert b"private" not in read.replace(b"/private.txt", b"")
    if content:
        assert read == content
    # The page shows the day.
    assert bool(answer.headers["Last-Modified"]) == (content == b"<title>hello</title>")
    connection.close()


def test_half_a_request_holds_no_thread_for_ever(server, monkeypatch):
    assert server.RequestHandlerClass.timeout <= 30
    monkeypatch.setattr(server.RequestHandlerClass, "timeout", 0.05)
    with socket.create_connection(server.server_address, timeout=20) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        assert client.recv(1) == b""


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
