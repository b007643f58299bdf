"""The local page in a real browser, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

TICKETS = Path(__file__).parents[2] / "examples" / "logs" / "tickets.csv"
EVIL = "<script>document.title='ran'</script>"


@contextmanager
def serving(tmp_path, *options):
    """Start the server, yield the process and its address, and end it as Ctrl-C does."""
    command = [sys.executable, "-m", "qposterior", "serve", "--port", "0", *options]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    address = process.stdout.readline().split()[0].rstrip("/")
    for _ in range(200):
        try:
            status(address)
            break
        except OSError:
            time.sleep(0.05)
    yield process, address
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("serve")


@pytest.fixture(scope="module")
def server(home):
    with serving(home, "--most-mb", "1") as (_, address):
        yield address


def status(address, path="/", *, method="GET", data=None, **headers):
    """Return the status of a request with these headers, and what is answered."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(address + path, method=method, data=data, headers=named)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def multipart(name, content):
    """Return the body of a form with a file, and its type."""
    head = f'--x\r\nContent-Disposition: form-data; name="log"; filename="{name}"\r\nContent-Type: text/csv\r\n\r\n'
    return head.encode() + content + b"\r\n--x--\r\n", "multipart/form-data; boundary=x"


def test_from_a_dropped_file_to_an_answer(server, browser):
    page = browser.new_page()
    problems = []
    page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(server)
    page.set_input_files("#log", TICKETS)
    page.click("text=Look at it")
    page.wait_for_selector("text=As a log:")
    assert page.locator("select[name=column_state]").input_value() == "status"
    assert page.locator("select[name=key]").input_value() == "ticket_id"
    assert page.locator("input[name=cost]").is_checked()
    page.check("input[name=normalise]")
    page.click("text=Look again")
    page.wait_for_selector("text=426 decisions in 244 episodes")
    page.click("button:has-text('Fit')")
    page.click("text=Read the answer", timeout=240_000)
    page.wait_for_selector("#states > tbody")
    assert page.title() == "What to do: tickets.csv"
    assert page.locator("#states > tbody").count() == 3
    page.go_back()
    with page.expect_download() as downloaded:
        page.click("text=Everything as data")
    answer = json.loads(Path(downloaded.value.path()).read_text())
    assert answer["settings"]["source"] == "tickets.csv"
    assert answer["policy"]["first question"] in ("template", "call", "ask back")
    assert problems == []
    page.close()


def test_a_file_that_is_no_log_is_explained_and_runs_nothing(server, browser, tmp_path):
    path = tmp_path / "odd.csv"
    path.write_text(f'state,"{EVIL}",reward,next_state\n"{EVIL}",x,1,b\n')
    page = browser.new_page()
    page.goto(server)
    page.set_input_files("#log", path)
    page.click("text=Look at it")
    page.wait_for_selector(".misfit")
    assert "there is no column 'action'" in page.locator(".misfit").inner_text()
    assert page.locator("button:has-text('Fit')").is_disabled()
    assert page.title() == "What is in odd.csv"
    assert page.locator("td.name").all_inner_texts().count(EVIL) == 1
    page.close()


def test_pages_pass_an_accessibility_audit(server, browser):
    from axe_core_python.sync_playwright import Axe

    page = browser.new_page()
    for where in ("/", "/logs/1", "/answers/1"):
        page.goto(server + where)
        assert [one["id"] for one in Axe().run(page)["violations"]] == []
    page.close()


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {"Host": "evil.example"}),
        ("GET", {"Host": "127.0.0.1"}),
        ("GET", {"Origin": "http://evil.example"}),
        ("GET", {"Origin": "null"}),
        ("GET", {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}),
        ("POST", {}),
        ("POST", {"Origin": "http://evil.example"}),
        ("POST", {"Origin": "null"}),
    ],
)
def test_requests_from_elsewhere_are_refused(server, method, headers):
    code, _, said = status(server, "/" if method == "GET" else "/logs", method=method, **headers)
    assert code == 403
    assert "refused" in said or "this machine only" in said


def test_a_page_of_another_origin_gets_nothing(server, browser, tmp_path):
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<h1>elsewhere</h1>")

        def log_message(self, *_):
            pass

    other = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    Thread(target=other.serve_forever, daemon=True).start()
    page = browser.new_page()
    page.goto(f"http://localhost:{other.server_port}/")
    ask = "([url, how]) => fetch(url, how).then(() => 'answered', () => 'refused')"
    assert page.evaluate(ask, [f"http://localhost:{other.server_port}/", {}]) == "answered"
    for how in ({"method": "POST", "mode": "no-cors", "body": "x"}, {"mode": "no-cors"}, {}):
        assert page.evaluate(ask, [f"{server}/logs", how]) == "refused"
    page.close()
    other.shutdown()
    other.server_close()


def test_what_is_too_large_or_of_another_kind_is_refused(server):
    body, kind = multipart("big.csv", b"x" * (2 * 2**20))
    said = {"Origin": server, "Content_Type": kind}
    code, _, words = status(server, "/logs", method="POST", data=body, **said)
    assert (code, "1 MB" in words) == (413, True)
    body, _ = multipart("run.sh", b"rm")
    code, _, words = status(server, "/logs", method="POST", data=body, **said)
    assert (code, "give a file that ends in" in words) == (400, True)
    for path in (
        "/logs/99",
        "/answers/99",
        "/answers/0/index.html",
        "/answers/1/..%2Flog1.csv",
        "/answers/1/sums.json",
    ):
        assert status(server, path)[0] == 404
    code, headers, _ = status(server)
    assert code == 200
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"


def test_an_upload_that_lies_about_its_length_is_cut_off(server):
    host, port = server.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as line:
        head = f"POST /logs HTTP/1.1\r\nHost: {host}:{port}\r\nOrigin: {server}\r\nTransfer-Encoding: chunked\r\n"
        line.sendall(head.encode() + b"Content-Type: multipart/form-data; boundary=x\r\n\r\n")
        body = multipart("big.csv", b"x" * 2**21)[0]
        answered = b""
        with contextlib.suppress(OSError):
            for start in range(0, len(body), 2**16):
                block = body[start : start + 2**16]
                line.sendall(f"{len(block):x}\r\n".encode() + block + b"\r\n")
            line.sendall(b"0\r\n\r\n")
            answered = line.recv(200)
    assert b" 303 " not in answered
    assert status(server)[0] == 200


def test_nothing_is_left_when_it_ends(tmp_path):
    with serving(tmp_path) as (process, address):
        body, kind = multipart("log.csv", b"state,action,reward,next_state\na,x,1,b\n")
        status(address, "/logs", method="POST", data=body, Origin=address, Content_Type=kind)
        assert len(list(tmp_path.glob("qposterior-*/log1.csv"))) == 1
    assert process.returncode in (0, 130)
    assert list(tmp_path.iterdir()) == []


def test_bad_use_is_refused_in_one_line(tmp_path):
    def run(*options):
        command = [sys.executable, "-m", "qposterior", "serve", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        answer = run("--port", str(taken.getsockname()[1]))
    assert answer.returncode == 2
    assert "give another --port" in answer.stderr
    answer = run(str(tmp_path))
    assert answer.returncode == 2
    assert "holds no answer" in answer.stderr
