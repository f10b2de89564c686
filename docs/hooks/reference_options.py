"""The options of the data sources, with the names that other connectors have for them."""

from reference_text import table

from penstock.spark_plugin._options.docs import by_task, default, documentation, places
from penstock.spark_plugin._options.foreign import Connector, foreign_options
from penstock.spark_plugin._options.spec import OptionSpec, OptionType


def page() -> str:
    """The page."""
    parts = [
        "# Options\n",
        'These options belong to `format("kinesis")`, `format("firehose")`, `format("sqs")`, `format("dynamodb")` and '
        '`format("dynamodb-streams")`, on `read`, `readStream`, `write`, `writeStream` and in SQL. Names are accepted '
        "in any letter case, and so are the names in Flink's connector, Databricks and the AWS connector. An unknown "
        "option is an error that names the nearest one.\n",
        "The last column shows where an option acts. An option is an error where it has no effect: in another use, "
        "such as an option of streams in a bounded read, or beside another option, such as an option of enhanced "
        "fan-out beside polling. With a service at an endpoint, the value is sent with the request, or the two options "
        "together are an error that says what to do.\n",
    ]
    for title, specs in by_task():
        rows = [
            (_name(spec), _kind(spec), f"`{default(spec)}`" if default(spec) else "", _words(spec), places(spec))
            for spec in specs
        ]
        parts += [f"## {title}\n", table(("option", "type", "default", "meaning", "acts in"), rows)]
    return "\n".join(parts)


def _name(spec: OptionSpec) -> str:
    return (f"`{spec.name}.<stream>`" if spec.prefix else f"`{spec.name}`") + f"{{ #option-{spec.name} }}"


def _kind(spec: OptionSpec) -> str:
    return ", ".join(f"`{one}`" for one in spec.choices) if spec.type is OptionType.CHOICE else spec.type.value


def _words(spec: OptionSpec) -> str:
    doc = documentation()[spec.field] + (" A secret: never shown." if spec.secret else "")
    names = []
    for connector in Connector:
        found = [f"`{one.name}`" for one in foreign_options() if one.connector is connector and one.option == spec.name]
        if found:
            names.append(f"{connector}: {', '.join(found)}")
    return f"{doc} *{'; '.join(names)}.*" if names else doc
