"""Shard readers on the executors of a session: started, started again when lost, and stopped."""

import logging
import pickle
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.rpc import ClientSecurity
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._options.parsing import find_option
from penstock.spark_plugin._options.spec import OptionSpec, Place
from penstock.spark_plugin._reading.executors.fleet_file import ExecutorReader, FleetFile
from penstock.spark_plugin._reading.executors.roster import SERVER_NAME, Invitation, Roster, make_certificate
from penstock.spark_plugin._reading.session.addresses import LOOPBACK, reader_address
from penstock.spark_plugin.errors import ExecutorReadersError, OptionError

if TYPE_CHECKING:
    from pyspark import RDD, Broadcast, SparkContext
    from pyspark.sql import SparkSession


def task_slots(context: "SparkContext") -> int:
    """How many tasks the executors that are there now run at a time."""
    jvm: Any = context._jsc.sc()
    return int(jvm.maxNumConcurrentTasks(jvm.resourceProfileManager().defaultResourceProfile()))


def most_task_slots(context: "SparkContext") -> int | None:
    """How many they may become by dynamic allocation; None without it, 0 without a bound."""
    conf = context.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false") != "true":
        return None
    most = int(conf.get("spark.dynamicAllocation.maxExecutors", "0") or 0)
    cores, a_task = (int(conf.get(name, "1") or 1) for name in ("spark.executor.cores", "spark.task.cpus"))
    return most * max(1, cores // a_task)


def executor_hosts(context: "SparkContext") -> list[str]:
    """The hosts of the executors; the driver, which Spark counts among them, is left out: in local mode, too."""
    jvm: Any = context._jvm
    found = jvm.scala.jdk.javaapi.CollectionConverters.asJava(context._jsc.sc().statusStore().executorList(True))
    return [one.hostPort().rpartition(":")[0] for one in found if one.id() != "driver"]


def least_used(hosts: Iterable[str], used: Iterable[str | None]) -> str | None:
    """The host that has the fewest readers, for the next one; None without hosts."""
    counted = Counter(used)
    return min(sorted(set(hosts)), key=lambda host: counted[host], default=None)


def one_task(context: "SparkContext", preferred: str | None) -> "RDD[Any]":
    """A job's data with one partition, whose task Spark prefers to run on that host, if it has a slot soon."""
    from pyspark import RDD
    from pyspark.serializers import CPickleSerializer

    jvm: Any = context._jvm
    element = jvm.scala.Tuple2(pickle.dumps(None), jvm.PythonUtils.toSeq([preferred] if preferred else []))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    made = context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq([element]), tag)
    return RDD(made.toJavaRDD(), context, CPickleSerializer())


_log = logging.getLogger(__name__)
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_WELL_SECONDS = 60.0
"""A reader that has served for this long is restarted without a pause when it is lost."""
_EXECUTORS_SECONDS = 30.0
"""For executors to come, as Spark itself waits for them (`spark.scheduler.maxRegisteredResourcesWaitingTime`)."""
_LOOK_SECONDS = 0.5
_END_SECONDS = 15.0
_KILL_SECONDS = 10.0
_LOCATION = ("region", "endpointUrl", "caBundle", "proxyUrl", "allowInsecureEndpoint")


class ExecutorReaders:
    """The shard readers of a session. Made by `start_readers`; a context manager that stops them at its end."""

    def __init__(self, context: "SparkContext", count: int, invitation: Invitation, file: FleetFile) -> None:
        self._context = context
        self._count = count
        self._invitation = invitation
        self._file = file
        self._group = f"penstock-readers-{secrets.token_hex(4)}"
        self._change = threading.Condition()
        self._readers: tuple[ExecutorReader, ...] = ()
        self._failure: str | None = None
        self._is_up = False
        self._stopping = threading.Event()
        self._stopped = threading.Lock()
        self._running: set[int] = set()
        self._places: dict[int, str | None] = {}
        """The hosts where readers are, or are wanted."""
        self._roster: Roster | None = None
        self._secrets: Broadcast[Invitation] | None = None
        self._threads: list[threading.Thread] = []

    def __repr__(self) -> str:
        return f"ExecutorReaders(count={self._count}, addresses={self.addresses})"

    @property
    def count(self) -> int:
        """How many there are to be."""
        return self._count

    @property
    def readers(self) -> tuple[ExecutorReader, ...]:
        """Those that are there now, in the order of their numbers."""
        return self._readers

    @property
    def addresses(self) -> list[str]:
        """`host:port` of those that are there now."""
        return [reader.address for reader in self._readers]

    def stop(self) -> None:
        """End the readers: their processes, ports and memory are gone when this returns. Can be called again.

        Queries that read by them fail with the code READERS_STOPPED: stop those first.
        """
        with self._change:
            is_first = not self._stopping.is_set()
            self._stopping.set()
            if is_first:
                self._file.remove()
            self._change.notify_all()
        if not is_first and threading.current_thread() in self._threads:
            return  # whoever was first waits for this thread
        with self._stopped:
            if self._roster is not None:
                self._roster.close()
                self._roster = None
            self._join(_END_SECONDS)
            if self._left() and not _has_stopped(self._context):
                _log.warning("%d shard readers do not end by themselves: their tasks are cancelled", len(self._left()))
                self._context.cancelJobGroup(self._group)
                self._join(_KILL_SECONDS)
            self._readers = ()
            if self._secrets is not None and not _has_stopped(self._context):
                self._secrets.destroy()
            self._secrets = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _left(self) -> list[threading.Thread]:
        return [one for one in self._threads if one.is_alive() and one is not threading.current_thread()]

    def _join(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        for thread in self._left():
            thread.join(max(0.0, until - time.monotonic()))

    def _start(self, bind_host: str, timeout_seconds: float) -> None:
        from pyspark import InheritableThread

        self._roster = Roster(
            bind_host,
            self._invitation.port,
            self._invitation.token,
            self._invitation.certificate,
            self._has_changed,
            self._has_failed,
        )
        invitation = replace(self._invitation, port=self._roster.port)
        # Neither the plan of a job nor the event log shows a broadcast variable; it goes by Spark's block transfer.
        self._secrets = self._context.broadcast(invitation)
        for number in range(self._count):
            thread = InheritableThread(partial(self._keep, number))
            thread.daemon, thread.name = True, f"penstock reader {number}"
            self._threads.append(thread)
            thread.start()
        with self._change:
            self._change.wait_for(lambda: self._failure is not None or self._all_there(), timeout_seconds)
            if self._failure is None and not self._all_there():
                there = {reader.number for reader in self._readers}
                self._failure = f"{self._count - len(there)} of {self._count} did not start in {timeout_seconds:g} s"
            if self._failure is not None:
                raise ExecutorReadersError(f"cannot start shard readers on the executors: {self._failure}")
            self._is_up = True

    def _all_there(self) -> bool:
        return {reader.number for reader in self._readers} == set(range(self._count))

    def _has_changed(self, readers: tuple[ExecutorReader, ...]) -> None:
        with self._change:
            if not self._stopping.is_set():
                self._readers = readers
                self._places |= {reader.number: reader.host for reader in readers}
                self._file.write(readers)
                self._change.notify_all()

    def _has_failed(self, number: int, failure: str) -> None:
        with self._change:
            if not self._is_up:
                self._failure = failure
                self._change.notify_all()
        _log.warning("shard reader %d could not be started: %s", number, failure)

    def _keep(self, number: int) -> None:
        """Run a reader, and run it again when it is lost, until all are stopped."""
        pause = _FIRST_PAUSE_SECONDS
        while self._wait_for_a_slot(number):
            began, reason = time.monotonic(), "its task has ended"
            try:
                self._run(number)
            except Exception as error:  # whatever Spark says of a job that failed
                reason = _first_line(error)
            finally:
                self._running.discard(number)
            if _has_stopped(self._context):
                self.stop()
                return
            if self._stopping.is_set():
                return
            if not self._is_up:
                # The cause is in the executor's log, or has been reported by the reader itself, which comes first.
                self._has_failed(number, self._failure or reason)
                return
            if time.monotonic() - began >= _WELL_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            _log.warning("shard reader %d is gone (%s): starting it again in %g s", number, reason, pause)
            self._stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _wait_for_a_slot(self, number: int) -> bool:
        """Whether to run the reader now: when a slot is left beside it, and readers are not stopped."""
        waits = False
        while not self._stopping.is_set():
            with self._change:
                # A reader that is lost with its executor must not take the last slot from the queries.
                if most_task_slots(self._context) is not None or task_slots(self._context) > len(self._running) + 1:
                    self._running.add(number)
                    return True
            if not waits:
                waits = True
                _log.warning(
                    "shard reader %d waits for an executor: it would take the last task slot from the queries", number
                )
            self._stopping.wait(_LOOK_SECONDS)
        return False

    def _run(self, number: int) -> None:
        assert self._secrets is not None
        hosts = executor_hosts(self._context)
        with self._change:
            others = self._running - {number}
            self._places[number] = place = least_used(hosts, (self._places.get(other) for other in others))
        self._context.setJobGroup(
            self._group, f"penstock: shard reader {number + 1} of {self._count}", interruptOnCancel=True
        )
        one_task(self._context, place).mapPartitions(partial(_serve, number, self._secrets)).collect()


def _serve(number: int, invitation: "Broadcast[Invitation]", _nothing: Iterable[Any]) -> Iterator[Any]:
    from penstock.spark_plugin._reading.executors.task import serve

    serve(number, invitation.value)
    return iter(())


def start_readers(
    spark: "SparkSession",
    *,
    count: int,
    options: Mapping[str, str] | None = None,
    encrypt: bool | None = None,
    timeout: timedelta = timedelta(minutes=2),
) -> ExecutorReaders:
    """Run shard readers as tasks on the session's executors, and let its queries read by them.

    Each takes one task slot until it is stopped, and serves gRPC as the shard-reader service does. Queries that are
    started meanwhile in this session divide their shards among the readers, as among services of `readerEndpoint`,
    which wins where a query gives it; the driver plans, and no record passes through it. A reader that is lost is
    started again, elsewhere if need be, and the others take its shards over meanwhile.

    Args:
        spark: a session with executors of its own; not one of Spark Connect.
        count: of readers. At least one task slot has to be left for queries.
        options: of the readers, by the names that the data source has for them: how AWS is reached
            (`region`, `endpointUrl`, credentials), `deaggregate` and the buffers. Default: as executors find it.
        encrypt: whether readers use TLS, by a certificate that is made for this session. Default: wherever other
            machines can reach them, so everywhere but in local mode.
        timeout: for all of them to serve.

    Raises:
        ExecutorReadersError: readers run in this session already, one cannot be started, or it is one of Spark Connect.
        ExecutorReadersError: no task slot would be left for queries.
        MissingLibraryError: what makes certificates is not installed.
        OptionError: an option is wrong, or is one of queries.
        ServerStartError: the driver cannot listen where executors would reach it.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        raise ExecutorReadersError(
            "a client of Spark Connect runs no tasks of its own: run shard readers as services and name them by the "
            "option readerEndpoint, or call start_readers where the server's session is made"
        )
    _check_session(context)
    if count < 1:
        raise ExecutorReadersError(f"count={count}: at least one reader is needed")
    given = dict(options or {})
    _check_options(given)
    is_local = context.master.startswith("local") and not context.master.startswith("local-cluster")
    _check_slots(context, count, is_local=is_local)
    is_encrypted = not is_local if encrypt is None else encrypt
    certificate = make_certificate() if is_encrypted else None
    token = secrets.token_urlsafe(32)
    address = reader_address(KinesisOptions(stream_name=()), settings=dict(context.getConf().getAll()))
    invitation = Invitation(
        host=address.host, port=0, token=token, options=given, loopback=is_local, certificate=certificate
    )
    security = ClientSecurity(
        token=token,
        ca_certificates=None if certificate is None else certificate.certificate,
        server_name=None if certificate is None else SERVER_NAME,
        allow_plain_text_token=certificate is None,
    )
    from pyspark import SparkFiles

    try:
        file = FleetFile(Path(SparkFiles.getRootDirectory()), security)
    except FileExistsError as error:
        raise ExecutorReadersError("readers run in this session already: stop those first") from error
    readers = ExecutorReaders(context, count, invitation, file)
    try:
        readers._start(address.bind_host or LOOPBACK, timeout.total_seconds())
    except BaseException:
        readers.stop()
        raise
    return readers


def _check_session(context: "SparkContext") -> None:
    # Of py4j, which is Spark's own: the class of the gateway that has a thread of the JVM for each of Python.
    if type(context._gateway).__name__ != "ClientServer":
        raise ExecutorReadersError(
            "PYSPARK_PIN_THREAD=false lets all threads of Python share one of the JVM, and the group of the readers' "
            "jobs would include every job: leave the variable out"
        )
    threshold = "spark.speculation.task.duration.threshold"
    if context.getConf().get("spark.speculation", "false") == "true" and context.getConf().get(threshold) is not None:
        raise ExecutorReadersError(
            f"with spark.speculation and {threshold} Spark would run a copy of each reader, whose task never ends, for "
            "as long as it runs: leave one of the two settings out"
        )


def _check_options(given: Mapping[str, str]) -> None:
    KinesisOptions.parse(given, stream_required=False)
    for name in given:
        found = find_option(name)
        if found is not None and not _is_of_readers(found[0]):
            raise OptionError.misplaced(name, "a query", "start_readers", "give it to the query, which says it to them")


def _is_of_readers(spec: OptionSpec) -> bool:
    """Whether a reader of several queries has it for itself; what each query says for its session is not."""
    of_all = "readerEndpoint" in spec.not_with and Place.READER in spec.acts
    return of_all or spec.group == "credentials" or spec.name in _LOCATION


def _check_slots(context: "SparkContext", count: int, *, is_local: bool) -> None:
    most = most_task_slots(context)
    if most is not None:
        if most and most <= count:
            raise _no_slot(count, most)
        return
    until = time.monotonic() + (0 if is_local else _EXECUTORS_SECONDS)
    while (slots := task_slots(context)) <= count:
        if time.monotonic() >= until:
            raise _no_slot(count, slots)
        time.sleep(_LOOK_SECONDS)


def _no_slot(count: int, slots: int) -> ExecutorReadersError:
    return ExecutorReadersError.of("NO_FREE_TASK_SLOT", count=count, slots=slots, cores=count + 2)


def _has_stopped(context: "SparkContext") -> bool:
    return context._jsc is None or bool(context._jsc.sc().isStopped())


def _first_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    text = str(error) if java is None else str(java.getMessage() or java)
    return text.strip().partition("\n")[0]
