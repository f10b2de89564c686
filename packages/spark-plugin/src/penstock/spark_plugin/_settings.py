"""Settings of the Spark session that make micro-batches short, and keep what is confidential out of plans."""

import logging
import os
from typing import TYPE_CHECKING

from penstock.spark_plugin._interpreters import check_builder
from penstock.spark_plugin._java import start_jvms_without_fork
from penstock.spark_plugin._spark import CHECKPOINT_FILE_MANAGER, SPARK_USES_UNIX_SOCKETS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_warned: set[str] = set()

_UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
_RECOMMENDED = {
    # Removes about 40 ms from each task that runs Python.
    **({_UNIX_SOCKETS: "true"} if SPARK_USES_UNIX_SOCKETS else {}),
    # Writes the offset and commit logs as plain files, not through Hadoop's FileContext. Measured on two cores:
    # with both settings a micro-batch of one partition takes 54 ms instead of 184.
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILE_MANAGER,
}
_REDACTED = {
    # Spark itself redacts what is called a secret, password, token or access key, and URLs. The condition by which a
    # role trusts its caller matches none of these names.
    "spark.sql.redaction.options.regex": "(?i)url|external[._-]?id",
    # Spark Connect shows each request as text, in its UI, in job descriptions and in event logs: options of sources and
    # SQL statements with their values, but for what matches this.
    "spark.sql.redaction.string.regex": (
        r"(?i)(?:secret|token|password|access[._-]?key|external[._-]?id|proxy[._-]?url)[\w.-]*"
        r"""[\\"'`]*\s*(?:=|value:)?\s*\\*["'].*?["']"""
        # What is refused as an endpoint is shown all the same: user and password of a URL.
        r"""|://[^/\s"'@]+@"""
    ),
}


def recommended_settings() -> dict[str, str]:
    """Settings for a session that runs Kinesis queries, by name.

    They are settings of the whole session, and so are the user's to make. The checkpoint's file manager is meant for
    checkpoints on a local or POSIX file system; leave it out for an object store. The last two keep `roleExternalId`
    out of plans, and all secrets out of what Spark Connect shows and logs.
    """
    return {**_RECOMMENDED, **_REDACTED}


def configure(builder: "SparkSession.Builder") -> "SparkSession.Builder":
    """The builder with `recommended_settings`. Settings made on it afterwards win.

    Its JVM starts beside gRPC's threads, see `start_jvms_without_fork`.

    Raises:
        SparkPluginError: Spark would start data sources in a Python that does not run, or lacks this package.
    """
    check_builder(getattr(builder, "_options", {}))
    start_jvms_without_fork()
    for name, value in recommended_settings().items():
        builder = builder.config(name, value)
    return builder


def missing_settings(session: "SparkSession") -> list[str]:
    """Names of the settings that a session does not have and that make micro-batches short; warns once about each."""
    missing = [name for name, value in _RECOMMENDED.items() if session.conf.get(name, None) != value]
    for name in missing:
        warn_once(name)
    return missing


def warn_in_reader() -> None:
    """Warn once when this Python process of Spark's was started without Unix sockets."""
    is_on = os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "false").lower() == "true"
    if SPARK_USES_UNIX_SOCKETS and not is_on and os.name == "posix":
        warn_once(_UNIX_SOCKETS)


def warn_once(setting: str) -> None:
    """Log, once per process, that a setting would make micro-batches shorter."""
    if setting not in _warned:
        _warned.add(setting)
        _log.warning(
            "%s=%s makes micro-batches shorter; penstock.spark_plugin.configure(builder) sets it",
            setting,
            _RECOMMENDED[setting],
        )
