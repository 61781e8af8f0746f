"""`hybrid-des live` as its pages use it: by the server's protocol, and in a headless browser."""

import asyncio
import json
import socket
from contextlib import suppress
from time import sleep
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from support.browser import BROWSER, Tab, browser
from support.live_pages import LONGEST_S, connected, origin, served, talk
from support.paths import SCENARIOS
from support.readme import FILES as FILES_OF_README

from hybrid_des.interface.live import worker
from hybrid_des.interface.live.frames import Request as PageRequest
from hybrid_des.interface.live.frames import ServerState
from hybrid_des.result import simulate
from hybrid_des.scenario.loading import load
from hybrid_des.studies.advice import advise

FILES = ("a100_8x.yaml", "h100_2x8.yaml")
NVLINK, BANDWIDTH = "cluster.nvlink.bandwidth", "cluster.infiniband.bandwidth"
FEW = {"schedule.microbatches": "8"}  # so that a step of h100_2x8 is short
SWEPT = [round(10 * 40 ** (place / 29), 3) for place in range(30)]  # 30 bandwidths from 10 to 400 GB/s
LARGE = 10_000_000  # bytes

needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs chromium")


@pytest.fixture(scope="module")
def address():
    with served(SCENARIOS / FILES[0]) as address:
        yield address


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as where:
        yield where


@pytest.fixture(scope="module")
def only_tab(chromium, address):
    tab = Tab(chromium)
    tab.screen(1400, 1000)
    tab.open(address)
    yield tab
    tab.close()


@pytest.fixture
def tab(only_tab, address):
    """A page as if just opened; whatever it does, it asks this server only, without an error."""
    only_tab.run(f"pins = []; become({{ file: '{FILES[0]}', changes: {{}} }}); past = []")
    drawn(only_tab)
    yield only_tab
    assert only_tab.wrong == []
    asked = {urlsplit(url).netloc for url in only_tab.requests if not url.startswith(("data:", "blob:"))}
    assert asked == {urlsplit(address).netloc}


def simulated(file, changes):
    """The summary of the same values, without what the machine's speed decides."""
    summary = simulate(load(SCENARIOS / file, [f"{path}={value}" for path, value in changes.items()])).summary
    return json.loads(json.dumps({key: value for key, value in summary.items() if key != "wall_s"}))


def code_of(address, **headers):
    """The status of an answer over HTTP."""
    try:
        with urlopen(Request(address, headers=headers), timeout=LONGEST_S) as answer:
            return answer.status
    except HTTPError as error:
        with error:
            return error.code


def refused(address, **headers):
    """The status with which a connection begins: 400 if all is right but the handshake is missing."""
    return code_of(f"{address}socket", **{"Origin": origin(address), **headers})


@pytest.mark.slow
@pytest.mark.parametrize(("file", "path", "every"), [(FILES[0], NVLINK, 3), (FILES[1], BANDWIDTH, 1)])
def test_thirty_bandwidths_are_thirty_simulations(address, file, path, every):
    changes = [{path: f"{gigabytes} GB/s", **FEW} for gigabytes in SWEPT[::every]]
    frames = talk(address, *({"file": file, "changes": one} for one in changes))
    for frame, change in zip(frames, changes, strict=True):
        frame["summary"].pop("wall_s")
        assert frame["summary"] == simulated(file, change)
    assert len({frame["data"] for frame in frames}) == len(changes) == 30 / every


def test_other_hosts_origins_and_tokens_are_refused(address):
    parts = urlsplit(address)
    wrong = f"{origin(address)}/{'x' * 32}/"
    assert code_of(address) == 200
    assert code_of(f"{address}schedules") == 200
    addresses = (wrong, f"{wrong}schedules", f"{origin(address)}/socket")
    assert [*map(code_of, addresses), refused(wrong)] == [403] * 4
    assert code_of(address, Host=f"evil.example:{parts.port}") == 403
    assert code_of(address, Origin="http://evil.example") == 403
    assert refused(address) == 400
    assert code_of(f"{address}socket") == 403  # a browser states the origin of a connection
    assert refused(address, Origin="http://evil.example") == 403
    assert refused(address, Origin=f"http://{parts.hostname}:{parts.port + 1}") == 403
    assert refused(address, Host="evil.example", Origin="http://evil.example") == 403
    assert code_of(f"{address}../{FILES[0]}") == 403
    assert code_of(f"{address}live.js") == 403


def test_without_the_token_nothing_is_said_of_the_scenario(address):
    token = urlsplit(address).path.strip("/")
    with urlopen(origin(address) + "/", timeout=LONGEST_S) as answer:
        text = answer.read().decode()
    assert token not in text
    assert "a100" not in text
    assert "connect-src" not in text
    assert code_of(f"{origin(address)}/", Host="evil.example") == 403


def test_the_server_listens_on_this_machine_only(address):
    port = urlsplit(address).port
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)} - {"127.0.0.1"}
    for other in others:
        with pytest.raises(OSError), socket.create_connection((other, port), timeout=1):
            pass
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        pass


@pytest.mark.slow
def test_large_bodies_and_paths_outside_are_refused(address):
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=LONGEST_S) as line:
        head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {LARGE}\r\n\r\n"
        line.sendall(head.encode())
        assert line.recv(100).startswith(b"HTTP/1.1 400 ")

    async def flooded():
        async with connected(address) as page:
            await page.send("x" * LARGE)
            return await page.receive()

    assert asyncio.run(flooded()) is None
    outside = ("../README.md", "/etc/passwd", "experiments/../../README.md")
    for answer in talk(address, *({"file": file} for file in outside)):
        assert "outside of" in answer["problems"][0]
    assert "frame" not in talk(address, {"file": FILES[0], "changes": {"schedule.file": "/etc/passwd"}})[0]


def test_a_request_that_no_page_sends_ends_the_connection(address):
    async def work():
        async with connected(address) as page:
            await page.send('{"number": 1, "code": "import os"}')
            assert await page.receive() is None
            return page.opened.close_code, page.opened.close_reason

    code, reason = asyncio.run(work())
    assert code == 1008
    assert reason.startswith("not a request: code")


@pytest.mark.slow
def test_only_the_newest_of_many_requests_must_be_answered(address):
    async def work():
        numbers = []
        async with connected(address) as page:
            for number in range(1, 41):
                changes = {BANDWIDTH: f"{number} GB/s"}
                await page.send(json.dumps({"number": number, "file": FILES[1], "changes": changes}))
            while not numbers or numbers[-1] < 40:
                answer = json.loads(await page.receive())
                numbers.append(answer["number"])
        return numbers, answer

    numbers, last = asyncio.run(work())
    assert numbers == sorted(set(numbers))
    assert len(numbers) < 40
    assert last["summary"]["step_time_s"] == simulated(FILES[1], {BANDWIDTH: "40 GB/s"})["step_time_s"]


@pytest.mark.slow
def test_a_process_that_fails_is_replaced(monkeypatch, tmp_path):
    monkeypatch.setattr(worker, "GRACE_S", -9.9)  # a tenth of a second in all: less than it takes to start
    (tmp_path / "own.py").write_text(FILES_OF_README["my_schedule.py"], encoding="utf-8")

    async def work():
        answers = asyncio.Queue()
        state = ServerState(SCENARIOS / FILES[0], imports=(str(tmp_path / "own.py"),), budget_s=10.0)
        pages = worker.Worker(state)
        pages.answered = lambda text: answers.put_nowait(json.loads(text))
        found = []
        for number in (1, 2, 3):
            pages.ask(PageRequest(number=number, file=FILES[0]))
            if number == 2:
                pages._process.kill()
            found.append(await asyncio.wait_for(answers.get(), LONGEST_S))
            monkeypatch.setattr(worker, "GRACE_S", LONGEST_S)
        pages.stop()
        return found

    late, killed, found = asyncio.run(work())
    assert late == {"number": 1, "problems": ["not complete: the budget of 10 s is spent"]}
    assert killed["number"] == 2
    assert "has ended" in killed["problems"][0]
    assert (found["number"], found["summary"]["ranks"]) == (3, 8)
    kinds = next(control["choices"] for control in found["controls"] if control["path"] == "schedule.kind")
    assert "gpipe-in-groups" in kinds


def drawn(tab):
    """Wait until the newest frame is drawn, and return what the page says of it."""
    tab.until("Number(document.body.dataset.frame) === asked && !document.body.dataset.problems")
    return tab.run("({ step: answer.summary.step_time_s, end: runs[0].duration, changes: state.changes })")


@pytest.mark.slow
@needs_browser
def test_a_dragged_slider_draws_what_simulate_gives(tab):
    tab.run(f"become({{ file: '{FILES[1]}', changes: {json.dumps(FEW)} }})")
    drawn(tab)
    shares = [(1 + 1.602 * place / 29) / 3 for place in range(30)]  # of decades from 1 GB/s to 1 TB/s: 10 to 400 GB/s
    shown = []
    for _ in tab.drag(f'[id="slider-{BANDWIDTH}"]', shares):
        found = drawn(tab)
        summary = simulated(FILES[1], found["changes"])
        assert (found["step"], found["end"]) == (summary["step_time_s"], round(1e12 * summary["step_time_s"]))
        shown.append(float(found["changes"][BANDWIDTH].removesuffix(" GB/s")))
    assert len(set(shown)) == 30
    assert (shown[0], shown[-1]) == pytest.approx((10, 400), rel=0.1)
    assert tab.run("ghost.duration") > tab.run("runs[0].duration") or shown[-1] > 50
    assert tab.run("past.length") == 2  # the file, and one drag
    tab.run("$('save').click()")
    tab.until("document.body.dataset.saved > 500")


@needs_browser
def test_keys_move_a_slider_and_undo_it(tab):
    first = drawn(tab)
    tab.run("$('slider-workload.forward').focus()")
    for _ in range(3):
        tab.press("ArrowRight")
    longer = drawn(tab)
    assert longer["step"] > first["step"]
    assert longer["step"] == simulated(FILES[0], longer["changes"])["step_time_s"]
    assert tab.run("ghost.duration") == first["end"]
    tab.press("z", control=True)
    assert drawn(tab) == first


@pytest.mark.slow
@needs_browser
def test_twenty_changes_a_second_end_at_the_last(tab):
    tab.run("""new Promise((done) => {
        const slider = $('slider-cluster.nvlink.bandwidth');
        let place = 300;
        const timer = setInterval(() => {
            place -= 10; slider.value = place; slider.dispatchEvent(new Event("input", { bubbles: true }));
            if (place === 100) { clearInterval(timer); done(); }
        }, 50);
    })""")  # fmt: skip
    found = drawn(tab)
    assert found["changes"] == {"cluster.nvlink.bandwidth": "10 GB/s"}
    assert found["step"] == simulated(FILES[0], found["changes"])["step_time_s"]


@needs_browser
def test_a_narrow_dark_page_fits_the_screen(tab):
    tab.screen(390, 844, dark=True)
    tab.until("innerWidth === 390")
    assert tab.run("document.documentElement.scrollWidth") <= 390
    assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
    ranks = "runs[0].lanes.filter((lane) => lane.group === 'rank').length"
    assert tab.run(f"Number(document.body.dataset.lanes) === {ranks}")  # links are folded
    assert tab.run("chart.width") < 390
    tab.screen(1400, 1000)


@pytest.mark.slow
@needs_browser
def test_two_tabs_do_not_disturb_each_other(tab, chromium, address):
    other = Tab(chromium)
    other.open(address)
    tab.run("change('parallel.data', '1')")
    other.run("change('schedule.kind', 'gpipe')")
    assert drawn(tab)["step"] == simulated(FILES[0], {"parallel.data": "1"})["step_time_s"]
    assert drawn(other)["step"] == simulated(FILES[0], {"schedule.kind": "gpipe"})["step_time_s"]
    other.close()


@needs_browser
def test_pinned_runs_are_compared_on_one_axis(tab):
    tab.run("$('pin').click()")
    tab.run("change('cluster.nvlink.bandwidth', '2 GB/s')")
    drawn(tab)
    tab.until("runs.length === 2")
    assert tab.run("runs.map((run) => run.head)") == ["A", "now"]
    tab.run("$('pin').click()")
    tab.until("runs[1].head === 'B'")
    table = tab.run("$('compared').innerText")
    assert "as in the file\t2 GB/s" in table
    assert "step time\t1.435 s" in table


@needs_browser
def test_a_mistake_leaves_the_picture_and_says_why(tab):
    tab.run("change('parallel.pipeline', '3')")
    before = drawn(tab)["step"]
    tab.run("change('parallel.data', '4')")
    tab.until("document.body.dataset.problems")
    assert "12 ranks" in tab.run("$('wrong-parallel.data').textContent")
    assert tab.run("document.querySelector('[aria-invalid=true]').id") == "value-parallel.data"
    assert tab.run("answer.summary.step_time_s") == before
    tab.run("back(past, future)")
    assert drawn(tab)["changes"] == {"parallel.pipeline": "3"}
    assert tab.run("document.querySelectorAll('[aria-invalid=true]').length") == 0


@pytest.mark.slow
@needs_browser
def test_a_link_with_state_opens_the_same_picture_elsewhere(tab, chromium, address):
    tab.run("$('pin').click()")
    tab.run("change('schedule.kind', 'zb-h1')")
    drawn(tab)
    tab.until("runs.length === 2")
    picture = "JSON.stringify([runs.map((run) => [run.head, run.note, run.duration]), state, lanes.length])"
    shown, link = tab.run(picture), tab.run("location.href")
    other = Tab(chromium)
    other.screen(1400, 900)
    for _ in range(2):  # the second time it is read again
        other.open(link)
        other.until("runs.length === 2 && Number(document.body.dataset.frame) === asked")
        assert other.run(picture) == shown
        assert other.run("location.href") == link
    bottom = other.run("chart.getBoundingClientRect().bottom")
    assert bottom < 900  # both schedules are on the first screen
    assert other.wrong == []
    other.close()


def arrived(tab):
    """Wait for a page that another one opens: what is asked in between may fail."""
    for _ in range(LONGEST_S * 10):
        with suppress(AssertionError):
            if tab.run("Boolean(document.body?.dataset.ready)"):
                return
        sleep(0.1)


@pytest.mark.slow
@needs_browser
def test_a_copied_link_opens_the_state_without_the_token(tab, chromium, address):
    tab.run("change('schedule.kind', 'zb-h1')")
    shown = drawn(tab)
    tab.run("$('copy-link').click()")
    tab.until("$('link').textContent")
    link = tab.run("$('link').textContent")
    assert urlsplit(address).path.strip("/") not in link
    other = Tab(chromium)
    other.send("Page.navigate", url=link)  # in the same browser, which knows the token
    arrived(other)
    assert other.run("location.pathname") == urlsplit(address).path
    assert drawn(other) == shown
    other.run("localStorage.clear()")
    other.send("Page.navigate", url="about:blank")
    other.send("Page.navigate", url=link)
    other.until("document.getElementById('address')")
    other.run(f"document.getElementById('address').value = '{address}'; document.forms[0].requestSubmit()")
    arrived(other)
    assert drawn(other) == shown
    assert other.wrong == []
    other.close()


@needs_browser
def test_control_z_in_a_field_undoes_the_last_change(tab):
    first = drawn(tab)
    tab.run("$('value-workload.forward').focus()")
    before = tab.run("$('value-workload.forward').value")
    tab.run("(() => { const f = $('value-workload.forward'); f.value = '90 ms'; f.onchange(); })()")
    assert drawn(tab)["changes"] == {"workload.forward": "90 ms"}
    tab.press("z", control=True)
    assert drawn(tab) == first
    assert tab.run("[document.activeElement.id, document.activeElement.value]") == ["value-workload.forward", before]
    tab.run("$('slider-workload.forward').focus()")
    at = tab.run("$('slider-workload.forward').value")
    tab.press("ArrowRight")
    drawn(tab)
    tab.press("z", control=True)
    assert drawn(tab) == first
    assert tab.run("$('slider-workload.forward').value") == at


@needs_browser
def test_text_being_typed_is_not_taken_by_undo(tab):
    tab.run("change('parallel.data', '1')")
    changed = drawn(tab)
    tab.run("$('value-workload.forward').focus(); $('value-workload.forward').select()")
    tab.send("Input.insertText", text="7")
    tab.press("z", control=True)
    assert drawn(tab) == changed


@needs_browser
def test_a_problem_is_said_at_its_control(tab):
    tab.run("change('slow', '[{\"gpu\": 99, \"factor\": 0.5}]')")
    tab.until("document.body.dataset.problems")
    assert "99" in tab.run("$('wrong-slow').textContent")
    assert tab.run("[$('problem').textContent, $('status').textContent]") == ["", ""]
    tab.run("back(past, future)")
    drawn(tab)
    assert tab.run("$('wrong-slow').hidden")
    tab.run("change('seed', 'x')")
    tab.until("document.body.dataset.problems")
    assert tab.run("$('wrong-other').textContent").startswith("seed: ")
    assert tab.run("$('other').getAttribute('aria-describedby')") == "wrong-other"


@needs_browser
def test_the_picture_of_an_older_value_keeps_a_newer_problem(tab):
    tab.run("window.chain = drawing = new Promise((done) => { window.go = done; }); 0")  # as if a picture took long
    tab.run("change('parallel.data', '1')")
    tab.until("drawing !== chain")
    tab.run("window.longer = drawing; change('workload.forward', 'x'); 0")
    tab.until("document.body.dataset.problems || drawing !== longer")
    tab.run("go(); drawing")
    assert tab.run("document.body.dataset.problems")
    assert tab.run("$('value-workload.forward').getAttribute('aria-invalid')") == "true"
    assert tab.run("[answer.changes, runs[0].note.includes('workload')]") == [{"parallel.data": "1"}, False]
    assert "workload.forward" not in tab.run("location.hash")


@pytest.mark.slow
@needs_browser
def test_an_idle_page_says_why_and_what_is_possible(tab):
    tab.until("document.body.dataset.why")
    assert tab.run("[...document.querySelectorAll('#why dt')].map((one) => one.textContent)") == [
        "Time",
        "Main loss",
        "Change",
    ]
    assert tab.run("$('why').innerText").count("27 % of the step goes to the pipeline bubble") == 1
    assert tab.run("$('range-parallel.pipeline').textContent") == "possible: 1–4"
    tab.run("change('schedule.microbatches', '9')")
    drawn(tab)
    tab.until("document.body.dataset.why")
    refused = "[...$('value-schedule.kind').options].filter((one) => one.disabled).map((one) => one.value)"
    assert tab.run(refused) == ["dualpipe"]  # of an odd number of micro-batches


@pytest.mark.slow
@needs_browser
def test_a_button_of_advice_changes_the_page_and_undo_returns(tab):
    first = drawn(tab)
    tab.until("told.advice")
    lines = tab.run("told.advice.lines")
    assert tab.run("[...document.querySelectorAll('.offer button')].map((one) => one.textContent)") == [
        line["change"] for line in lines
    ]
    tab.run("document.querySelector('.offer button').click()")
    after = drawn(tab)
    assert after["changes"] == lines[0]["changes"]
    assert after["step"] == advise(SCENARIOS / FILES[0]).lines[0].step_s < first["step"]
    assert tab.run("document.querySelectorAll('.offer button:enabled').length") == 0  # they are of the page before
    tab.run("$('undo').click()")
    assert drawn(tab) == first


@needs_browser
def test_on_a_phone_the_chart_is_on_the_first_screen(tab, address):
    tab.screen(390, 844)
    tab.until("innerWidth === 390")
    assert tab.run("chart.getBoundingClientRect().top + 80") < 844
    tab.screen(1400, 1000)


@pytest.mark.slow
@needs_browser
def test_all_schedules_follow_their_sizes(chromium, address):
    tab = Tab(chromium)
    tab.open(f"{address}schedules?pipeline=6")
    assert tab.run("runs.find((run) => run.name === '1f1b').duration") == (8 + 5) * 3 * 10**12
    tab.run("(() => { const m = document.forms[0].elements.microbatches; m.value = 4; m.oninput(); })()")
    tab.until("Number(document.body.dataset.frame) === newest && newest === 2")
    assert tab.run("runs.find((run) => run.name === '1f1b').duration") == (4 + 5) * 3 * 10**12
    tab.run("$('moment').value = 500; $('moment').oninput({ target: $('moment') })")
    assert tab.run("lit") == tab.run("total") / 2
    assert tab.wrong == []
    tab.close()
