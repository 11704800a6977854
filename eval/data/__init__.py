"""Files that people have, as rows: JSONL, a JSON array, CSV, Parquet, a ``save_to_disk`` folder; never a download."""

from detharness.eval.data.rows import DataRow, read_rows

__all__ = ["DataRow", "read_rows"]
