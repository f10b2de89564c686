"""Whether the data of a committed result is still there, and can be read."""

import pyarrow as pa
import pyarrow.parquet

from penstock.spark_plugin._stages._stage_store import CommittedStage, StageFolder


def damage(folder: StageFolder, result: CommittedStage) -> str:
    """What is wrong with the data of a result, in words; empty if nothing is.

    Looks at the size of all files and at the footers, not at the rows between.
    """
    found = rows = 0
    for vertex in result.outputs:
        path = folder.output(vertex)
        if not path.is_dir():
            return f"the rows of {vertex!r} are gone: no folder {path}"
        for file in sorted(path.glob("*.parquet")):
            try:
                found += file.stat().st_size
                rows += pyarrow.parquet.read_metadata(file).num_rows
            except (OSError, pa.ArrowException) as error:
                return f"{file} cannot be read: {str(error).splitlines()[0]}"
    if (found, rows) != (result.size_bytes, result.rows):
        return f"{found} bytes and {rows} rows are there, of {result.size_bytes} and {result.rows}"
    return ""
