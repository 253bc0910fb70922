"""The page in a real browser: what is asked, shown, stopped, compared, and refused."""

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from parspec import LLM
from tests.server.conftest import Server, running

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NOTHING_YET = "\N{EN DASH}"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="needs Chromium (Debian's package, for example)"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None, "CI installs Chromium"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


def visit(browser: Browser, server: Server, **options: object) -> Page:
    """Open the page; whatever it logs as an error, or asks of another host, is collected in ``page.faults``."""
    page = browser.new_context(**options).new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on(
        "request", lambda request: None if request.url.startswith((server.url, "data:")) else faults.append(request.url)
    )
    page.faults = faults  # type: ignore[attr-defined]
    page.goto(server.url)
    expect(page.locator("#models")).to_contain_text("tiny")
    page.locator("summary").click()
    return page


@pytest.fixture
def page(browser: Browser, endless_server: Server) -> Iterator[Page]:
    opened = visit(browser, endless_server)
    yield opened
    assert opened.faults == []  # type: ignore[attr-defined]
    opened.context.close()


def ask(page: Page, text: str = "Hello", **settings: object) -> None:
    for name, value in settings.items():
        if name == "method":
            page.select_option("#method", str(value))
        else:
            page.fill(f"#{name}", str(value))
    page.fill("#message", text)
    page.press("#message", "Enter")


def wait_for_answer(page: Page) -> None:
    expect(page.locator("#send")).to_be_enabled(timeout=30_000)


def test_an_answer_is_shown_as_the_api_gives_it(page: Page, endless_server: Server) -> None:
    ask(page, seed=3, max_tokens=40, num_particles=5, num_draft_tokens=4, temperature=0.9)
    wait_for_answer(page)
    expected = endless_server.chat(seed=3, max_tokens=40, num_particles=5, num_draft_tokens=4, temperature=0.9)
    shown = page.locator(".assistant").evaluate("message => message.lastChild.data")
    assert shown == expected.json()["choices"][0]["message"]["content"]
    expect(page.locator(".assistant .by")).to_contain_text("tokens/s")
    ask(page, "And now?")
    wait_for_answer(page)
    assert page.locator(".message.user").all_text_contents() == ["Hello", "And now?"]
    page.click("#new-chat")
    assert page.locator(".message").count() == 0


def test_the_population_is_drawn(page: Page) -> None:
    ask(page, seed=1, max_tokens=120, num_particles=5, num_draft_tokens=4, cut_threshold=0.5, method="smc")
    wait_for_answer(page)
    expect(page.locator("#cycles")).not_to_have_text(NOTHING_YET)
    columns = page.locator(".cycle")
    assert 5 < columns.count() <= 40
    last = columns.nth(columns.count() - 1)
    assert last.locator(".rows").nth(0).locator(".row").count() == 5
    assert page.locator(".links path.moved").count() > 0, "resampling"
    assert page.locator(".row.dead").count() > 0
    assert page.locator(".dropped").count() > 0
    assert page.locator(".bonus").count() > 0
    assert page.locator(".row.finished").count() == 5
    assert int(page.locator("#resamplings").inner_text()) > 0
    assert page.locator("#ess polyline").get_attribute("points").count(",") > 5
    assert page.locator(".trunk-cell").inner_text().strip()
    last.focus()
    expect(page.locator("#reading")).to_contain_text("effective sample size")


@pytest.mark.parametrize("method", ["speculative", "autoregressive"])
def test_the_other_methods_are_drawn_too(page: Page, method: str) -> None:
    ask(page, seed=1, max_tokens=30, num_particles=2, method=method)
    wait_for_answer(page)
    assert page.locator(".cycle").count() > 0
    expect(page.locator("#resamplings")).to_have_text("0")


def test_stop_and_escape_end_the_request(page: Page, endless_server: Server) -> None:
    for stop in (lambda: page.click("#stop"), lambda: page.keyboard.press("Escape")):
        ask(page, max_tokens=50_000)
        expect(page.locator("#cycles")).not_to_have_text(NOTHING_YET)
        assert endless_server.llm.num_open == 1
        stop()
        wait_for_answer(page)
        endless_server.wait_until_idle()
        assert page.locator("#error").is_hidden()


def test_comparison_with_autoregressive(page: Page) -> None:
    page.check("#compare")
    ask(page, max_tokens=20, method="speculative")
    wait_for_answer(page)
    by = page.locator(".assistant .by").all_text_contents()
    assert by[0].startswith("speculative")
    assert by[1].startswith("autoregressive")
    assert "times as fast" in by[1]


def test_faults_are_shown_in_one_line_and_nothing_typed_is_lost(browser: Browser, endless_server: Server) -> None:
    page = visit(browser, endless_server)
    ask(page, "Hello", temperature=-1)
    expect(page.locator("#error")).to_contain_text("temperature is -1")
    assert page.input_value("#message") == "Hello"
    ask(page, "Hello", temperature=1, max_tokens=4)
    wait_for_answer(page)
    assert page.locator("#error").is_hidden()
    page.context.close()


def test_a_key_is_asked_for_and_kept_for_the_session_only(browser: Browser, endless_llm: Callable[[], LLM]) -> None:
    with running(endless_llm(), api_key="secret") as server:
        page = browser.new_page()
        page.goto(server.url)
        expect(page.locator("#error")).to_contain_text("API key")
        page.locator("summary").click()
        page.fill("#key", "secret")
        page.press("#key", "Tab")
        expect(page.locator("#models")).to_contain_text("tiny")
        ask(page, max_tokens=4)
        wait_for_answer(page)
        assert page.locator(".assistant").count() == 1
        assert page.evaluate("localStorage.length") == 0
        page.close()


def test_the_keyboard_suffices(page: Page) -> None:
    page.locator("#new-chat").focus()
    page.keyboard.press("Enter")
    page.keyboard.type("Hello")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("there")
    page.fill("#max_tokens", "8")
    page.locator("#message").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "send"
    page.keyboard.press("Enter")
    wait_for_answer(page)
    assert page.locator(".message.user").inner_text() == "Hello\nthere"


@pytest.mark.parametrize("width", [360, 700, 1440])
def test_nothing_overflows(browser: Browser, endless_server: Server, width: int) -> None:
    page = visit(browser, endless_server, viewport={"width": width, "height": 800})
    ask(page, "x" * 300, max_tokens=150, num_particles=16, method="smc")
    wait_for_answer(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.faults == []  # type: ignore[attr-defined]
    page.context.close()
