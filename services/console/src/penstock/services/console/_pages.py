"""The pages: each shows what is known at the moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from penstock.async_sink.dead_letters import DeadLetter
from penstock.aws import AwsError
from penstock.operator_attributes import svg
from penstock.operator_attributes.errors import OperatorAttributesError
from penstock.services.console._access.guard import WHO, Guard
from penstock.services.console._actions import ActionLog
from penstock.services.console._settings import ConsoleSettings
from penstock.services.console._sources.collector import ASKING_ERRORS, Collector
from penstock.services.console._sources.dead_letters import MOST_COUNTED, MOST_LETTERS, DeadLetters
from penstock.services.console._sources.history import History
from penstock.services.console._sources.records import Looked, RecordsSource
from penstock.services.console._sources.resume import resumption
from penstock.services.console._sources.services import Plans
from penstock.services.console._values import Kind
from penstock.services.console._views.attention import concerns
from penstock.services.console._views.consumers import consumer_rows, total_per_hour
from penstock.services.console._views.jobs import MARKS, by_state, job_row, job_rows
from penstock.services.console._views.readers import running_readers
from penstock.services.console._views.search import MOST_FOUND, found
from penstock.services.console._views.shard_tree import shard_tree
from penstock.services.console._views.sinks import sink_rows
from penstock.services.console._views.sparkline import span_words
from penstock.services.console._views.streams import (
    ORDERS,
    PAGE_SIZES,
    known_streams,
    reader_rows,
    shard_page,
    stream_names,
    stream_rows,
)
from penstock.services.console._views.templates import STATIC, Templates, url
from penstock.services.console._views.view import View, endpoints, health, missing, service_rows
from penstock.services.console.errors import ConsoleError, ConsoleOptionError

_MENU: Final = (
    ("overview", "/", "Overview"),
    ("consumers", "/consumers", "Consumers"),
    ("readers", "/readers", "Readers"),
    ("streams", "/streams", "Streams"),
    ("sinks", "/sinks", "Sinks"),
    ("dead_letters", "/dead-letters", "Dead letters"),
    ("jobs", "/jobs", "Jobs"),
)
PATHS: Final = {name: path for name, path, _ in _MENU} | {"stream": "/stream", "job": "/job"}
_WITH_LINES: Final = ("streams", "stream", "sinks")
_MOST_OFFERED: Final = 500
_OWN_SITES: Final = (None, "none", "same-origin")
# A picture may have styles of its own: it is shown as an image, which reaches nothing, and holds no script.
_PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"


class Pages:
    """Handlers of everything that changes nothing."""

    def __init__(
        self,
        settings: ConsoleSettings,
        collector: Collector,
        history: History,
        guard: Guard,
        templates: Templates,
        plans: Plans,
        log: ActionLog,
        *,
        unlisted: Callable[[str], str] = lambda stream: "",
        records: RecordsSource | None = None,
        dead_letters: DeadLetters | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._collector = collector
        self._history = history
        self._guard = guard
        self._templates = templates
        self._plans = plans
        self._log = log
        self._unlisted = unlisted
        self._records = records
        self._dead_letters = dead_letters or DeadLetters((), None)
        self._wall_clock = wall_clock

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/", self.overview)
        for name in ("consumers", "readers", "streams", "stream", "sinks", "dead_letters", "jobs", "job"):
            app.router.add_get(PATHS[name], getattr(self, name))
        app.router.add_get("/records", self.records)
        app.router.add_get("/dead-letters/letters", self.letters)
        app.router.add_get("/search", self.search)
        app.router.add_get("/job/picture.svg", self.picture)
        app.router.add_get("/static/{name}", self.static)
        app.router.add_get("/healthz", self.healthz)

    async def overview(self, request: web.Request) -> web.Response:
        """What needs attention, and the services."""
        view = self._view()
        consumers, streams, sinks, jobs = consumer_rows(view), stream_rows(view), sink_rows(view), job_rows(view)
        lags = [row.lag for row in streams if row.lag is not None]
        rates = [row.bytes_per_second for row in sinks if row.bytes_per_second is not None]
        return await self._page(
            request,
            "overview",
            view,
            services=service_rows(view),
            concerns=concerns(view),
            paths=PATHS,
            consumers=len(consumers),
            held=sum(row.consumer.lease is not None for row in consumers),
            cost=total_per_hour(consumers),
            streams=len(streams),
            lag=max(lags, default=None),
            goodput=sum(rates) if rates else None,
            sinks=len(sinks),
            jobs=len(jobs),
            running=sum(not row.job.ended for row in jobs),
        )

    async def consumers(self, request: web.Request) -> web.Response:
        """Consumers and leases."""
        view = self._view()
        rows = consumer_rows(view)
        total = total_per_hour(rows)
        down = missing(view, Kind.REGISTRY)
        return await self._page(request, "consumers", view, rows=rows, total=total, missing=down)

    async def readers(self, request: web.Request) -> web.Response:
        """Who reads: inside drivers, and at services."""
        view = self._view()
        rows = running_readers(view)
        lag = max((row.lag for row in rows if row.lag is not None), default=None)
        down = [*missing(view, Kind.DRIVERS), *(row for row in missing(view, Kind.READER) if row.endpoint)]
        return await self._page(request, "readers", view, rows=rows, lag=lag, missing=down)

    async def streams(self, request: web.Request) -> web.Response:
        """All streams."""
        view = self._view(request)
        down = [*missing(view, Kind.READER), *missing(view, Kind.KINESIS)]
        rows = stream_rows(view)
        lag = max((row.lag for row in rows if row.lag is not None), default=None)
        return await self._page(request, "streams", view, rows=rows, lag=lag, missing=down)

    async def stream(self, request: web.Request) -> web.Response:
        """The shards of a stream."""
        view = self._view(request)
        name = request.query.get("name", "")
        if name not in stream_names(view.snapshot, self._settings.streams):
            raise web.HTTPNotFound(text="No service names such a stream.")
        order = request.query.get("order", ORDERS[0])
        size = _number(request.query.get("size"), PAGE_SIZES[1])
        if order not in ORDERS or size not in PAGE_SIZES:
            raise web.HTTPBadRequest(text="There is no such order, or no such number of shards on a page.")
        shards = shard_page(view, name, order=order, page=_number(request.query.get("page"), 1), size=size)
        return await self._page(
            request,
            "stream",
            view,
            stream=name,
            order=order,
            shards=shards,
            sizes=PAGE_SIZES,
            kept={"span": "day"} if view.shows_day else {},
            readers=reader_rows(view, name),
            unlisted=self._unlisted(name),
            shows_records=self._records is not None,
            consumers=[row for row in consumer_rows(view) if row.stream == name],
            missing=[*missing(view, Kind.READER), *missing(view, Kind.KINESIS)],
        )

    async def search(self, request: web.Request) -> web.Response:
        """What has some words in its names."""
        view, text = self._view(), request.query.get("q", "")[:200]
        return await self._page(request, "search", view, text=text, found=found(view, text), most=MOST_FOUND)

    async def records(self, request: web.Request) -> web.Response:
        """Some records of a shard, for who may see them; each look is in the log and the audit log."""
        if self._records is None:
            raise web.HTTPForbidden(text="The console was started without --show-records true: it shows no records.")
        view, query = self._view(), request.query
        stream, shard = query.get("stream", ""), query.get("shard", "")
        known = known_streams(view.snapshot, self._settings.streams)
        if stream not in known:
            raise web.HTTPNotFound(text="No service names such a stream.")
        nodes = shard_tree(view.snapshot.listed(stream), view.snapshot.readings().get(stream, {}))
        start, shown_as = query.get("from", "-5m"), query.get("as", "text")
        self._guard.demand(request, "Records", streams=stream)
        looked: Looked | None = None
        problem = ""
        if shard:
            if request.headers.get("Sec-Fetch-Site") not in _OWN_SITES:
                # It takes of the shard's quota: no page of somebody else's may let a browser do that.
                raise web.HTTPForbidden(text="This link does not come from a page of this console.")
            try:
                looked = await self._records.look(known[stream], shard, start, shown_as)
            except (AwsError, ConsoleOptionError) as error:
                problem = str(error)
            outcome = problem or f"{len(looked.records) if looked else 0} of {shard}"
            self._log.add(
                request[WHO], "read records", outcome, succeeded=not problem, shown=False, about={"streams": stream}
            )
        return await self._page(
            request,
            "records",
            view,
            stream=stream,
            shard=shard,
            shards=[one.shard_id for one in nodes[:_MOST_OFFERED]],
            start=start,
            shown_as=shown_as,
            formats=self._records.formats(),
            looked=looked,
            problem=problem,
            is_still=True,
        )

    async def sinks(self, request: web.Request) -> web.Response:
        """Destinations of the gateways."""
        view = self._view(request)
        rows = sink_rows(view)
        rates = [row.bytes_per_second for row in rows if row.bytes_per_second is not None]
        return await self._page(
            request,
            "sinks",
            view,
            rows=rows,
            goodput=sum(rates) if rates else None,
            missing=missing(view, Kind.SINK),
        )

    async def dead_letters(self, request: web.Request) -> web.Response:
        """What folders of dead letters hold, by stream."""
        folders = await self._dead_letters.count()
        return await self._page(
            request,
            "dead_letters",
            self._view(),
            folders=folders,
            open=sum(one.open for folder in folders for one in folder.streams),
            can_redrive=self._dead_letters.can_redrive,
            most=MOST_COUNTED,
            is_still=True,
        )

    async def letters(self, request: web.Request) -> web.Response:
        """Open letters of a stream, for who may see them; each look is in the log and the audit log."""
        folder, stream = request.query.get("folder", ""), request.query.get("stream", "")
        if not self._dead_letters.knows(folder):
            raise web.HTTPNotFound(text="There is no such folder of dead letters.")
        # Of rows that name no stream: whoever may see them has to be allowed all.
        self._guard.demand(request, "DeadLetters", streams=stream or "*")
        after, problem, found = _number(request.query.get("after"), 0), "", list[DeadLetter]()
        try:
            found = await self._dead_letters.look(folder, stream or None, after=after)
        except ConsoleError as error:
            problem = str(error)
        outcome = problem or f"{len(found)} of {folder}"
        about = {"streams": stream} if stream else {}
        self._log.add(request[WHO], "read dead letters", outcome, succeeded=not problem, shown=False, about=about)
        return await self._page(
            request,
            "letters",
            self._view(),
            folder=folder,
            stream=stream,
            letters=found,
            next=after + len(found) if len(found) == MOST_LETTERS else None,
            problem=problem,
            is_still=True,
        )

    async def jobs(self, request: web.Request) -> web.Response:
        """All jobs."""
        view = self._view()
        down = missing(view, Kind.STAGES)
        rows = job_rows(view)
        return await self._page(request, "jobs", view, rows=rows, by_state=by_state(rows), marks=MARKS, missing=down)

    async def job(self, request: web.Request) -> web.Response:
        """The stages of a job."""
        view = self._view()
        job_id = request.query.get("id", "")
        job = next((one for one in view.snapshot.jobs if one.job_id == job_id), None)
        if job is None:
            raise web.HTTPNotFound(text="The stage scheduler knows no such job.")
        names = {stage.stage_id: stage.name for stage in job.stages}
        down = missing(view, Kind.STAGES)
        return await self._page(
            request,
            "job",
            view,
            row=job_row(job),
            names=names,
            resumptions={stage.stage_id: resumption(job, stage) for stage in job.stages},
            marks=MARKS,
            is_drawn=not down or self._plans.has(job),
            missing=down,
        )

    async def picture(self, request: web.Request) -> web.Response:
        """The stages of a job, drawn."""
        job_id = request.query.get("id", "")
        job = next((one for one in self._collector.snapshot().jobs if one.job_id == job_id), None)
        if job is None:
            raise web.HTTPNotFound(text="The stage scheduler knows no such job.")
        try:
            plan = await self._plans.of(job)
        except (*ASKING_ERRORS, OperatorAttributesError) as error:
            raise web.HTTPBadGateway(text=f"The stage scheduler did not give the job's graph: {error}") from error
        progress = {stage.stage_id: stage.progress for stage in job.stages}
        # Large graphs take a moment to lay out; other pages go on meanwhile.
        text = await asyncio.to_thread(svg, plan, progress)
        response = web.Response(text=text, content_type="image/svg+xml")
        response.headers["Content-Security-Policy"] = _PICTURE_POLICY
        return response

    async def static(self, request: web.Request) -> web.Response:
        """Style and script."""
        name = request.match_info["name"]
        if name not in STATIC:
            raise web.HTTPNotFound(text="There is no such file.")
        response = web.Response(body=self._templates.static[name], content_type=STATIC[name], charset="utf-8")
        response.headers["Cache-Control"] = "no-cache"
        return response

    async def healthz(self, request: web.Request) -> web.Response:
        """That the console itself answers, for those who watch over it."""
        return web.Response(text="ok\n")

    def _view(self, request: web.Request | None = None) -> View:
        return View(
            shows_day=request is not None and request.query.get("span") == "day",
            snapshot=self._collector.snapshot(),
            history=self._history,
            settings=self._settings,
            now=self._collector.now(),
        )

    async def _page(self, request: web.Request, name: str, view: View, **values: Any) -> web.Response:
        shown = {"stream": "streams", "records": "streams", "letters": "dead_letters", "job": "jobs"}.get(name, name)
        # In a thread: a thousand shards take a while, and other pages go on meanwhile.
        text = await asyncio.to_thread(
            self._templates.render,
            f"{name}.html",
            menu=_MENU,
            shown=shown,
            health=health(view),
            allow_actions=self._settings.allow_actions,
            actions=self._log.newest(),
            may_log_out=request[WHO].session_id is not None and self._guard.wants_token,
            clock=time.strftime("%H:%M:%S UTC", time.gmtime(self._wall_clock())),
            interval=self._settings.interval_seconds,
            here=request.path_qs,
            searched=request.query.get("q", "")[:200] if name == "search" else "",
            endpoints=endpoints(view),
            span=span_words(view.span_seconds),
            spans=_spans(request) if self._history.day is not None and name in _WITH_LINES else (),
            **{"is_still": False, **values},
        )
        response = web.Response(text=text, content_type="text/html")
        if name not in ("records", "letters"):
            # Nothing secret is on the others: forms, which hold a token, and records are sent as they are.
            response.enable_compression()
        return response


def _spans(request: web.Request) -> list[tuple[str, str, bool]]:
    """Words, address and whether it is shown, of each length of lines."""
    shown = request.query.get("span") == "day"
    query = {name: value for name, value in request.query.items() if name != "span"}
    return [
        ("minutes", url(request.path, **query), not shown),
        ("a day", url(request.path, **query, span="day"), shown),
    ]


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else default
