"""The pages: each shows what is known at the moment."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from aiohttp import web

from penstock.operator_attributes import svg
from penstock.operator_attributes.errors import OperatorAttributesError
from penstock.services.console._settings import ConsoleSettings
from penstock.services.console._sources.collector import ASKING_ERRORS, Collector
from penstock.services.console._sources.services import KinesisSource, Plans
from penstock.services.console._values import Kind
from penstock.services.console._views.attention import concerns
from penstock.services.console._views.jobs import MARKS, by_state, job_row, job_rows
from penstock.services.console._views.lists import consumer_rows, running_readers, sink_rows, total_per_hour
from penstock.services.console._views.streams import (
    ORDERS,
    PAGE_SIZES,
    reader_rows,
    shard_page,
    stream_names,
    stream_rows,
)
from penstock.services.console._views.view import STATIC, Templates, View, endpoints, health, missing, service_rows

_MENU: Final = (
    ("overview", "/", "Overview"),
    ("consumers", "/consumers", "Consumers"),
    ("readers", "/readers", "Readers"),
    ("streams", "/streams", "Streams"),
    ("sinks", "/sinks", "Sinks"),
    ("jobs", "/jobs", "Jobs"),
)
PATHS: Final = {name: path for name, path, _ in _MENU} | {"stream": "/stream", "job": "/job"}
# A picture may have styles of its own: it is shown as an image, which reaches nothing, and holds no script.
_PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"


class Pages:
    """Handlers of the pages."""

    def __init__(
        self,
        settings: ConsoleSettings,
        collector: Collector,
        templates: Templates,
        plans: Plans,
        kinesis: KinesisSource | None,
    ) -> None:
        self._settings = settings
        self._collector = collector
        self._templates = templates
        self._plans = plans
        self._kinesis = kinesis

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/", self.overview)
        for name in ("consumers", "readers", "streams", "stream", "sinks", "jobs", "job"):
            app.router.add_get(PATHS[name], getattr(self, name))
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
        view = self._view()
        down = [*missing(view, Kind.READER), *missing(view, Kind.KINESIS)]
        rows = stream_rows(view)
        lag = max((row.lag for row in rows if row.lag is not None), default=None)
        return await self._page(request, "streams", view, rows=rows, lag=lag, missing=down)

    async def stream(self, request: web.Request) -> web.Response:
        """The shards of a stream."""
        view = self._view()
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
            readers=reader_rows(view, name),
            unlisted="" if self._kinesis is None else self._kinesis.failures.get(name, ""),
            consumers=[row for row in consumer_rows(view) if row.stream == name],
            missing=[*missing(view, Kind.READER), *missing(view, Kind.KINESIS)],
        )

    async def sinks(self, request: web.Request) -> web.Response:
        """Destinations of the gateways."""
        view = self._view()
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

    def _view(self) -> View:
        return View(
            snapshot=self._collector.snapshot(),
            settings=self._settings,
            now=self._collector.now(),
        )

    async def _page(self, request: web.Request, name: str, view: View, **values: Any) -> web.Response:
        shown = {"stream": "streams", "job": "jobs"}.get(name, name)
        # In a thread: a thousand shards take a while, and other pages go on meanwhile.
        text = await asyncio.to_thread(
            self._templates.render,
            f"{name}.html",
            menu=_MENU,
            shown=shown,
            health=health(view),
            clock=time.strftime("%H:%M:%S UTC", time.gmtime()),
            interval=self._settings.interval_seconds,
            here=request.path_qs,
            endpoints=endpoints(view),
            **values,
        )
        response = web.Response(text=text, content_type="text/html")
        # No page holds a secret that its length could show.
        response.enable_compression()
        return response


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else default
