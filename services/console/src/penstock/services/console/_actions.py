"""What changes something: logins, and with leave actions on leases and stages."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from aiohttp import web

from penstock.async_sink.errors import SinkError
from penstock.rpc import AuditLog
from penstock.services.console._access.connection import Limits
from penstock.services.console._access.guard import WHO, Guard, Who
from penstock.services.console._access.hosts import where_to
from penstock.services.console._access.logins import Sessions
from penstock.services.console._settings import ConsoleSettings
from penstock.services.console._sources.collector import ASKING_ERRORS, Collector
from penstock.services.console._sources.dead_letters import DeadLetters
from penstock.services.console._sources.resume import resumption
from penstock.services.console._sources.services import RegistrySource, StagesSource
from penstock.services.console._values import Kind
from penstock.services.console._views.templates import Templates, url

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Done:
    """An action.

    Attributes:
        clock: when, UTC.
        who: who asked for it; no secret.
        what: in words.
        outcome: in words.
        succeeded: whether it was done.
    """

    clock: str
    who: str
    what: str
    outcome: str
    succeeded: bool


class ActionLog:
    """Writes each action to the logs, and remembers the newest for the pages; logins are for the logs alone.

    Args:
        audit: where actions are written beside the log, if anywhere.
        wall_clock: seconds since the epoch.
    """

    def __init__(self, audit: AuditLog | None = None, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._audit = audit
        self._wall_clock = wall_clock
        self._newest: deque[Done] = deque(maxlen=20)

    def add(
        self,
        who: Who,
        what: str,
        outcome: str,
        *,
        succeeded: bool,
        shown: bool = True,
        about: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Record an action that was tried, with the resources that it was about, by kind."""
        clock = time.strftime("%H:%M:%S UTC", time.gmtime(self._wall_clock()))
        if shown:
            self._newest.appendleft(Done(clock, who.words, what, outcome, succeeded))
        # As literals: a name with line ends must not make lines of its own.
        _log.log(logging.INFO if succeeded else logging.WARNING, "%s: %r: %r", who.words, what, outcome)
        if self._audit is not None:
            self._audit.changed(
                who="nobody" if who.principal is None else who.principal.name,
                address=who.address,
                change=what.partition(" ")[0] if shown else what,
                outcome="OK" if succeeded else "FAILED",
                reason="" if succeeded else outcome,
                what=tuple(about.items()),
            )

    def newest(self) -> list[Done]:
        """The newest first."""
        return list(self._newest)


class Actions:
    """Handlers of forms: a page that asks, and what is done when its form is sent."""

    def __init__(
        self,
        settings: ConsoleSettings,
        collector: Collector,
        guard: Guard,
        sessions: Sessions,
        templates: Templates,
        log: ActionLog,
        limits: Limits,
        *,
        registry: RegistrySource | None,
        stages: StagesSource | None,
        dead_letters: DeadLetters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._collector = collector
        self._guard = guard
        self._sessions = sessions
        self._templates = templates
        self._log = log
        self._limits = limits
        self._registry = registry
        self._stages = stages
        self._dead_letters = dead_letters
        self._clock = clock

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/login", self.login)
        app.router.add_post("/login", self.log_in)
        app.router.add_get("/logout", self.logout)
        app.router.add_post("/logout", self.log_out)
        app.router.add_get("/actions/release", self.ask_release)
        app.router.add_post("/actions/release", self.release)
        app.router.add_get("/actions/resume", self.ask_resume)
        app.router.add_post("/actions/resume", self.resume)
        app.router.add_get("/actions/redrive", self.ask_redrive)
        app.router.add_post("/actions/redrive", self.redrive)

    async def login(self, request: web.Request) -> web.Response:
        """The form of the token."""
        return self._login_page(request.query.get("next", "/"))

    async def log_in(self, request: web.Request) -> web.Response:
        """Begin a session."""
        form = await self._fields(request)
        where = form.get("next", "/")
        token = form.get("token", "").strip()
        if not self._guard.takes(request, token):
            self._guard.refuse(request, 403, "the token is wrong")
            _log.warning("%s: 'log in': 'the token is wrong'", request[WHO].words)
            return self._login_page(where, "This is not the token.", status=403)
        self._log.add(self._guard.who(request, token), "log in", "the token is right", succeeded=True, shown=False)
        response = web.HTTPSeeOther(where_to(where))
        self._guard.set_cookie(response, self._sessions.begin(self._clock(), token))
        raise response

    async def logout(self, request: web.Request) -> web.Response:
        """Ask before the session ends."""
        return self._question(request, "Log out?", "The browser forgets the session.", "Log out", "/", {})

    async def log_out(self, request: web.Request) -> web.Response:
        """End the session."""
        await self._form(request)
        session_id = request[WHO].session_id
        if session_id is not None:
            self._sessions.end(session_id)
        response = web.HTTPSeeOther("/login" if self._guard.wants_token else "/")
        self._guard.forget_cookie(response)
        raise response

    async def ask_release(self, request: web.Request) -> web.Response:
        """Ask before a lease ends."""
        self._need_leave(self._registry)
        stream, consumer = request.query.get("stream", ""), request.query.get("consumer", "")
        found = [
            one
            for one in self._collector.snapshot().consumers
            if (one.stream_name, one.consumer_name) == (stream, consumer)
        ]
        if not found or found[0].lease is None:
            raise web.HTTPNotFound(text="Nobody holds such a consumer.")
        words = (
            f"Job {found[0].lease.job_id} holds it. It learns of the end at its next heartbeat and stops reading; "
            "a job that is alive fails. A registration that is the registry's own ends after its grace period. "
            "Do this for a job that is gone and whose lease nobody can wait for."
        )
        question = f"Release consumer {consumer} of stream {stream}?"
        fields = {"stream": stream, "consumer": consumer}
        return self._question(request, question, words, "Release the lease", "/consumers", fields)

    async def release(self, request: web.Request) -> web.Response:
        """End a lease."""
        registry = self._need_leave(self._registry)
        form = await self._form(request)
        stream, consumer = form.get("stream", ""), form.get("consumer", "")
        what, about = f"release consumer {consumer} of stream {stream}", {"streams": stream, "consumers": consumer}
        self._guard.demand(request, "Release", admin=True, **about)
        try:
            lease = await registry.release(stream, consumer)
        except ASKING_ERRORS as error:
            self._log.add(request[WHO], what, f"failed: {error}", succeeded=False, about=about)
        else:
            outcome = "nobody held it" if lease is None else f"the lease of job {lease.job_id} is ended"
            self._log.add(request[WHO], what, outcome, succeeded=True, about=about)
        await self._collector.ask(Kind.REGISTRY)
        raise web.HTTPSeeOther("/consumers")

    async def ask_resume(self, request: web.Request) -> web.Response:
        """Ask before a stage may be deployed again."""
        self._need_leave(self._stages)
        job_id, stage_id = request.query.get("job", ""), request.query.get("stage", "")
        found = [
            (job, stage)
            for job in self._collector.snapshot().jobs
            for stage in job.stages
            if (job.job_id, stage.stage_id) == (job_id, stage_id)
        ]
        if not found:
            raise web.HTTPNotFound(text="The stage scheduler knows no such stage.")
        what = resumption(*found[0])
        if what.how is None:
            raise web.HTTPConflict(text=f"This stage cannot be resumed. {what.words}")
        question = f"Resume stage {stage_id} of job {job_id}?"
        fields = {"job": job_id, "stage": stage_id, "how": what.how.value}
        return self._question(request, question, what.words, "Resume the stage", url("/job", id=job_id), fields)

    async def resume(self, request: web.Request) -> web.Response:
        """Let a stage be deployed again."""
        stages = self._need_leave(self._stages)
        form = await self._form(request)
        job_id, stage_id = form.get("job", ""), form.get("stage", "")
        what = f"resume stage {stage_id} of job {job_id}"
        self._guard.demand(request, "Resume", jobs=job_id)
        try:
            job = await stages.resume(job_id, stage_id, how=form.get("how"))
            state = job.stage(stage_id).progress.state.value
        except ASKING_ERRORS as error:
            self._log.add(request[WHO], what, f"failed: {error}", succeeded=False, about={"jobs": job_id})
        else:
            self._log.add(request[WHO], what, f"the stage is {state}", succeeded=True, about={"jobs": job_id})
        await self._collector.ask(Kind.STAGES)
        raise web.HTTPSeeOther(url("/job", id=job_id))

    async def ask_redrive(self, request: web.Request) -> web.Response:
        """Ask before dead letters are written again."""
        self._need_leave(self._dead_letters)
        fields = self._letters(request.query)
        question = f"Write the dead letters for {fields['stream']} in {fields['folder']} again?"
        words = (
            "Each open letter is sent to its stream. What the stream acknowledges is noted and not sent again; what it "
            "refuses, and what has no data or no partition key, stays a letter. A letter whose cause is still there is "
            "refused again."
        )
        return self._question(request, question, words, "Write them again", "/dead-letters", fields)

    async def redrive(self, request: web.Request) -> web.Response:
        """Write dead letters again."""
        self._need_leave(self._dead_letters)
        fields = self._letters(await self._form(request))
        folder, stream = fields["folder"], fields["stream"]
        what, about = f"redrive dead letters of {folder} to stream {stream}", {"streams": stream}
        self._guard.demand(request, "Redrive", streams=stream)
        try:
            outcome = await self._dead_letters.redrive(folder, stream)
        except (*ASKING_ERRORS, SinkError) as error:
            self._log.add(request[WHO], what, f"failed: {error}", succeeded=False, about=about)
        else:
            self._log.add(request[WHO], what, outcome, succeeded=True, about=about)
        raise web.HTTPSeeOther("/dead-letters")

    def _letters(self, given: Mapping[str, str]) -> dict[str, str]:
        folder, stream = given.get("folder", ""), given.get("stream", "")
        if not (stream and self._dead_letters.knows(folder)):
            raise web.HTTPNotFound(text="There are no such dead letters.")
        return {"folder": folder, "stream": stream}

    def _need_leave(self, source: Any) -> Any:
        if not self._settings.allow_actions:
            raise web.HTTPForbidden(text="The console was started without --allow-actions: it changes nothing.")
        if source is None:
            raise web.HTTPNotFound(text="The console was given no endpoint of the service that would do this.")
        return source

    async def _form(self, request: web.Request) -> dict[str, str]:
        """The fields, when they come from a form that this browser was shown."""
        form = await self._fields(request)
        who = request[WHO]
        if not who.is_program:
            session_id = who.session_id or ""
            if not session_id or not self._sessions.is_form_token(session_id, form.get("form_token", "")):
                raise web.HTTPForbidden(text="The form is too old, or not from this browser. Go back and try again.")
        return form

    def _question(
        self, request: web.Request, question: str, words: str, button: str, back: str, fields: dict[str, str]
    ) -> web.Response:
        session_id = request[WHO].session_id
        fresh = session_id is None
        if session_id is None:
            # Where no login is needed, a session ties the form to this browser.
            session_id = self._sessions.begin(self._clock())
        text = self._templates.render(
            "question.html",
            question=question,
            words=words,
            button=button,
            back=back,
            action=request.path,
            fields={**fields, "form_token": self._sessions.form_token(session_id)},
        )
        response = web.Response(text=text, content_type="text/html")
        if fresh:
            self._guard.set_cookie(response, session_id)
        return response

    def _login_page(self, where: str, problem: str = "", *, status: int = 200) -> web.Response:
        text = self._templates.render(
            "login.html", where=where_to(where), problem=problem, needed=self._guard.wants_token
        )
        return web.Response(text=text, content_type="text/html", status=status)

    async def _fields(self, request: web.Request) -> dict[str, str]:
        """What a form says. All of it has to be there in time, however steadily it drips."""
        try:
            async with asyncio.timeout(self._limits.form):
                sent = await request.post()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="The form took too long.") from None
        except (LookupError, ValueError):
            # Also of an encoding that nobody knows.
            raise web.HTTPBadRequest(text="This is not a form.") from None
        return {key: value for key, value in sent.items() if isinstance(value, str)}
