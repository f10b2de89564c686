"""The documentation site: built strictly, whole, and with nothing of others' hosts."""

import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


class Page(HTMLParser):
    """Ids, links and what is loaded, of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.nameless_pictures: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if found := given.get("id"):
            self.ids.add(found)
        if tag == "a" and (link := given.get("href")):
            self.links.append(link)
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(given.get("href") or "")
        elif tag in ("script", "img", "iframe", "source") and (source := given.get("src")):
            self.loaded.append(source)
        if tag == "img" and not given.get("alt"):
            self.nameless_pictures.append(given.get("src") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as the workflow builds it, which knows where the sources are."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(DOCS / "mkdocs.yml"), "-d", str(folder)]
    sources = {"PENSTOCK_REPOSITORY": "https://git.example/penstock/", "PENSTOCK_EDIT_URI": "edit/main/docs/pages/"}
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"} | sources
    built = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file.read_text()) for file in site.rglob("*.html")}


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS / "hooks"))
    return importlib.import_module("reference")


@asynccontextmanager
async def browsing(site: Path, scheme: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Any, str]]:
    """A tab of a browser, and where the site is: a folder of files, or a server."""
    monkeypatch.syspath_prepend(str(ROOT / "services" / "console" / "tests"))
    browser = importlib.import_module("console_browser")
    if browser.BROWSER is None:
        pytest.skip("no chromium or google-chrome on the PATH")

    class Files(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Leave the test's output alone."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            async with browser.browser_page() as page:
                yield page, site.as_uri() if scheme == "file" else f"http://127.0.0.1:{server.server_port}"
                assert page.violations == []
        finally:
            server.shutdown()


@pytest.mark.parametrize("scheme", ["file", "http"])
async def test_the_search_finds_words_from_files_and_over_http(
    site: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a browser, as people open it."""
    async with browsing(site, scheme, monkeypatch) as (page, begin):
        await page.go(f"{begin}/index.html?q=retention")
        await page.until("document.querySelectorAll('.md-search-result__item').length > 5")


FIRST = {
    "checkpoint": "how-to/resume-after-a-crash.html",
    "starting position": "reference/options.html",
    "lag": "how-to/metrics-and-traces.html",
    "dead letter": "how-to/dead-letters.html",
    "credentials": "troubleshooting.html",
    "throttling": "troubleshooting.html",
    "watermark": "explanation/event-time.html",
    "schema": "how-to/schemas.html",
    "shard": "how-to/reshard.html",
    "lease": "how-to/share-a-consumer.html",
    "resume": "how-to/resume-after-a-crash.html",
    "fan-out": "how-to/share-a-consumer.html",
    "polling": "how-to/tune-latency.html",
    "cost": "operations/costs.html",
    "alert": "operations/alerts.html",
    "split": "how-to/reshard.html",
    "iterator expired": "troubleshooting.html",
    "IAM": "operations/iam.html",
    "emulator": "how-to/test-your-job.html",
    "databricks": "how-to/databricks.html",
}


async def test_the_search_shows_the_obvious_page_first(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty words that users type lead to the page about them."""
    found = {}
    async with browsing(site, "http", monkeypatch) as (page, begin):
        for words in FIRST:
            await page.go(f"{begin}/index.html?q={quote(words)}")
            await page.until("document.querySelectorAll('.md-search-result__item').length > 0")
            link = await page.eval("document.querySelector('.md-search-result__link').href")
            found[words] = urlsplit(link).path.lstrip("/")
    assert found == FIRST


BILLS: tuple[tuple[dict[str, str], list[str]], ...] = (
    (
        {"records": "1024", "record_bytes": "30720", "consumers": "2", "polling": "3", "retention_hours": "48"},
        [
            "open shards|45 shard-hours|0.015|0.6750|492.75",
            "written|7.373 million PUT units|0.014|0.1032|75.35",
            "consumers|90 consumer-shard-hours|0.015|1.3500|985.50",
            "read by consumers|210.9 GB|0.013|2.7422|2,001.80",
            "kept for up to 7 days|45 shard-hours|0.02|0.9000|657.00",
            "all|||5.7704|4,212.40",
        ],
    ),
    (
        {"records": "20000", "record_bytes": "100", "on_demand": "", "polling": "2", "retention_hours": "200"},
        [
            "the stream, on demand|1 stream-hours|0.04|0.0400|29.20",
            "written|68.66 GB|0.08|5.4932|4,010.01",
            "read by polling|13.41 GB|0.04|0.5364|391.60",
            "kept for up to 7 days|965.6 GB-months / 730|0.000136986|0.1323|96.56",
            "kept for longer|214.6 GB-months / 730|3.15068e-05|0.0068|4.94",
            "all|||6.2086|4,532.31",
        ],
    ),
    (
        {"records": "5000", "record_bytes": "200", "polling": "1", "aggregate_bytes": "51200"},
        [
            "open shards|1 shard-hours|0.015|0.0150|10.95",
            "written|0.1469 million PUT units|0.014|0.0021|1.50",
            "all|||0.0171|12.45",
        ],
    ),
)
WAYS = [
    "provisioned|1 polling|as they are|5|0.3270|238.71",
    "provisioned|1 polling|aggregated|1|0.0171|12.45",
    "provisioned|1 by fan-out|as they are|5|0.4456|325.28",
    "provisioned|1 by fan-out|aggregated|1|0.0774|56.53",
    "on demand|1 polling|as they are|-|1.5474|1,129.60",
    "on demand|1 polling|aggregated|-|0.4599|335.74",
    "on demand|1 by fan-out|as they are|-|1.5809|1,154.08",
    "on demand|1 by fan-out|aggregated|-|0.4948|361.22",
]


@pytest.mark.parametrize("scheme", ["file", "http"])
async def test_the_cost_page_computes_a_bill(site: Path, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the numbers that a visitor types; below it, for all ways to read and write."""
    rows = (
        "[...document.querySelectorAll('#cost-{} tbody tr')].map(r => [...r.cells].map(c => c.textContent).join('|'))"
    )
    async with browsing(site, scheme, monkeypatch) as (page, begin):
        for given, bill in BILLS:
            await page.go(f"{begin}/operations/cost-calculator.html")
            for name, value in given.items():
                typed = f"value = {value!r}" if value else "checked = true"
                await page.eval(f"document.querySelector('#cost').elements.{name}.{typed}")
            await page.eval("document.querySelector('#cost').dispatchEvent(new Event('input'))")
            assert await page.eval(rows.format("bill")) == bill
        # For the last bill: the comparison covers aggregated and other records.
        assert await page.eval(rows.format("ways")) == WAYS


def test_written_pages_link_to_their_source(site: Path) -> None:
    """The link leads to the page's source; pages that are made have none."""
    link = 'href="https://git.example/penstock/edit/main/docs/pages/how-to/reshard.md"'
    assert link in (site / "how-to" / "reshard.html").read_text()
    assert "/edit/main/" not in (site / "reference" / "errors.html").read_text()


@pytest.mark.timeout(300)
def test_each_link_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    """To a file of the site, and where it names a place, to that place; absolute ones only to the web."""
    broken = []
    for file, page in pages.items():
        for link in page.links:
            target = urlsplit(link)
            if target.scheme in ("http", "https", "mailto") or file.name == "404.html":
                continue
            goal = (file.parent / unquote(target.path)).resolve() if target.path else file
            goal = goal / "index.html" if goal.is_dir() else goal
            place = unquote(target.fragment)
            if link.startswith("/") or not goal.is_file() or (place and goal in pages and place not in pages[goal].ids):
                broken.append((file.relative_to(site), link))
    assert len(pages) > 30
    assert broken == []


def test_nothing_is_loaded_from_other_hosts(pages: dict[Path, Page], site: Path) -> None:
    """Fonts, scripts and pictures are part of the site, so no other host learns about its readers."""
    loaded = {source for page in pages.values() for source in page.loaded}
    assert loaded
    assert [source for source in loaded if urlsplit(source).netloc] == []
    styles = "".join(file.read_text() for file in site.rglob("*.css"))
    assert re.findall(r"url\([\"']?(?:https?:)?//[^)]*", styles) == []


def test_commands_are_copied_without_prompts_and_output(site: Path) -> None:
    """The button of a console's block takes its text as it is shown while it copies: the style hides the rest then."""
    page = (site / "tutorial" / "first-job.html").read_text()
    consoles = re.findall(r'<div class="language-console highlight">(.*?)</div>', page, re.DOTALL)
    assert len(consoles) >= 5
    assert page.count('<span class="gp">$ </span>') == sum(one.count('<span class="gp">$ </span>') for one in consoles)
    style = (site / "assets" / "site.css").read_text()
    for part in ("gp", "go"):
        assert re.search(rf"code\[data-md-copying\] \.{part}[^{{}}]*{{\s*display: none;", style)


def test_pictures_have_alternative_texts(pages: dict[Path, Page]) -> None:
    """For readers who do not see them."""
    assert [picture for page in pages.values() for picture in page.nameless_pictures] == []


def test_pages_contain_no_path_of_the_machine(site: Path) -> None:
    """No folder of the checkout or of its user is in any page."""
    local = re.compile("|".join(map(re.escape, (str(ROOT), f"{Path.home()}/", str(site)))))
    assert [file.name for file in site.rglob("*.html") if local.search(file.read_text())] == []


def public_errors() -> set[type[Exception]]:
    """What packages raise by a public name: in their module `errors`, or in the `__all__` of another public one."""
    spaces = (importlib.import_module("penstock"), importlib.import_module("penstock.services"))
    packages = [one for space in spaces for one in pkgutil.iter_modules(space.__path__, f"{space.__name__}.")]
    found: set[type[Exception]] = set()
    for package in packages:
        for name in (package.name, f"{package.name}.errors"):
            if importlib.util.find_spec(name) is None:
                continue
            module = importlib.import_module(name)
            names = getattr(module, "__all__", vars(module) if name.endswith(".errors") else ())
            members = [getattr(module, one) for one in names]
            found |= {one for one in members if inspect.isclass(one) and issubclass(one, Exception)}
    return {one for one in found if one.__module__.startswith("penstock.")}


def test_each_public_error_has_an_entry_with_a_remedy(pages: dict[Path, Page], site: Path) -> None:
    """Each error has an anchor on the page, and an entry on the command line. Base classes need no remedy."""
    from penstock.cli._errors import known_errors

    known = {one.full_name: one for one in known_errors()}
    errors = {f"{one.__module__}.{one.__name__}": one for one in public_errors()}
    codes = [f"{one.__module__}.{code}" for one in errors.values() for code in vars(one).get("codes", ())]
    assert len(errors) > 70
    assert len(codes) > 40
    names = Counter(code.rpartition(".")[2] for code in codes)
    assert [name for name, number in names.items() if number > 1] == []
    assert sorted({*errors, *codes} - known.keys()) == []
    assert sorted({*errors, *codes} - pages[site / "reference" / "errors.html"].ids) == []
    bases = {base for error in errors.values() for base in error.__mro__[1:]}
    assert [name for name, one in known.items() if not one.when] == []
    missing = [name for name, error in errors.items() if error not in bases and not known[name].cure]
    missing += [code for code in codes if not known[code].cure]
    assert missing == [], "end each one's description with a paragraph that begins with `Cure: `"


def test_a_cure_leads_to_the_options_that_it_names(site: Path) -> None:
    page = (site / "reference" / "errors.html").read_text()
    (row,) = (one for one in page.split("<tr>") if "penstock.efo_consumer.errors.DataLossError" in one)
    assert 'href="options.html#option-failOnDataLoss"' in row


def test_the_reference_is_complete(hook: ModuleType) -> None:
    """Options, the services' settings, calls of the contracts, commands and the packages' public names."""
    from penstock.spark_plugin._options.table import OPTIONS

    generated = hook.generated()
    assert [spec.name for spec in OPTIONS if f"`{spec.name}" not in generated["options.md"]] == []
    for service in ("REGISTRY", "READER", "SINK", "STAGES"):
        assert generated["settings.md"].count(f"`PENSTOCK_{service}_") >= 5
    for call in ("Acquire", "ReadRange", "Write", "Submit", "CONSUMER_STATE_ACTIVE"):
        assert f"| `{call}` |" in generated["contracts.md"]
    assert "| stream, required, 512 bytes |" in generated["contracts.md"]
    for command in ("penstock reader tail", "penstock stages watch", "penstock emulator"):
        assert f"# {command}\n" in generated["commands.md"]
    for name in ("millisBehindLatest", "numRecordsOut", "async_sink.submit"):
        assert f"`{name}`" in generated["telemetry.md"]
    assert "\n## Pipeline\n" in generated["api/penstock.spark_plugin.md"]
    assert "\n## AsyncSinkWriter\n" in generated["api/penstock.async_sink.md"]


@pytest.mark.timeout(120)
def test_the_pictures_are_current() -> None:
    """Each is what its code draws today; the plot of the congestion control is a run of the sink in simulated time.

    In a process of its own: threads that other tests have left draw from the same random numbers.
    """
    command: list[str | Path] = [sys.executable, DOCS / "hooks" / "pictures.py", "--check"]
    stale = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout.split()
    assert stale == [], "draw them by: python docs/hooks/pictures.py"


@pytest.mark.timeout(300)
def test_pictures_are_part_of_their_pages(site: Path) -> None:
    """They take the page's colours, and have a name for who cannot see them."""
    page = (site / "explanation" / "congestion-control.html").read_text()
    assert re.search(r'<div class="picture"><svg [^>]*role="img" aria-label="Records per second', page)
