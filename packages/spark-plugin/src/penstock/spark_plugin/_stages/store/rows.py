"""Rows of stages, written and read by Python tasks with Arrow and Parquet: Spark needs no file system of its own."""

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.spark_plugin._for_stages import Objects, Place
from penstock.spark_plugin.errors import PipelineDefinitionError

_GROUP_BYTES = 64 << 20
"""Of rows in memory, which become one row group."""
_FILE_BYTES = 512 << 20
"""Of rows in memory, after which another file is begun: with the credentials of that moment."""
_PARTITION_BYTES = 32 << 20
"""Of files, compressed, that one task reads."""
_FORMAT = "penstock_stage"
_URL = "secret_url"
"""Spark shows no option in a plan that has this word in its name, and the URL may hold a password."""
_WRITTEN = "file string, size_bytes long, rows long"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file with rows of a result."""

    file: str
    size_bytes: int
    rows: int


def write_rows(frame: DataFrame, place: Place) -> list[WrittenFile]:
    """Write the rows of a frame into files of a folder, as Spark's jobs do: in as many tasks as it has partitions.

    What tasks leave that fail, or run twice, is not among the answer.
    """
    schema = _arrow_schema(frame.schema)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = list(_write_files(batches, schema, place))
        columns = ([one.file for one in files], [one.size_bytes for one in files], [one.rows for one in files])
        types = (pa.string(), pa.int64(), pa.int64())
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=["file", "size_bytes", "rows"])

    found = frame.mapInArrow(write, _WRITTEN).collect()
    return sorted((WrittenFile(*row) for row in found), key=lambda one: one.file)


def _write_files(batches: Iterable[pa.RecordBatch], schema: pa.Schema, place: Place) -> Iterator[WrittenFile]:
    for tables in _files(batches):
        # A name that no other attempt of this task has: none of them can spoil the files of another.
        name = f"part-{uuid.uuid4().hex}.parquet"
        system, folder = place.open()
        path = f"{folder}/{name}"
        if place.shows_growing_files:  # such file systems do not make folders automatically
            system.create_dir(folder, recursive=True)
        rows = 0
        with system.open_output_stream(path) as out:
            with pq.ParquetWriter(out, schema, compression="zstd", compression_level=1) as writer:
                for table in tables:
                    writer.write_table(table.cast(schema))
                    rows += table.num_rows
            size = out.tell()
        yield WrittenFile(name, size, rows)


def _files(batches: Iterable[pa.RecordBatch]) -> Iterator[Iterator[pa.Table]]:
    """Row groups of one file after the other."""
    groups = _groups(batches)
    for first in groups:

        def file(group: pa.Table = first) -> Iterator[pa.Table]:
            size = group.nbytes
            yield group
            while size < _FILE_BYTES and (more := next(groups, None)) is not None:
                size += more.nbytes
                yield more

        yield file()


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= _GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def read_rows(spark: SparkSession, place: Place, files: Sequence[WrittenFile], schema: StructType) -> DataFrame:
    """The rows of files in a folder."""
    spark.dataSource.register(StagedRows)
    options = {"files": json.dumps([[one.file, one.size_bytes] for one in files]), _URL: place.url}
    return spark.read.format(_FORMAT).schema(schema).options(**options, **dict(place.options)).load()


def rows_of(objects: Objects, key: str) -> int:
    """The rows of a Parquet file, by its footer. Raises: OSError or pyarrow.ArrowException: it cannot be read."""
    system, folder = objects.file_system()
    with system.open_input_file(f"{folder}/{key}") as opened:
        return int(pq.read_metadata(opened).num_rows)


def _arrow_schema(schema: StructType) -> pa.Schema:
    for column in schema:
        try:
            to_arrow_schema(StructType([column]), timezone="UTC")
        except (PySparkException, TypeError, ValueError) as error:
            raise PipelineDefinitionError(
                f"column {column.name!r} is of type {column.dataType.simpleString()}, which Arrow does not have, and "
                "so cannot be kept in a store on S3: cast it, or give a store in a folder"
            ) from error
    return to_arrow_schema(schema, timezone="UTC")


def nullable(schema: StructType) -> StructType:
    """A schema as it is read back: any column may be null, as with all files that Spark reads."""
    return StructType.fromJson(_nullable(json.loads(schema.json())))


def _nullable(part: Any) -> Any:
    if isinstance(part, list):
        return [_nullable(one) for one in part]
    if not isinstance(part, dict):
        return part
    flags = ("nullable", "containsNull", "valueContainsNull")
    return {
        name: True if name in flags else value if name == "metadata" else _nullable(value)
        for name, value in part.items()
    }


@dataclass
class _Files(InputPartition):
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__init__(self.names)


class StagedRows(DataSource):
    """Reads what `write_rows` has written. Spark does not know how large it is, and so sends it to no other tasks."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def reader(self, schema: StructType) -> "StagedRowsReader":
        options = dict(self.options)
        files = [(str(name), int(size)) for name, size in json.loads(options.pop("files"))]
        return StagedRowsReader(Place(url=options.pop(_URL), options=tuple(sorted(options.items()))), files, schema)


class StagedRowsReader(DataSourceReader):
    """Reads files side by side, small ones together."""

    def __init__(self, place: Place, files: Sequence[tuple[str, int]], schema: StructType) -> None:
        self._place = place
        self._files = files
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        found: list[list[str]] = []
        size = _PARTITION_BYTES
        for name, bytes_ in self._files:
            if size >= _PARTITION_BYTES:
                found.append([])
                size = 0
            found[-1].append(name)
            size += bytes_
        return [_Files(tuple(names)) for names in found or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Files)
        for name in partition.names:
            system, folder = self._place.open()
            with system.open_input_file(f"{folder}/{name}") as file:
                for batch in pq.ParquetFile(file, pre_buffer=True).iter_batches():
                    yield batch.cast(self._schema)
