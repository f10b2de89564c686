"""The pages: each shows what is known at the moment."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from penstock.operator_attributes import svg
from penstock.operator_attributes.errors import OperatorAttributesError
from penstock.services.console._settings import ConsoleSettings
from penstock.services.console._sources.collector import ASKING_ERRORS, Collector
from penstock.services.console._sources.services import KinesisSource, Plans
from penstock.services.console._values import Kind, Snapshot
from penstock.services.console._views.attention import concerns
from penstock.services.console._views.jobs import MARKS, by_state, job_row, job_rows
from penstock.services.console._views.lists import consumer_rows, running_readers, sink_rows, total_per_hour
from penstock.services.console._views.streams import (
    ORDERS,
    PAGE_SIZES,
    known_streams,
    reader_rows,
    shard_page,
    sparkline,
    stream_rows,
)
from penstock.services.console._views.view import (
    MENU,
    STATIC,
    Templates,
    View,
    at_least,
    endpoints,
    health,
    missing,
    service_rows,
)

if TYPE_CHECKING:
    from penstock.operator_attributes import JobStatus

PATHS: Final = {name: path for name, path, _ in MENU} | {"stream": "/stream", "job": "/job"}
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

        def values(view: View) -> dict[str, Any]:
            consumers, streams, sinks, jobs = consumer_rows(view), stream_rows(view), sink_rows(view), job_rows(view)
            readers = running_readers(view)
            return {
                "services": service_rows(view),
                "concerns": concerns(view),
                "paths": PATHS,
                "consumers": len(consumers),
                "held": sum(row.consumer.lease is not None for row in consumers),
                "cost": total_per_hour(consumers),
                "streams": len(streams),
                "lag": _largest(row.lag for row in streams),
                "untaken": sum(row.untaken.records for row in readers),
                "untaken_bytes": sum(row.untaken.size_bytes for row in readers),
                "goodput": _sum(row.bytes_per_second for row in sinks),
                "sinks": len(sinks),
                "jobs": len(jobs),
                "running": sum(not row.job.ended for row in jobs),
            }

        return await self._page(request, "overview", values)

    async def consumers(self, request: web.Request) -> web.Response:
        """Consumers and leases."""

        def values(view: View) -> dict[str, Any]:
            rows = consumer_rows(view)
            return {"rows": rows, "total": total_per_hour(rows), "missing": missing(view, Kind.REGISTRY)}

        return await self._page(request, "consumers", values)

    async def readers(self, request: web.Request) -> web.Response:
        """Readers inside drivers and at services."""

        def values(view: View) -> dict[str, Any]:
            rows = running_readers(view)
            down = [*missing(view, Kind.DRIVERS), *(row for row in missing(view, Kind.READER) if row.endpoint)]
            return {
                "rows": rows,
                "lag": _largest(row.lag for row in rows),
                "places": Counter(row.place for row in rows),
                "missing": down,
            }

        return await self._page(request, "readers", values)

    async def streams(self, request: web.Request) -> web.Response:
        """All streams."""

        def values(view: View) -> dict[str, Any]:
            rows = stream_rows(view)
            down = [*missing(view, Kind.READER), *missing(view, Kind.KINESIS)]
            return {
                "rows": rows,
                "lag": _largest(row.lag for row in rows),
                "others_unlisted": "" if self._kinesis is None else self._kinesis.others_unlisted,
                "missing": down,
            }

        return await self._page(request, "streams", values)

    async def stream(self, request: web.Request) -> web.Response:
        """The shards of a stream."""
        name, order = request.query.get("name", ""), request.query.get("order", ORDERS[0])
        size, page = _number(request.query.get("size"), PAGE_SIZES[1]), _number(request.query.get("page"), 1)

        def values(view: View) -> dict[str, Any]:
            if name not in known_streams(view.snapshot, self._settings.streams):
                raise web.HTTPNotFound(text="No service names such a stream.")
            if order not in ORDERS or size not in PAGE_SIZES:
                raise web.HTTPBadRequest(text="The order or the number of shards on a page is unknown.")
            return {
                "stream": name,
                "order": order,
                "shards": shard_page(view, name, order=order, page=page, size=size),
                "sizes": PAGE_SIZES,
                "readers": reader_rows(view, name),
                "spark": sparkline(view, name),
                "unlisted": "" if self._kinesis is None else self._kinesis.failures.get(name, ""),
                "consumers": [row for row in consumer_rows(view) if row.stream == name],
                "missing": [*missing(view, Kind.READER), *missing(view, Kind.KINESIS)],
            }

        return await self._page(request, "stream", values)

    async def sinks(self, request: web.Request) -> web.Response:
        """Destinations of the gateways."""

        def values(view: View) -> dict[str, Any]:
            rows = sink_rows(view)
            down = missing(view, Kind.SINK)
            return {"rows": rows, "goodput": _sum(row.bytes_per_second for row in rows), "missing": down}

        return await self._page(request, "sinks", values)

    async def jobs(self, request: web.Request) -> web.Response:
        """All jobs."""

        def values(view: View) -> dict[str, Any]:
            rows = job_rows(view)
            return {"rows": rows, "by_state": by_state(rows), "marks": MARKS, "missing": missing(view, Kind.STAGES)}

        return await self._page(request, "jobs", values)

    async def job(self, request: web.Request) -> web.Response:
        """The stages of a job."""
        job_id = request.query.get("id", "")

        def values(view: View) -> dict[str, Any]:
            job = _job(view.snapshot, job_id)
            down = missing(view, Kind.STAGES)
            return {
                "row": job_row(job),
                "names": {stage.stage_id: stage.name for stage in job.stages},
                "marks": MARKS,
                "is_drawn": not down or self._plans.has(job),
                "missing": down,
            }

        return await self._page(request, "job", values)

    async def picture(self, request: web.Request) -> web.Response:
        """The stages of a job, drawn."""
        job = _job(self._collector.snapshot(), request.query.get("id", ""))
        try:
            plan = await self._plans.of(job)
        except (*ASKING_ERRORS, OperatorAttributesError) as error:
            raise web.HTTPBadGateway(text=f"The stage scheduler did not give the job's graph: {error}") from error
        progress = {stage.stage_id: stage.progress for stage in job.stages}
        # Large graphs take a moment to lay out; other pages are served meanwhile.
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

    async def _page(self, request: web.Request, name: str, values: Callable[[View], Mapping[str, Any]]) -> web.Response:
        """A page of the values that are made of a view."""

        def render() -> str:
            view = View(snapshot=self._collector.snapshot(), settings=self._settings, now=self._collector.now())
            return self._templates.render(
                f"{name}.html",
                shown={"stream": "streams", "job": "jobs"}.get(name, name),
                health=health(view),
                clock=time.strftime("%H:%M:%S UTC", time.gmtime()),
                interval=self._settings.interval_seconds,
                here=request.path_qs,
                endpoints=endpoints(view),
                at_least=at_least(view),
                **values(view),
            )

        # In a thread: thousands of sessions and shards take a while, and must not delay other pages.
        response = web.Response(text=await asyncio.to_thread(render), content_type="text/html")
        # No page holds a secret that its length could show.
        response.enable_compression()
        return response


def _job(snapshot: Snapshot, job_id: str) -> JobStatus:
    job = next((one for one in snapshot.jobs if one.job_id == job_id), None)
    if job is None:
        raise web.HTTPNotFound(text="The stage scheduler knows no such job.")
    return job


def _largest(values: Iterable[float | None]) -> float | None:
    return max((one for one in values if one is not None), default=None)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return sum(known) if known else None


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else default
