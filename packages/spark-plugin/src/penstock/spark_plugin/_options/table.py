"""The table of all options: the one place that knows their names, types, defaults and aliases."""

from dataclasses import replace

from penstock.spark_plugin._options.spec import (
    DRIVER,
    EVERYWHERE,
    GATEWAY,
    OWN_CREDENTIALS,
    READ,
    STREAM,
    TASK,
    WRITE,
    OptionSpec,
    OptionType,
)
from penstock.spark_plugin._options.table_reading import READING, SERVICES
from penstock.spark_plugin._options.table_writing import RETRIES, WRITING

_STREAM = (
    OptionSpec(
        name="streamName",
        group="stream",
        acts=EVERYWHERE,
        type=OptionType.STRINGS,
        doc="The stream; several for reading. Required, unless `streamArn` is given.",
        flink="stream",
        databricks="streamName",
        aws="kinesis.streamName",
    ),
    OptionSpec(
        name="deliveryStreamName",
        group="stream",
        acts=(DRIVER, TASK, GATEWAY),
        only=(WRITE,),
        doc="The delivery stream of format `firehose`; `streamName` is understood there too.",
    ),
    OptionSpec(
        name="tableName",
        group="stream",
        acts=(DRIVER,),
        only=(READ, STREAM),
        doc="The table of format `dynamodb-streams`, whose latest stream is read.",
    ),
    OptionSpec(
        name="streamArn",
        group="stream",
        acts=EVERYWHERE,
        type=OptionType.STRINGS,
        doc="ARN of the stream, instead of its name; several, of one region, for reading. Needed for streams of other "
        "accounts. Its region is used when `region` is not given. With format `dynamodb-streams` "
        "that of a table's stream.",
        flink="stream.arn",
        databricks="streamARN",
    ),
    OptionSpec(
        name="streamNamePattern",
        group="stream",
        acts=(DRIVER,),
        only=(READ, STREAM),
        doc="Regular expression (of Python) for the whole names of the streams to read, instead of `streamName`. "
        "ListStreams is asked as a run begins, and every `streamDiscoveryInterval` while it goes on; streams that it "
        "did not know before begin at `addedStreamPosition`.",
    ),
    OptionSpec(
        name="streamDiscoveryInterval",
        group="stream",
        acts=(DRIVER,),
        only=(STREAM,),
        type=OptionType.SECONDS,
        default="5m",
        minimum=0,
        doc="How often a running query looks for further streams that match `streamNamePattern`; 0: only as it begins. "
        "A run that ends by itself reads those that it began with.",
    ),
    OptionSpec(
        name="region",
        group="stream",
        acts=EVERYWHERE,
        doc="AWS region. Default: that in `endpointUrl`, if it is AWS's own, or else the environment's.",
        flink="aws.region",
        databricks="region",
    ),
    OptionSpec(
        name="endpointUrl",
        group="stream",
        acts=EVERYWHERE,
        doc="URL of the Kinesis API. Default: `AWS_ENDPOINT_URL_KINESIS`, or else the region's.",
        flink="aws.endpoint",
        databricks="endpoint",
        aws="kinesis.endpointUrl",
    ),
    OptionSpec(
        name="caBundle",
        group="stream",
        acts=(DRIVER, TASK),
        refused_with=(OWN_CREDENTIALS,),
        doc="PEM file of the authorities that the endpoint's certificate is checked by.",
    ),
    OptionSpec(
        name="proxyUrl",
        group="stream",
        acts=(DRIVER, TASK),
        refused_with=(OWN_CREDENTIALS,),
        secret=True,
        doc="HTTP proxy on the way to AWS, `http://HOST:PORT` or `http://USER:PASSWORD@HOST:PORT`, on the driver and "
        "on the executors, but for the hosts of `NO_PROXY`. Default: `HTTPS_PROXY`, or for an `http://` endpoint "
        "`HTTP_PROXY`, of each process's environment.",
    ),
    OptionSpec(
        name="allowInsecureEndpoint",
        group="stream",
        acts=(DRIVER,),
        type=OptionType.BOOLEAN,
        default="false",
        doc="Lets real credentials be used on an `http://` endpoint of another host, where records and tokens can be "
        "read on the way.",
    ),
)

_NO_SYSTEM_PROPERTIES = (
    "Python has no system properties of Java: give awsAccessKeyId and awsSecretAccessKey, or set the environment's "
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
)
_CREDENTIALS = (
    OptionSpec(
        name="awsCredentialsProvider",
        group="credentials",
        acts=(DRIVER, TASK),
        refused_with=(replace(OWN_CREDENTIALS, unless="auto"),),
        type=OptionType.CHOICE,
        default="auto",
        choices=("auto", "basic", "env_var", "profile", "assume_role", "web_identity_token", "custom"),
        choice_cures=(("sys_prop", _NO_SYSTEM_PROPERTIES),),
        doc="What credentials come from; auto is: from those that are given. The others are an error when theirs are "
        "missing.",
        flink="aws.credentials.provider",
    ),
    OptionSpec(
        name="awsAccessKeyId",
        group="credentials",
        acts=(DRIVER, TASK),
        refused_with=(OWN_CREDENTIALS,),
        doc="Access key. Default: the environment's credential chain.",
        flink="aws.credentials.provider.basic.accesskeyid",
        databricks="awsAccessKey",
        aws="kinesis.awsAccessKeyId",
    ),
    OptionSpec(
        name="awsSecretAccessKey",
        group="credentials",
        acts=(DRIVER, TASK),
        refused_with=(OWN_CREDENTIALS,),
        secret=True,
        doc="Secret key that belongs to `awsAccessKeyId`.",
        flink="aws.credentials.provider.basic.secretkey",
        databricks="awsSecretKey",
        aws="kinesis.awsSecretKey",
    ),
    OptionSpec(
        name="awsSessionToken",
        group="credentials",
        acts=(DRIVER, TASK),
        refused_with=(OWN_CREDENTIALS,),
        secret=True,
        doc="Token of temporary keys.",
        aws="kinesis.sessionToken",
    ),
    OptionSpec(
        name="awsProfile",
        group="credentials",
        acts=(DRIVER, TASK),
        refused_with=(OWN_CREDENTIALS,),
        doc="Profile of the AWS configuration files.",
        flink="aws.credentials.provider.profile.name",
    ),
    OptionSpec(
        name="credentialsProvider",
        group="credentials",
        acts=(DRIVER, TASK),
        refused_with=(OWN_CREDENTIALS,),
        doc="`package.module:callable` of Python that gives credentials: it returns "
        "`penstock.aws.ProvidedCredentials`, and is called on the driver and in tasks, again before they expire.",
    ),
    OptionSpec(
        name="roleArn",
        group="credentials",
        acts=(DRIVER, TASK),
        refused_with=(OWN_CREDENTIALS,),
        doc="Role to assume; several, with commas, are assumed one with the credentials of the other.",
        databricks="roleArn",
        aws="kinesis.stsRoleArn",
    ),
    OptionSpec(
        name="roleSessionName",
        group="credentials",
        acts=(DRIVER, TASK),
        refused_with=(OWN_CREDENTIALS,),
        doc="Name of the assumed role's session.",
        flink="aws.credentials.provider.role.sessionName",
        databricks="roleSessionName",
        aws="kinesis.stsSessionName",
    ),
    OptionSpec(
        name="roleExternalId",
        group="credentials",
        acts=(DRIVER, TASK),
        refused_with=(OWN_CREDENTIALS,),
        secret=True,
        doc="External id that the role asks for.",
        flink="aws.credentials.provider.role.externalId",
        databricks="roleExternalId",
    ),
    OptionSpec(
        name="roleCredentialsProvider",
        group="credentials",
        acts=(DRIVER, TASK),
        refused_with=(replace(OWN_CREDENTIALS, unless="auto"),),
        type=OptionType.CHOICE,
        default="auto",
        choices=("auto", "basic", "env_var", "profile", "custom"),
        choice_cures=(
            ("assume_role", "name both roles in roleArn, with a comma: the first is assumed to assume the second"),
            (
                "web_identity_token",
                "name both roles in roleArn, with a comma, and the token in webIdentityTokenFile: the first role is "
                "assumed with it",
            ),
            ("sys_prop", _NO_SYSTEM_PROPERTIES),
        ),
        doc="What credentials the role is assumed with; auto is: those that are given, or the default chain's. The "
        "others are an error when theirs are missing.",
    ),
    OptionSpec(
        name="roleSessionDuration",
        group="credentials",
        acts=(DRIVER, TASK),
        refused_with=(OWN_CREDENTIALS,),
        type=OptionType.SECONDS,
        minimum=900,
        maximum=43_200,
        doc="How long the session of the (last) role lasts, 15m to 12h, and at most 1h for a role that another one "
        "assumes. Default: STS's hour. It is renewed before its end.",
    ),
    OptionSpec(
        name="roleSessionTags",
        group="credentials",
        acts=(DRIVER, TASK),
        refused_with=(OWN_CREDENTIALS,),
        doc="Tags of the (last) role's session: `key=value`, several with commas.",
    ),
    OptionSpec(
        name="stsEndpointUrl",
        group="credentials",
        acts=(DRIVER, TASK),
        refused_with=(OWN_CREDENTIALS,),
        doc="URL of the STS API.",
        flink="aws.credentials.provider.role.stsEndpoint",
        databricks="stsEndpoint",
        aws="kinesis.stsEndpointUrl",
    ),
    OptionSpec(
        name="webIdentityTokenFile",
        group="credentials",
        acts=(DRIVER, TASK),
        refused_with=(OWN_CREDENTIALS,),
        doc="File with a web identity token, to assume the (first) role of `roleArn` with.",
        flink="aws.credentials.provider.webIdentityToken.file",
    ),
)

OPTIONS: tuple[OptionSpec, ...] = (*_STREAM, *_CREDENTIALS, *READING, *SERVICES, *WRITING, *RETRIES)
"""All options, in the order of the documentation."""

SPARK_OWN = frozenset({"checkpointlocation", "queryname", "outputmode", "mergeschema"})
"""Keys that Spark itself hands to a data source, in lower case: not ours, and no error."""
