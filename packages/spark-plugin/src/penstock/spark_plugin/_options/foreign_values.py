"""Values of other connectors' options that depend on the other options that are given."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from penstock.spark_plugin.errors import OptionError

Converter: TypeAlias = Callable[[str, Mapping[str, str]], Mapping[str, str]]
"""From an option's text, and all options that were given, by name in lower case, to options of ours."""

_LEAST_INTERVAL_MS = 200
"""Kinesis allows 5 reads/s of a shard."""
_ROLES = ("aws.credentials.provider.role", "aws.credentials.role")


def _producer_endpoint(text: str, given: Mapping[str, str]) -> dict[str, str]:
    port = given.get("sink.producer.kinesis-port")
    return {"endpointUrl": f"https://{text}" + (f":{port}" if port else "")}


def _producer_port(text: str, given: Mapping[str, str]) -> dict[str, str]:
    if "sink.producer.kinesis-endpoint" not in given:
        raise OptionError.missing(
            "sink.producer.kinesis-endpoint", "sink.producer.kinesis-port is the port of that host"
        )
    return {}


def _roles(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """Both roles of a chain, whichever of the two is translated."""
    outer = next((given[f"{role}.arn"] for role in _ROLES if f"{role}.arn" in given), None)
    inner = next((given[f"{role}.provider.role.arn"] for role in _ROLES if f"{role}.provider.role.arn" in given), None)
    return {"roleArn": ",".join(arn for arn in (inner, outer) if arn)}


def _role_provider(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """What has its own keys below it says no more than these do."""
    needed = {"assume_role": ("role.arn",), "web_identity_token": ("role.arn", "webidentitytoken.file")}
    keys = needed.get(text.lower(), ())
    if keys and any(all(f"{role}.provider.{key}" in given for key in keys) for role in _ROLES):
        return {}
    return {"roleCredentialsProvider": text}


def _attempts(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """How often a call is made in all."""
    return {"getRecordsMaxRetries": str(int(text) - 1) if text.isdecimal() and int(text) > 0 else text}


def _first_delay(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """Where the longest delay is not given, it is 10 s there."""
    longest = ("kinesis.clientmaxretryintervalms", "kinesis.client.maxretryintervalms")
    default = {} if any(name in given for name in longest) else {"getRecordsBackoffMax": "10s"}
    return {"getRecordsBackoffBase": text} | default


def _registered_consumers(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """ARNs name their streams; names need the stream to hold one of that name, which is used and left."""
    if given.get("registeredconsumeridtype", "name").lower() != "arn":
        return {"efoConsumerName": text}
    arns = [one.strip() for one in text.split(",") if one.strip()]
    consumers = {f"efoConsumerArn.{arn.partition(':stream/')[2].partition('/')[0]}": arn for arn in arns}
    return {"efoRegistration": "none", **consumers}


def _registered_consumer_type(text: str, given: Mapping[str, str]) -> dict[str, str]:
    if text.lower() not in ("name", "arn"):
        raise OptionError.invalid("registeredConsumerIdType", text, "name or ARN")
    if text.lower() == "arn" and "registeredconsumerid" not in given:
        raise OptionError.missing("registeredConsumerId", "registeredConsumerIdType=ARN says that it is one")
    return {}


def _region(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """The stream's region goes first: the other one was that of the connector's own calls."""
    return {} if "kinesis.kinesisregion" in given else {"region": text}


def _interval(text: str, given: Mapping[str, str]) -> dict[str, str]:
    return {"getRecordsInterval": f"{max(int(text), _LEAST_INTERVAL_MS)}ms" if text.isdecimal() else text}


def _fan_out(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """A consumer that is there already: its ARN names the stream."""
    _, is_arn, rest = text.partition(":stream/")
    stream = rest.partition("/consumer/")[0]
    if not is_arn or "/consumer/" not in rest:
        raise OptionError.invalid("fanoutConsumerARN", text, "the ARN of a stream consumer")
    return {"recordPublisher": "efo", "efoRegistration": "none", f"efoConsumerArn.{stream}": text}


CONVERTERS: Mapping[str, Converter] = {
    "attempts": _attempts,
    "fan_out": _fan_out,
    "first_delay": _first_delay,
    "interval": _interval,
    "producer_endpoint": _producer_endpoint,
    "producer_port": _producer_port,
    "region": _region,
    "registered_consumer_type": _registered_consumer_type,
    "registered_consumers": _registered_consumers,
    "role_provider": _role_provider,
    "roles": _roles,
}
"""By the names that `foreign.toml` has for them."""
