"""Where readers run: how many task slots a session has, and on which hosts a reader is wanted. Asked of Spark's JVM."""

import pickle
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext


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
